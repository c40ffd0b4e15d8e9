"""The process of a shard or a worker: it starts by itself, exchanges contacts with the coordinator, and watches it."""

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

from gearshift.embedding.table_tier import close_tiers
from gearshift.engine.protocol.messages import COORDINATOR, To
from gearshift.engine.ray.actors.heartbeats import Heartbeats, LateProcess
from gearshift.engine.ray.actors.nodes import (
    ALONE_SECONDS,
    ANSWER_SECONDS,
    MEET_SECONDS,
    end_process,
    state_of,
    take_title,
    this_host,
    this_place,
    with_retries,
)
from gearshift.engine.ray.actors.placement import NAMESPACE, actor_name
from gearshift.engine.wire.keys import Contact
from gearshift.errors import UserError, brief
from gearshift.run.retry import retry

NOTICE_SECONDS = 8.0  # time for a process to end after it was asked to
STARTS = 1 << 20  # number of member boots reserved for each start of the coordinator


@dataclass
class RayMembership:
    """A process's membership in the run (`process_context.Membership`)."""

    me: To
    boot: int
    host: str
    place: tuple[int, str]  # pid and node
    restarted: bool = False  # an earlier process had the same role and number
    known: dict[To, Contact] = field(default_factory=dict)  # the newest contact of every process
    sentences: list[str] = field(default_factory=list)  # for the user, not passed on yet
    contact: Contact | None = None  # its own
    measure: Callable[[], dict[str, float]] = dict
    end: Callable[[], None] = lambda: None  # ends the work

    @property
    def start(self) -> int:
        """The start of the coordinator that assigned this boot."""
        return self.boot // STARTS

    def announce(self, contact: Contact) -> None:
        self.contact = contact

    def contacts(self) -> Iterable[Contact]:
        return list(self.known.values())

    def measured_by(self, measure: Callable[[], dict[str, float]]) -> None:
        self.measure = measure

    def ended_by(self, end: Callable[[], None]) -> None:
        self.end = end

    def notify(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def take_sentences(self) -> list[str]:
        """Returns each message once; other threads may add more in the meantime."""
        taken = self.sentences[:]
        del self.sentences[: len(taken)]
        return taken

    def meet(self, coordinator: Any) -> Any:
        """Sends our address to the coordinator; its answer, passed to `met`, has the addresses of the others."""
        return coordinator.meet.remote(
            self.contact, self.place, self.take_sentences(), self.me, self.measure()
        )

    def met(self, contacts: Iterable[Contact]) -> None:
        self.known.update({contact.who: contact for contact in contacts})


class ProcessActor:
    """An actor that runs a shard or a worker."""

    def __init__(self, run: str, who: To, body: Callable[[Any, Any], None]) -> None:
        self._coordinator_name, self._who, self._body = actor_name(run, To("coordinator")), who, body
        self._notice = threading.Event()
        self._membership: RayMembership | None = None  # until it is registered
        with contextlib.suppress(ValueError):  # in a thread, so that the process ends at once when asked to
            signal.signal(signal.SIGTERM, lambda *_: self._notice.set())
        take_title(who.role, who.number)
        threading.Thread(target=self._live, name="gearshift", daemon=True).start()

    def _live(self) -> None:
        try:
            self._take_part()
        except (RayError, ValueError):  # no coordinator is left that would end us
            with contextlib.suppress(Exception):
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        os._exit(1)

    def _take_part(self) -> None:
        coordinator = find_actor(self._coordinator_name)
        place = this_place()
        boot, restarts, delay = with_retries(lambda: coordinator.register.remote(self._who, place))
        self._context = with_retries(lambda: coordinator.context.remote())
        membership = self._membership = RayMembership(self._who, boot, this_host(), place, restarts > 0)
        threading.Thread(target=self._keep_in_touch, args=(coordinator, membership), daemon=True).start()
        failure: tuple[str, bool] | None = None
        time.sleep(delay)
        try:
            self._body(membership, self._context)
        except UserError as error:
            failure = str(error), True
        except BaseException as error:
            failure = brief(error), False
            with contextlib.suppress(Exception):
                self._context.records.log(f"{self._who.role} {self._who.number}: {traceback.format_exc()}")
        close_tiers()
        with_retries(lambda: coordinator.ended.remote(self._who, boot, failure))
        os._exit(0 if failure is None else 1)  # Ray restarts it, unless the coordinator has ended it

    def end(self) -> None:
        """The run is over: the work ends, and then this process, which has removed its files."""
        if self._membership is not None:
            self._membership.end()

    def _keep_in_touch(self, coordinator: Any, membership: RayMembership) -> None:
        watchdog = CoordinatorWatchdog(
            coordinator, self._context.connection.settings.patience, from_afar=membership.me == To("shard", 0)
        )
        while True:
            with contextlib.suppress(Exception):  # retried in the next round
                if (contacts := watchdog.ask(membership.meet(coordinator))) is not None:
                    membership.met(contacts)
            if self._notice.wait(MEET_SECONDS):
                self._end_soon(coordinator)

    def _end_soon(self, coordinator: Any) -> None:
        """The process was asked to end, for example because its machine is leaving."""
        with contextlib.suppress(Exception):
            ray.get(coordinator.notice.remote(self._who), timeout=ANSWER_SECONDS)
        time.sleep(NOTICE_SECONDS)
        os._exit(1)


class CoordinatorWatchdog:
    """Ends a coordinator that is alive but does not answer; Ray then starts another.

    Without `from_afar` it ends only a coordinator on its own machine. A coordinator that Ray is starting, or that waits
    for a machine, is left alone.
    """

    def __init__(
        self,
        coordinator: Any,
        patience: float,
        notify: Callable[[str], None] = lambda sentence: None,
        *,
        from_afar: bool = True,
    ) -> None:
        self._coordinator, self._notify, self._from_afar = coordinator, notify, from_afar
        self._beats = Heartbeats(patience)
        self._here = ray.get_runtime_context().get_node_id()
        self.heard()

    def heard(self) -> None:
        self._beats.heard(COORDINATOR, time.monotonic())

    def ask(self, reference: Any) -> Any:
        """The coordinator's answer; None if it is gone, or was killed because it did not answer."""
        while not ray.wait([reference], timeout=MEET_SECONDS)[0]:
            if self.silent():
                return None
        try:
            answer = ray.get(reference)
        except RayError:
            self.silent()
            return None
        self.heard()
        return answer

    def silent(self) -> bool:
        """Called when the coordinator has not answered. Returns whether it was killed."""
        for late in self._beats.look(time.monotonic()):
            place = state_of(self._coordinator).place
            if place is None:
                self._beats.heard(COORDINATOR, time.monotonic())
            elif not late.overdue:
                self._notify(late_sentence(late, self._beats.patience))
            elif self._from_afar or place[1] == self._here:
                self._notify(f"the coordinator has not answered for {late.seconds:.0f} s; replacing it")
                end_process(*place)
                return True
        return False


def late_sentence(late: LateProcess, patience: float) -> str:
    name = "the coordinator" if late.who == COORDINATOR else f"{late.who.role} {late.who.number}"
    return f"{name} has not answered for {late.seconds:.0f} s; it will be replaced after {patience:g} s"


def find_actor(name: str) -> Any:
    """The actor with this name, which exists or will be created soon."""
    return retry(
        lambda: ray.get_actor(name, namespace=NAMESPACE),
        ALONE_SECONDS,
        lambda error: isinstance(error, ValueError),
        first=MEET_SECONDS,
        longest=MEET_SECONDS,
    )
