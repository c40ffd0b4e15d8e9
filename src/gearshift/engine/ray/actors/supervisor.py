"""The process manager of a run on Ray (`process_manager.ProcessManager`): starts, replaces and ends its processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.context_store import end_members
from gearshift.engine.ray.actors.heartbeats import DEATHS, FAILURES
from gearshift.engine.ray.actors.nodes import (
    END_SECONDS,
    MEET_SECONDS,
    STARTING_SECONDS,
    end_process,
    state_of,
    within,
)
from gearshift.engine.ray.actors.placement import ProcessPlacement
from gearshift.engine.ray.actors.process import ProcessActor, RayMembership
from gearshift.engine.ray.actors.process_table import Place, ProcessTable, Registration
from gearshift.engine.ray.process_context import ProcessContext
from gearshift.engine.ray.process_manager import ProcessListener

LEAVE_SECONDS = 8.0  # that shards and relays have to end by themselves when the run is over

Bodies = dict[str, Callable[[Any, Any], None]]  # what a process of each role does, to its end


class NoListener:
    """Called before the run listens."""

    def leaving(self, members: Sequence[To], reason: str) -> None: ...

    def replaced(self, who: To, reason: str) -> None: ...


class Supervisor:
    def __init__(
        self,
        plan: ProcessPlacement,
        bodies: Bodies,
        context: ProcessContext,
        table: ProcessTable,
        membership: RayMembership,
    ) -> None:
        """`membership` is that of the coordinator."""
        self._plan, self._bodies = plan, bodies
        self.newest_context = context  # from `begin` on, includes what was fitted to the data
        self.table, self.membership = table, membership
        self.actors: dict[To, Any] = {}
        self.moving: set[To] = set()  # workers that must not restart in their reserved place
        self.listener: ProcessListener = NoListener()
        self._wanted = 0  # workers
        self._begun = self._head_is_silent = False
        self._failure: str | None = None

    # ---- for the run ----

    def begin(self, context: ProcessContext, workers: int) -> None:
        self.newest_context, self._begun = context, True
        for who in self._plan.members[1 : 1 + self._plan.shards]:
            self._start(who)
        self.resize(workers)

    def heard_by(self, listener: ProcessListener) -> None:
        self.listener = listener

    def resize(self, workers: int) -> None:
        """Surplus workers leave by themselves when the coordinator dismisses them."""
        self._wanted = workers
        for number in range(workers):
            self._start(To("worker", number))

    def rest(self) -> None:
        self._wanted = 0

    def failure(self) -> str | None:
        return self._failure

    def figures(self) -> dict[str, dict[str, float]]:
        return self.table.figures({self.membership.me: self.membership.measure()})

    def replace(self, who: To, boot: int, reason: str) -> None:
        """Replaces the process of this boot (0: it never sent a message), unless another has started since."""
        if place := self.table.take_out(who, boot, STARTING_SECONDS):
            self.membership.notify(f"{reason}; replacing it")
            self.listener.replaced(who, reason)
            threading.Thread(target=end_process, args=place, daemon=True).start()

    def relays(self) -> bool:
        return any(who.role == "relay" for who in list(self.table.contacts))

    def step_down(self) -> None:
        os._exit(1)  # Ray has already given up this process and started another

    def close(self) -> None:
        """Ends all processes, including those of an earlier coordinator. Does not wait for an unresponsive head."""
        self._wanted = 0
        if not self._head_is_silent:
            is_local = self.newest_context.local is not None
            self._head_is_silent = not end_in_time(
                partial(_end_all, self, self._plan), self.membership.notify, is_local=is_local
            )

    # ---- for processes ----

    def context(self) -> ProcessContext:
        """The context with what the coordinator has fitted to the data. Raises before that; the caller retries."""
        if not self._begun:
            raise RuntimeError("the run has not begun")
        return self.newest_context

    def register(self, who: To, place: Place) -> Registration:
        self.newest_context.records.record_start(who.role, who.number)
        self.table.expect(who, STARTING_SECONDS)
        registration, name = self.table.register(who, place), f"{who.role} {who.number}"
        restarts, delay = registration.restarts, registration.delay
        if delay:
            self.membership.notify(
                f"{name} has ended {restarts} times without progress; it starts again in {delay:g} s"
            )
        if restarts >= DEATHS:
            self.fail(
                f"{name} was killed {restarts} times without progress in between, and left no error. "
                "Check whether it ran out of memory (the kernel log names killed processes)"
            )
        return registration

    def ended(self, who: To, boot: int, failure: tuple[str, bool] | None) -> None:
        """The work of a process is over, or it has failed."""
        if not self.table.is_newest(who, boot):
            return  # another has started in its place in the meantime
        if failure is None:
            self.end(who)
            self.newest_context.records.record_end(who.role, who.number)
            self.table.ended(who)
            if who.role == "worker":  # it was dismissed too early
                threading.Timer(MEET_SECONDS, self.start_if_wanted, [who]).start()
            return
        sentence, is_users = failure
        times = self.table.failed(who)
        if is_users or times >= FAILURES:
            again = "" if is_users else f" {times} times, most recently"
            more = "" if is_users else "; the traceback is in run.log"
            self._failure = f"{who.role} {who.number} failed{again}: {sentence.strip()}{more}"

    # ---- called by the watch threads ----

    def fail(self, reason: str) -> None:
        """The run cannot continue; the first reason is kept."""
        self._failure = self._failure or reason

    def start_if_wanted(self, who: To) -> None:
        if who.number < self._wanted:
            self._start(who)

    def start_relay(self, who: To, machine: str) -> None:
        """On this machine, unless it is there."""
        if self._wanted:
            self._start(who, NodeAffinitySchedulingStrategy(machine, soft=False))

    def _start(self, who: To, where: NodeAffinitySchedulingStrategy | None = None) -> None:
        if who not in self.actors:
            options = self._plan.options(who) | {"get_if_exists": True}
            if who in self.moving:
                options.pop("scheduling_strategy", None)
            if where is not None:
                options["scheduling_strategy"] = where
            make = ray.remote(ProcessActor).options(**options)
            self.actors[who] = make.remote(self._plan.name, who, self._bodies[who.role])
            with contextlib.suppress(Exception):  # Ray's head may be busy
                if state_of(self.actors[who]).state == "alive":  # started by an earlier coordinator
                    self.table.expect(who, 0.0)

    def end(self, who: To) -> None:
        actor = self.actors.pop(who, None)
        self.table.forget(who)
        if actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(actor, no_restart=True)
        if place := self.table.places.get(who):
            threading.Thread(target=end_process, args=place, daemon=True).start()


def _end_all(supervisor: Supervisor, plan: ProcessPlacement) -> None:
    """Shards and relays end by themselves, to remove what they have on their machines: relays when their workers are
    gone, shards when they are asked to.
    """
    actors = supervisor.actors
    leaving = {who for who in actors if who.role in ("shard", "relay")}
    for who in actors.keys() - leaving:
        supervisor.end(who)
    for who in leaving:
        if who.role == "shard" and (actor := actors.get(who)) is not None:
            with contextlib.suppress(RayError):
                actor.end.remote()  # it reports `ended` when it has
    until = time.monotonic() + LEAVE_SECONDS
    while leaving & actors.keys() and time.monotonic() < until:
        time.sleep(0.1)
    for who in list(actors):
        supervisor.end(who)
    end_members(plan)


def end_in_time(end: Callable[[], None], notify: Callable[[str], None], *, is_local: bool) -> bool:
    """Whether Ray has ended the processes in time. If not, its head does not respond, and the user is notified."""
    if within(END_SECONDS, end):
        return True
    left = "end with its cluster" if is_local else "are ended when it answers again, or end with the cluster"
    notify(f"Ray's head does not answer; processes of this run that are left {left}")
    return False
