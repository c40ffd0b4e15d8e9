"""The process of a shard or a worker: it begins by itself, meets the others at the hub, and watches over it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from gearshift.engine.ray_cluster.machines import (
    ANSWER_SECONDS,
    MEET_SECONDS,
    STARTING_SECONDS,
    end_process,
    patiently,
    this_host,
    this_place,
)
from gearshift.engine.ray_cluster.plan import NAMESPACE, actor_name
from gearshift.engine.roles.messages import To
from gearshift.engine.wire.keys import Contact
from gearshift.errors import UserError

NOTICE_SECONDS = 8.0  # that a process that was asked to end has for it
STARTS = 1 << 20  # of members, that one start of the hub has numbers for


@dataclass
class Seat:
    """A process's place among the others (`cluster.site.Member`)."""

    me: To
    boot: int
    host: str
    place: tuple[int, str]  # pid and node
    _contact: Contact | None = None
    _known: dict[To, Contact] = field(default_factory=dict)
    _sentences: list[str] = field(default_factory=list)
    _measure: Callable[[], dict[str, float]] = dict

    @property
    def start(self) -> int:
        """Of the hub that gave it its number."""
        return self.boot // STARTS

    def announce(self, contact: Contact) -> None:
        self._contact = contact

    def contacts(self) -> Iterable[Contact]:
        return list(self._known.values())

    def measured_by(self, measure: Callable[[], dict[str, float]]) -> None:
        self._measure = measure

    def tell(self, sentence: str) -> None:
        self._sentences.append(sentence)

    def meet(self, hub: Any) -> None:
        """Tells the hub where we are, and hears where the others are."""
        said, self._sentences = self._sentences, []
        found = ray.get(
            hub.meet.remote(self._contact, self.place, said, self.me, self._measure()), timeout=ANSWER_SECONDS
        )
        self._known.update({contact.who: contact for contact in found})


class Process:
    """An actor that is a shard or a worker, from its start on."""

    def __init__(self, run: str, who: To, body: Callable[[Any, Any], None]) -> None:
        self._hub_name, self._who, self._body = actor_name(run, To("coordinator")), who, body
        self._notice = threading.Event()
        with contextlib.suppress(ValueError):  # not in the main thread: it ends at once when it is asked to
            signal.signal(signal.SIGTERM, lambda *_: self._notice.set())
        threading.Thread(target=self._live, name="gearshift", daemon=True).start()

    def _live(self) -> None:
        hub = ray.get_actor(self._hub_name, namespace=NAMESPACE)
        place = this_place()
        boot = patiently(lambda: hub.register.remote(self._who, place))
        self._site = patiently(lambda: hub.site.remote())
        seat = Seat(self._who, boot, this_host(), place)
        threading.Thread(target=self._keep_in_touch, args=(hub, seat), daemon=True).start()
        failure: tuple[str, bool] | None = None
        try:
            self._body(seat, self._site)
        except UserError as error:
            failure = str(error), True
        except BaseException:
            failure = traceback.format_exc(), False
        with contextlib.suppress(Exception):
            patiently(lambda: hub.ended.remote(self._who, boot, failure))
        os._exit(0 if failure is None else 1)  # Ray starts it anew, unless the hub has ended it

    def _keep_in_touch(self, hub: Any, seat: Seat) -> None:
        watchdog = Watchdog(self._site) if seat.me == To("shard", 0) else None
        while True:
            with contextlib.suppress(Exception):  # also of a file system that has a bad moment: the next time
                try:
                    seat.meet(hub)
                    if watchdog is not None:
                        watchdog.heard()
                except RayError:
                    if watchdog is not None:
                        watchdog.silent()
            if self._notice.wait(MEET_SECONDS):
                self._end_soon(hub)

    def _end_soon(self, hub: Any) -> None:
        """It was asked to end: its machine goes away, say."""
        with contextlib.suppress(Exception):
            ray.get(hub.notice.remote(self._who), timeout=ANSWER_SECONDS)
        time.sleep(NOTICE_SECONDS)
        os._exit(1)


class Watchdog:
    """Ends a hub that is there and does not answer: Ray starts another. One that has just started has more time."""

    def __init__(self, site: Any) -> None:
        self._site = site
        self._known = self._answered = site.hub_place()
        self._since = time.monotonic()  # it was heard, first seen, or ended

    def heard(self) -> None:
        self._since, self._answered = time.monotonic(), self._site.hub_place()
        self._known = self._answered

    def silent(self) -> None:
        now, place = time.monotonic(), self._site.hub_place()
        if place != self._known:
            self._known, self._since = place, now
        grace = self._site.patience if place == self._answered else max(STARTING_SECONDS, self._site.patience)
        if place is not None and now - self._since > grace:
            self._since = now
            end_process(*place)
