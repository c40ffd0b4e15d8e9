"""Interprets the silence of a run's coordinator: it is restarting, Ray's head is unreachable, or the run is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOST_SECONDS = (
    180.0  # a run without Ray's head (or a local one without a coordinator) counts as lost after this time
)


@dataclass(frozen=True)
class Loss:
    """The reason why the run is considered lost."""

    reason: str
    of_head: bool = False  # Ray itself does not answer, so it cannot be queried; the run may continue


class Silence:
    """Measures how long the coordinator has been silent. Its watchdog replaces a frozen coordinator in the meantime."""

    def __init__(
        self, ray: Any, coordinator: Any, watchdog: Any, notify: Callable[[str], None], *, is_local: bool
    ) -> None:
        """`is_local`: the cluster was started for this run alone."""
        self._ray, self._coordinator, self._watchdog = ray, coordinator, watchdog
        self._notify, self._is_local = notify, is_local
        self._heard = time.monotonic()
        self._headless_since: float | None = None

    def ended(self) -> None:
        """The coordinator has answered."""
        self._heard = time.monotonic()
        self._watchdog.heard()

    def continues(self) -> Loss | None:
        """The coordinator has not answered again. Returns the loss, if the run is lost."""
        if not self._ray.answers():  # because any call to Ray would block
            return self._without_head()
        self._headless_since = None
        return self._without_coordinator()

    def _without_coordinator(self) -> Loss | None:
        actor = self._ray.state_of(self._coordinator)
        if actor.state == "dead":
            return Loss(f"the coordinator cannot be started: {actor.cause}")
        if time.monotonic() - self._heard < LOST_SECONDS:
            self._watchdog.silent()
            return None
        if self._is_local:
            return Loss(f"the coordinator was lost and did not start again within {LOST_SECONDS:g} s")
        self._notify(
            f"the coordinator has not answered for {LOST_SECONDS:g} s; Ray will restart it as soon as there is "
            "a machine for it"
        )
        self._heard = time.monotonic()
        return None

    def _without_head(self) -> Loss | None:
        now = time.monotonic()
        if self._headless_since is None:
            self._headless_since = now
            self._notify(
                f"Ray's head does not answer; if it is not back in {LOST_SECONDS:g} s, this command ends"
            )
        elif now - self._headless_since > LOST_SECONDS:
            reason = "Ray does not answer any more: its head is gone, or this machine cannot reach it"
            return Loss(reason, of_head=True)
        return None
