"""The actor in which the coordinator runs: it starts, replaces and ends the others, and tells them where all are."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from gearshift.engine.protocol.messages import COORDINATOR, To
from gearshift.engine.ray.actors.context_store import (
    context_store,
    context_store_of,
    end_members,
    leave_place,
)
from gearshift.engine.ray.actors.heartbeats import DEATHS, FAILURES, Heartbeats, LateProcess, RestartBudget
from gearshift.engine.ray.actors.nodes import (
    END_SECONDS,
    MEET_SECONDS,
    STARTING_SECONDS,
    Place,
    draining_machines,
    end_process,
    state_of,
    take_title,
    this_host,
    this_place,
    token_is_on,
    with_retries,
    within,
)
from gearshift.engine.ray.actors.placement import ProcessPlacement
from gearshift.engine.ray.actors.process import (
    STARTS,
    ProcessActor,
    RayMembership,
    late_sentence,
)
from gearshift.engine.wire.keys import Contact
from gearshift.errors import UserError, brief, warn_through
from gearshift.run.retry import retry

LOOK_SECONDS = (
    5.0  # between two looks of the coordinator at what is not a member: the context store, the machines
)
BEAT_SECONDS = 0.5  # between two looks at who has not been heard
FAREWELL_SECONDS = 60.0  # that the coordinator stays when the run has ended


class RunView(Protocol):
    """What the coordinator lets others see of the run in it."""

    @property
    def finished(self) -> bool: ...
    @property
    def messages(self) -> list[str]: ...
    def status(self) -> Any: ...
    def stop(self, *, give_up: bool = False) -> None: ...
    def wait(self, timeout: float) -> Any:
        """For its end, and raises what went wrong; `TimeoutError` when the time is over first."""


class CoordinatorActor:
    """The actor of the coordinator. It is also the process manager: it starts, replaces and ends the others."""

    def __init__(
        self,
        plan: ProcessPlacement,
        begin: Callable[[RayMembership, Any, CoordinatorActor], RunView],
        bodies: dict[str, Callable[[Any, Any], None]],
    ) -> None:
        """Does nothing that can fail: Ray gives up an actor whose constructor raises, and nobody would end the run."""
        self._plan, self._begin, self._bodies = plan, begin, bodies
        self._context: Any = None
        self._lock = threading.Lock()
        self._contacts: dict[To, Contact] = {}
        self._places: dict[To, Place] = {}
        self._boots: dict[To, int] = {}
        self._wanted = 0  # workers
        self._boot = 0  # the last number given
        self._step = 0  # of the run
        self._starts: Counter[To] = Counter()
        self._figures: dict[To, dict[str, float]] = {}
        self._actors: dict[To, Any] = {}
        self._registered_at: dict[To, float] = {}
        self._beats = Heartbeats(inf)
        self._budget = RestartBudget()
        self._failure: str | None = None
        self._error: tuple[str, bool] | None = None
        self._over = self._begun = self._stop_requested = self._head_is_silent = False
        self._heed: Callable[[Sequence[To], str], None] = lambda members, reason: None
        self._replaced: Callable[[To, str], None] = lambda who, reason: None
        self._leaving: set[str] = set()  # machines
        self._moving: set[To] = set()  # workers that shall not start again where a place is reserved for them
        self._run: RunView | None = None
        self._early: list[str] = []  # said before there is a run that could say it
        self._membership = RayMembership(COORDINATOR, 0, "", (0, ""))
        threading.Thread(target=self._live, name="gearshift", daemon=True).start()

    def _live(self) -> None:
        try:
            take_title("coordinator")
            warn_through(self._membership.tell)
            self._enter()
            self._membership._known = self._contacts
            self._run = self._context.with_retries(
                lambda: self._begin(self._membership, self._context, self),
                self._early.append,
                lambda: self._stop_requested,
            )
            self._follow(self._run)
        except UserError as error:
            if self._context is not None and self._context.is_replaced():
                self.step_down()
            self._error = str(error), True
        except BaseException as error:
            self._error = brief(error), False
            with contextlib.suppress(Exception):
                self._context.log(f"coordinator: {traceback.format_exc()}")
        with contextlib.suppress(Exception):
            self.close()
        with contextlib.suppress(Exception):
            if self._run is None and self._error is not None:
                self._context.record_failure(self._error[0])
        with contextlib.suppress(Exception):
            self._context.over()
        if self._run is None:
            self._early += self._membership._sentences
        self._over = True  # whoever watches may end this process now
        time.sleep(FAREWELL_SECONDS)  # whoever watches may still ask how it ended
        leave_place(self._plan)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _enter(self) -> None:
        """Learns what the run is, and notes in its folder that this is the coordinator now."""
        self._context = with_retries(
            lambda: context_store_of(self._plan.name).give.remote(), STARTING_SECONDS
        )
        self._beats = Heartbeats(self._context.patience)
        me = ray.get_runtime_context().current_actor
        state = retry(lambda: state_of(me), STARTING_SECONDS, lambda error: True)  # Ray's head may be busy
        place, restarted = this_place(), state.restarts > 0
        start = self._context.with_retries(
            lambda: self._context.new_start(*place, restarted),
            self._early.append,
            lambda: self._stop_requested,
        )
        self._membership.host, self._membership.place, self._membership.restarted = (
            this_host(),
            place,
            restarted,
        )
        self._boot = self._membership.boot = start * STARTS
        self._starts.update(self._context.starts())

    def _follow(self, run: RunView) -> None:
        """Until it has ended; raises what went wrong."""
        if not token_is_on():
            self._membership.tell(
                "Ray's token authentication is off: whoever reaches this cluster can run code on it. Start it with "
                "RAY_AUTH_MODE=token (docs/security.md)"
            )
        if self._stop_requested:
            run.stop()
        threading.Thread(target=self._watch_over_members, args=(run,), daemon=True).start()
        threading.Thread(target=self._watch_over_cluster, args=(run,), daemon=True).start()
        while not run.finished:
            with contextlib.suppress(TimeoutError):
                run.wait(LOOK_SECONDS)
        run.wait(0)

    def _watch_over_cluster(self, run: RunView) -> None:
        """In a thread of its own: a head that does not answer must not keep the run from ending."""
        while not run.finished:
            with contextlib.suppress(Exception):  # its head may be busy: the next time
                context_store(self._plan.name, self._context)
                self._heed_machines()
            time.sleep(LOOK_SECONDS)

    # ---- members that do not answer ----

    def _watch_over_members(self, run: RunView) -> None:
        """Whatever the coordinator does meanwhile; a member that does not answer is replaced, of every role alike."""
        checked = 0.0
        while not self._over:
            time.sleep(BEAT_SECONDS)
            with contextlib.suppress(Exception):  # Ray's head may be busy: the next time
                self._step = int(run.status().step)
                with self._lock:
                    late = self._beats.look(time.monotonic())
                for one in late:
                    self._deal_with(one)
                if time.monotonic() - checked > LOOK_SECONDS:
                    checked = time.monotonic()
                    self._look_at_missing()

    def _deal_with(self, late: LateProcess) -> None:
        who = late.who
        actor = self._actors.get(who)
        place = None if actor is None else state_of(actor).place
        if place is None:  # Ray starts it just now, or has no machine for it: it will register
            with self._lock:
                self._beats.forget(who)
        elif late.overdue:
            boot = self._boots.setdefault(who, 1)  # of one that only a coordinator before this one knew
            self._places[who] = place
            self.replace(who, boot, f"{who.role} {who.number} has not answered for {late.seconds:.0f} s")
        else:
            self._membership.tell(late_sentence(late, self._beats.patience))

    def _look_at_missing(self) -> None:
        """Those that nobody waits for: still starting, frozen before they registered, or never to start again."""
        for who, actor in list(self._actors.items()):
            if self._beats.knows(who) or self._failure is not None:
                continue
            found = state_of(actor)
            if found.state == "dead" and self._actors.get(who) is actor:  # it cannot be imported there, say
                self._failure = f"{who.role} {who.number} cannot be started: {found.cause}"
            elif found.state == "alive":
                self._expect(who, STARTING_SECONDS)

    def _expect(self, who: To, seconds: float) -> None:
        """It is overdue after these seconds, or after the patience if that is longer."""
        with self._lock:
            self._beats.heard(who, time.monotonic() + max(0.0, seconds - self._beats.patience))

    # ---- from members ----

    def context(self) -> Any:
        """With what the coordinator has learned from the data; before that, who asks must ask again."""
        if not self._begun:
            raise RuntimeError("the run has not begun")
        return self._context

    def register(self, who: To, place: Place) -> tuple[int, int, float]:
        """The number of this start, the restarts before it, and the seconds to wait before the work begins."""
        if not self._boot:
            raise RuntimeError("the coordinator is starting")
        self._context.record_start(who.role, who.number)
        self._expect(who, STARTING_SECONDS)
        with self._lock:
            self._boot += 1
            self._places[who], self._boots[who] = place, self._boot
            self._registered_at[who] = time.monotonic()
            self._starts[who] += 1
            restarts, delay = self._budget.started(who), self._budget.delay(who)
            name = f"{who.role} {who.number}"
            if delay:
                self._membership.tell(
                    f"{name} has ended {restarts} times without progress; it starts again in {delay:g} s"
                )
            if restarts >= DEATHS and self._failure is None:
                self._failure = (
                    f"{name} was killed {restarts} times without progress in between, and left no error: is there "
                    "memory enough for it (the kernel's log names who was killed)?"
                )
            return self._boot, self._starts[who] - 1, delay

    def meet(
        self,
        contact: Contact | None,
        place: tuple[int, str],
        sentences: list[str],
        who: To,
        figures: dict[str, float],
    ) -> list[Contact]:
        with self._lock:
            self._beats.heard(who, time.monotonic())
            self._budget.alive(who, who.role != "worker" or figures.get("batches", 0) > 0, self._step)
            self._figures[who] = figures
            if self._membership._contact is not None:
                self._contacts[COORDINATOR] = self._membership._contact
            if contact is not None and contact.boot >= self._boots.get(contact.who, 0):
                self._boots[contact.who] = contact.boot
                self._contacts[contact.who] = contact
                self._places[contact.who] = place  # it may have registered with a coordinator that is gone
            self._membership._sentences.extend(sentences)
            self._pass_on()
            return list(self._contacts.values())

    def _pass_on(self) -> None:
        """What members have to say, to whoever watches the run."""
        if self._run is not None:
            said, self._membership._sentences = self._membership._sentences, []
            self._run.messages.extend(said)

    def ended(self, who: To, boot: int, failure: tuple[str, bool] | None) -> None:
        """A member's work is over, or it cannot do it."""
        if self._boots.get(who) not in (boot, 0):
            return  # another has started in its place meanwhile
        if failure is None:
            self._end(who)
            self._context.record_end(who.role, who.number)
            self._budget.forget(who)  # that was no death
            if who.role == "worker":
                threading.Timer(
                    MEET_SECONDS, self._start_if_wanted, [who]
                ).start()  # it was sent home too early
            return
        sentence, is_users = failure
        times = self._budget.failed(who)
        if is_users or times >= FAILURES:
            again = "" if is_users else f" {times} times, the last time so"
            more = "" if is_users else "; the traceback is in run.log"
            self._failure = f"{who.role} {who.number} failed{again}: {sentence.strip()}{more}"

    def notice(self, who: To) -> None:
        """A member's process was asked to end, by whoever manages its machine."""
        self._heed([who], f"the process of {who.role} {who.number} was asked to end")

    def _heed_machines(self) -> None:
        """Ray knows which are about to be taken away: by `ray drain-node`, or by an autoscaler with spot machines."""
        draining = draining_machines()
        for machine in draining - self._leaving:
            places = {**self._places, self._membership.me: self._membership.place}
            members = sorted(who for who, (_, node) in places.items() if node == machine)
            self._moving |= {who for who in members if who.role == "worker"}
            if members:
                self._heed(members, f"the machine of {len(members)} processes goes away soon")
        if self._leaving - draining:  # they are gone, and Ray has placed anew what was reserved there
            homeless, self._moving = self._moving - self._contacts.keys(), set()
            for who in homeless & self._actors.keys():
                self._end(who)
                self._start_if_wanted(who)
        self._leaving = draining

    # ---- the process manager (`coordinator_process.ProcessManager`) ----

    def heeded_by(self, notice: Callable[[Sequence[To], str], None]) -> None:
        self._heed, self._leaving = notice, set()  # also what was said before anybody listened

    def replaced_to(self, hear: Callable[[To, str], None]) -> None:
        self._replaced = hear

    def rest(self) -> None:
        self._wanted = 0

    def begin(self, context: Any, workers: int) -> None:
        self._context, self._begun = context, True
        for who in self._plan.members[1 : 1 + self._plan.shards]:
            self._start(who)
        self.resize(workers)

    def resize(self, workers: int) -> None:
        """Those who are too many are told by the coordinator that it is over."""
        self._wanted = workers
        for number in range(workers):
            self._start(To("worker", number))

    def _start_if_wanted(self, who: To) -> None:
        if who.number < self._wanted and not self._over:
            self._start(who)

    def _start(self, who: To) -> None:
        if who not in self._actors:
            options = self._plan.options(who) | {"get_if_exists": True}
            if who in self._moving:
                options.pop("scheduling_strategy", None)
            make = ray.remote(ProcessActor).options(**options)
            self._actors[who] = make.remote(self._plan.name, who, self._bodies[who.role])
            with contextlib.suppress(Exception):  # Ray's head may be busy
                if state_of(self._actors[who]).state == "alive":  # started by a coordinator before this one
                    self._expect(who, 0.0)

    def replace(self, who: To, boot: int, reason: str) -> None:
        """The process of that start (0: it never said a word); if another has started meanwhile, it has its time."""
        if boot == 0 and time.monotonic() - self._registered_at.get(who, 0.0) > STARTING_SECONDS:
            boot = self._boots.get(who, 0)
        if (place := self._places.get(who)) and self._boots.get(who) == boot:
            self._boots[who] = 0  # once
            self._membership.tell(f"{reason}; replacing it")
            self._replaced(who, reason)
            threading.Thread(target=end_process, args=place, daemon=True).start()

    def failure(self) -> str | None:
        return self._failure

    def figures(self) -> dict[str, dict[str, float]]:
        with self._lock:
            found = {**self._figures, self._membership.me: self._membership._measure()}
            return {
                f"{who.role}-{who.number}": {**own, "restarts": max(0, self._starts[who] - 1)}
                for who, own in sorted(found.items())
            }

    def step_down(self) -> None:
        os._exit(1)  # Ray has given this process up already, and started another

    def close(self) -> None:
        """Ends all processes, also those of an earlier coordinator. Does not wait for a silent head."""
        self._wanted = 0
        if not self._head_is_silent and not within(END_SECONDS, self._end_all):
            self._head_is_silent = True
            own = self._context is not None and self._context.local is not None
            left = (
                "end with its cluster" if own else "are ended when it answers again, or end with the cluster"
            )
            self._membership.tell(f"Ray's head does not answer; processes of this run that are left {left}")

    def _end_all(self) -> None:
        for who in list(self._actors):
            self._end(who)
        end_members(self._plan)

    def _end(self, who: To) -> None:
        actor = self._actors.pop(who, None)
        with self._lock:
            self._contacts.pop(who, None)
            self._figures.pop(who, None)
            self._beats.forget(who)
        if actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(actor, no_restart=True)
        if place := self._places.get(who):
            threading.Thread(target=end_process, args=place, daemon=True).start()

    # ---- from whoever watches ----

    def watch(self, since: int, start: int) -> dict[str, Any]:
        """Where the run stands, and what it said since the line with this number, if that was said by this `start`."""
        run = self._run
        said: dict[str, Any] = {"over": self._over, "error": self._error, "places": dict(self._places)}
        said["start"] = self._membership.boot if run is not None else 0
        since = since if start == said["start"] else 0
        if run is None:
            return said | {"messages": self._early[since:]}
        with self._lock:
            self._pass_on()
        said |= {"status": run.status(), "messages": list(run.messages[since:])}
        return said | {"header": getattr(run, "header", ()), "figures": self.figures()}

    def ask(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """switch, resize, stop, checkpoint."""
        if self._run is None and method == "stop":
            self._stop_requested = True
            return None
        if self._run is None:
            raise UserError("the run has not begun yet; try again")
        return getattr(self._run, method)(*arguments, **settings)
