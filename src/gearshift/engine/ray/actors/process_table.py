"""The coordinator's table of the other processes: their locations, the newest start of each, and which are late.

Other processes and threads of the coordinator read and write it at any time: a lock keeps it consistent. Independent of
Ray.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.heartbeats import Heartbeats, LateProcess, RestartBudget
from gearshift.engine.wire.keys import Contact

Place = tuple[int, str]  # pid and node


@dataclass(frozen=True)
class Registration:
    boot: int  # the number of this start: higher than that of any earlier one
    starts_before: int
    restarts: int  # restarts without progress
    delay: float  # seconds to wait before the work begins


class ProcessTable:
    def __init__(self, patience: float, boot: int, starts: Mapping[To, int]) -> None:
        """`boot` is the coordinator's; `starts` were recorded by earlier coordinators."""
        self._lock = threading.Lock()
        self.contacts: dict[To, Contact] = {}
        self.places: dict[To, Place] = {}
        self._boots: dict[To, int] = {}
        self._boot = boot  # the last number given
        self._starts: Counter[To] = Counter(starts)
        self._figures: dict[To, dict[str, float]] = {}
        self._registered_at: dict[To, float] = {}
        self._beats, self.patience = Heartbeats(patience), patience
        self._budget = RestartBudget()
        self._step = 0  # of the run

    def register(self, who: To, place: Place) -> Registration:
        """A process has started."""
        with self._lock:
            self._boot += 1
            self.places[who], self._boots[who] = place, self._boot
            self._registered_at[who] = time.monotonic()
            self._starts[who] += 1
            restarts = self._budget.started(who)
            return Registration(self._boot, self._starts[who] - 1, restarts, self._budget.delay(who))

    def heard(self, who: To, place: Place, contact: Contact | None, figures: dict[str, float]) -> None:
        with self._lock:
            self._beats.heard(who, time.monotonic())
            self._budget.alive(who, who.role != "worker" or figures.get("batches", 0) > 0, self._step)
            self._figures[who] = figures
            if contact is not None and contact.boot >= self._boots.get(contact.who, 0):
                self._boots[contact.who] = contact.boot
                self.contacts[contact.who] = contact
                self.places[contact.who] = place  # it may have registered with an earlier coordinator

    def all_contacts(self, coordinator: Contact | None) -> list[Contact]:
        """The contacts of all processes; `coordinator` is that of this process."""
        with self._lock:
            if coordinator is not None:
                self.contacts[coordinator.who] = coordinator
            return list(self.contacts.values())

    def contacts_for(self, who: To, place: Place, coordinator: Contact | None) -> list[Contact]:
        """The contacts that a process needs: a worker hears only of the relay of its own machine."""
        contacts = self.all_contacts(coordinator)
        if who.role != "worker":
            return contacts
        return [
            one
            for one in contacts
            if one.who.role != "relay" or self.places.get(one.who, (0, ""))[1] == place[1]
        ]

    def is_newest(self, who: To, boot: int) -> bool:
        """Whether this is the newest start. A start that is being replaced counts too."""
        return self._boots.get(who) in (boot, 0)

    def ended(self, who: To) -> None:
        """It exited normally, which does not count as a death."""
        with self._lock:
            self._budget.forget(who)

    def failed(self, who: To) -> int:
        """It ended with an error. Returns the number of failures without progress."""
        with self._lock:
            return self._budget.failed(who)

    def forget(self, who: To) -> None:
        """Removes a process that is gone and not expected back."""
        with self._lock:
            self.contacts.pop(who, None)
            self._figures.pop(who, None)
            self._beats.forget(who)

    def expect(self, who: To, seconds: float) -> None:
        """It is overdue after this many seconds, or after the patience if that is longer."""
        with self._lock:
            self._beats.heard(who, time.monotonic() + max(0.0, seconds - self.patience))

    def is_expected(self, who: To) -> bool:
        return self._beats.knows(who)

    def do_not_expect(self, who: To) -> None:
        """A process that is expected to register."""
        with self._lock:
            self._beats.forget(who)

    def late(self, step: int) -> list[LateProcess]:
        """The processes that have been silent for too long, now that the run is at this step."""
        with self._lock:
            self._step = step
            return self._beats.look(time.monotonic())

    def boot_at(self, who: To, place: Place) -> int:
        """The newest boot of the process at this place; 1 if only an earlier coordinator knew it."""
        with self._lock:
            self.places[who] = place
            return self._boots.setdefault(who, 1)

    def take_out(self, who: To, boot: int, starting_seconds: float) -> Place | None:
        """The place of the process with this boot, if it must be replaced: only once, and not if another has started
        since.

        Boot 0: a process that never sent a message.
        """
        with self._lock:
            if boot == 0 and time.monotonic() - self._registered_at.get(who, 0.0) > starting_seconds:
                boot = self._boots.get(who, 0)
            place = self.places.get(who)
            if place is None or self._boots.get(who) != boot:
                return None
            self._boots[who] = 0
            return place

    def figures(self, coordinator: Mapping[To, dict[str, float]]) -> dict[str, dict[str, float]]:
        """The newest metrics of each process, by its name; `coordinator` has those of this one."""
        with self._lock:
            return {
                f"{who.role}-{who.number}": {**figures, "restarts": max(0, self._starts[who] - 1)}
                for who, figures in sorted({**self._figures, **coordinator}.items())
            }
