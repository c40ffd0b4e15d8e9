"""Monitors the processes and the machines of a run, each in a thread of the coordinator's process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors.context_store import context_store
from gearshift.engine.ray.actors.heartbeats import LateProcess
from gearshift.engine.ray.actors.nodes import STARTING_SECONDS, draining_machines, state_of
from gearshift.engine.ray.actors.placement import ProcessPlacement
from gearshift.engine.ray.actors.process import late_sentence
from gearshift.engine.ray.actors.supervisor import NoListener, Supervisor
from gearshift.engine.ray.process_manager import ProcessListener
from gearshift.run.run_handle import RunHandle

LOOK_SECONDS = 5.0  # interval of checks of the context store and the machines
BEAT_SECONDS = 0.5  # interval of checks for silent processes


class ProcessWatch:
    """Replaces processes of every role that do not answer, even while the coordinator is busy."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor, self._table = supervisor, supervisor.table

    def watch(self, run: RunHandle, is_over: Callable[[], bool]) -> None:
        checked = 0.0
        while not is_over():
            time.sleep(BEAT_SECONDS)
            with contextlib.suppress(Exception):  # Ray's head may be busy: retry next time
                for one in self._table.late(int(run.status().step)):
                    self._deal_with(one)
                if time.monotonic() - checked > LOOK_SECONDS:
                    checked = time.monotonic()
                    self._look_at_missing()

    def _deal_with(self, late: LateProcess) -> None:
        who, supervisor = late.who, self._supervisor
        actor = supervisor.actors.get(who)
        place = None if actor is None else state_of(actor).place
        if place is None:  # Ray is starting it, or has no machine for it: it will register
            self._table.do_not_expect(who)
        elif late.overdue:
            boot = self._table.boot_at(who, place)
            reason = f"{who.role} {who.number} has not answered for {late.seconds:.0f} s"
            supervisor.replace(who, boot, reason)
        else:
            supervisor.membership.notify(late_sentence(late, self._table.patience))

    def _look_at_missing(self) -> None:
        """Checks processes that have not registered: still starting, frozen, or unable to start."""
        supervisor = self._supervisor
        for who, actor in list(supervisor.actors.items()):
            if self._table.is_expected(who) or supervisor.failure() is not None:
                continue
            known = state_of(actor)
            is_ours = supervisor.actors.get(who) is actor
            if known.state == "dead" and who.role == "relay":  # its machine is gone
                supervisor.end(who)
            elif known.state == "dead" and is_ours:  # for example, it cannot be imported there
                supervisor.fail(f"{who.role} {who.number} cannot be started: {known.cause}")
            elif known.state == "alive":
                self._table.expect(who, STARTING_SECONDS)


class MachineWatch:
    """Announces machines that are leaving; workers on them restart elsewhere."""

    def __init__(self, plan: ProcessPlacement, supervisor: Supervisor) -> None:
        self._plan, self._supervisor = plan, supervisor
        self._listener: ProcessListener = NoListener()  # receives notifications about leaving machines
        self._leaving: set[str] = set()  # machines

    def watch(self, run: RunHandle) -> None:
        """Runs in a thread: a head that does not answer must not keep the run from ending."""
        while not run.finished:
            with contextlib.suppress(Exception):  # its head may be busy: retry next time
                context_store(self._plan.name, self._supervisor.newest_context)
                self.look()
            time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Checks which machines Ray is draining: by `ray drain-node`, or an autoscaler with spot machines."""
        supervisor, draining = self._supervisor, draining_machines()
        if (
            supervisor.listener is not self._listener
        ):  # a new listener has not been told of any draining machine
            self._listener, self._leaving = supervisor.listener, set()
        for machine in draining - self._leaving:
            members = self._members_on(machine)
            supervisor.moving |= {who for who in members if who.role == "worker"}
            if members:
                self._listener.leaving(
                    members, f"the machine of {len(members)} processes will be removed soon"
                )
        if self._leaving - draining:  # some machines are gone, and Ray has reserved resources elsewhere
            homeless = supervisor.moving - supervisor.table.contacts.keys()
            supervisor.moving.clear()
            for who in homeless & supervisor.actors.keys():
                supervisor.end(who)
                supervisor.start_if_wanted(who)
        self._leaving = draining

    def _members_on(self, machine: str) -> list[To]:
        membership = self._supervisor.membership
        places = {**self._supervisor.table.places, membership.me: membership.place}
        return sorted(who for who, (_, node) in places.items() if node == machine)
