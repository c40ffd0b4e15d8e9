"""Which machines have a relay, and starting it: where several workers are, and shards elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.process_table import Place
from gearshift.engine.ray.actors.supervisor import Supervisor
from gearshift.engine.ray.cluster_settings import TwoLevels

LOOK_SECONDS = 2.0
ADOPT_SECONDS = 6.0  # in which the relays of an earlier coordinator are heard


class RelayWatch:
    """Starts a relay on each machine that should have one; a restarted coordinator adopts those that live."""

    def __init__(self, supervisor: Supervisor, setting: TwoLevels) -> None:
        self._supervisor, self._setting = supervisor, setting
        self._numbers: dict[str, int] = {}  # by machine
        self._began = time.monotonic()

    def watch(self, is_over: Callable[[], bool]) -> None:
        while self._setting != "off" and not is_over():
            time.sleep(LOOK_SECONDS)
            with contextlib.suppress(Exception):  # Ray's head may be busy: the next time
                self.look()

    def look(self) -> None:
        supervisor = self._supervisor
        places = dict(supervisor.table.places)
        self._numbers |= {node: who.number for who, (_, node) in places.items() if who.role == "relay"}
        if supervisor.membership.restarted and time.monotonic() - self._began < ADOPT_SECONDS:
            return
        contacts = supervisor.table.contacts
        present = {who: place for who, place in places.items() if who in contacts}
        for machine in machines_with_relays(present, self._setting):
            number = self._numbers.setdefault(machine, max(self._numbers.values(), default=-1) + 1)
            supervisor.start_relay(To("relay", number), machine)


def machines_with_relays(places: Mapping[To, Place], setting: TwoLevels) -> list[str]:
    """The machines with several workers; with `auto` only if there is a shard on another machine."""
    if setting == "off":
        return []
    workers = Counter(node for who, (_, node) in places.items() if who.role == "worker")
    shards = {node for who, (_, node) in places.items() if who.role == "shard"}
    return sorted(node for node, n in workers.items() if n > 1 and (setting == "on" or shards - {node}))
