"""The actor of the coordinator. It lives from the start of its process until all watchers have received the outcome of
the run.

It contains the run, and the supervisor of the other processes (supervisor.py). These processes, and those that watch
the run, call its methods through Ray.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import ray

from gearshift.embedding.table_tier import close_tiers
from gearshift.engine.protocol.messages import COORDINATOR, To
from gearshift.engine.ray.actors.context_store import context_store_of, end_members, leave_place
from gearshift.engine.ray.actors.nodes import (
    STARTING_SECONDS,
    Place,
    state_of,
    take_title,
    this_host,
    this_place,
    token_is_on,
    with_retries,
)
from gearshift.engine.ray.actors.placement import ProcessPlacement
from gearshift.engine.ray.actors.process import STARTS, RayMembership
from gearshift.engine.ray.actors.process_table import ProcessTable
from gearshift.engine.ray.actors.relays import RelayWatch
from gearshift.engine.ray.actors.supervisor import Bodies, Supervisor, end_in_time
from gearshift.engine.ray.actors.watch import LOOK_SECONDS, MachineWatch, ProcessWatch
from gearshift.engine.ray.process_context import ProcessContext
from gearshift.engine.wire.keys import Contact
from gearshift.errors import UserError, brief, warn_through
from gearshift.run.retry import retry
from gearshift.run.run_handle import RunHandle
from gearshift.training.training import Training

FAREWELL_SECONDS = 60.0  # how long the coordinator stays alive after the end of the run


class RunView(RunHandle, Protocol):
    """The run in the coordinator. Messages of other processes are added to its messages."""

    @property
    def messages(self) -> list[str]: ...
    @property
    def training(self) -> Training: ...


class CoordinatorActor:
    def __init__(
        self,
        plan: ProcessPlacement,
        begin: Callable[[RayMembership, ProcessContext, Supervisor], RunView],
        bodies: Bodies,
    ) -> None:
        """Does nothing that can fail: Ray does not restart an actor whose constructor raises."""
        self._plan, self._begin, self._bodies = plan, begin, bodies
        self._context: ProcessContext | None = None  # None until it is received
        self._supervisor: Supervisor | None = None  # None until this is the coordinator
        self._run: RunView | None = None  # None until the run has begun
        self._error: tuple[str, bool] | None = None
        self._over = self._stop_requested = False
        self._early: list[str] = []  # messages for the user from before the run
        self._sentences: list[str] = []  # for the user, not passed on to the run yet
        self._said_by: dict[str, To] = {}  # who said a sentence first
        self._passing_on = threading.Lock()
        threading.Thread(target=self._live, name="gearshift", daemon=True).start()

    def _live(self) -> None:
        try:
            take_title("coordinator")
            warn_through(lambda sentence: self._hear(COORDINATOR, [sentence]))
            supervisor = self._supervisor = self._enter()
            context = supervisor.newest_context
            self._run = context.folder.with_retries(
                lambda: self._begin(supervisor.membership, context, supervisor),
                self._early.append,
                lambda: self._stop_requested,
            )
            self._follow(self._run, supervisor)
        except UserError as error:
            if self._context is not None and self._context.folder.is_replaced() and self._supervisor:
                self._supervisor.step_down()
            self._error = str(error), True
        except BaseException as error:
            self._error = brief(error), False
            with contextlib.suppress(Exception):
                if self._context is not None:
                    self._context.records.log(f"coordinator: {traceback.format_exc()}")
        self._end()

    def _enter(self) -> Supervisor:
        """Gets the context of the run, and records in its folder that this is the coordinator now."""
        context: ProcessContext = with_retries(
            lambda: context_store_of(self._plan.name).give.remote(), STARTING_SECONDS
        )
        self._context = context
        me = ray.get_runtime_context().current_actor
        state = retry(lambda: state_of(me), STARTING_SECONDS, lambda error: True)  # Ray's head may be busy
        place, restarted = this_place(), state.restarts > 0
        start = context.folder.with_retries(
            lambda: context.records.new_start(*place, restarted),
            self._early.append,
            lambda: self._stop_requested,
        )
        table = ProcessTable(context.connection.settings.patience, start * STARTS, context.records.starts())
        membership = RayMembership(
            COORDINATOR, start * STARTS, this_host(), place, restarted, table.contacts, self._sentences
        )
        return Supervisor(self._plan, self._bodies, context, table, membership)

    def _follow(self, run: RunView, supervisor: Supervisor) -> None:
        """Follows the run until it has ended; raises its error."""
        if not token_is_on():
            self._sentences.append(
                "Ray's token authentication is off: everyone who can connect to this cluster can run code on it. "
                "Start it with RAY_AUTH_MODE=token (docs/security.md)"
            )
        if self._stop_requested:
            run.stop()
        processes = ProcessWatch(supervisor)
        machines = MachineWatch(self._plan, supervisor)
        is_over = lambda: self._over  # noqa: E731
        threading.Thread(target=processes.watch, args=(run, is_over), daemon=True).start()
        threading.Thread(target=machines.watch, args=(run,), daemon=True).start()
        relays = RelayWatch(supervisor, supervisor.newest_context.connection.settings.two_levels)
        threading.Thread(target=relays.watch, args=(is_over,), daemon=True).start()
        while not run.finished:
            with contextlib.suppress(TimeoutError):
                run.wait(LOOK_SECONDS)
        run.wait(0)

    def _end(self) -> None:
        """Ends the run, the other processes and this one, in this order."""
        context = self._context
        close_tiers()  # now, because a watcher may kill this process
        with contextlib.suppress(Exception):
            if self._supervisor is not None:
                self._supervisor.close()
            else:  # processes of an earlier coordinator
                is_local = context is not None and context.local is not None
                end_in_time(lambda: end_members(self._plan), self._sentences.append, is_local=is_local)
        if context is not None:
            with contextlib.suppress(Exception):
                if self._run is None and self._error is not None:
                    context.records.record_failure(self._error[0])
            with contextlib.suppress(Exception):
                context.over()
        if self._run is None:
            self._early += self._sentences
        self._over = True  # a watcher may end this process now
        time.sleep(FAREWELL_SECONDS)  # watchers may still ask how the run ended
        leave_place(self._plan)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    # ---- from other processes ----

    def context(self) -> ProcessContext:
        """The context with what the coordinator has fitted to the data. Raises before that; the caller retries."""
        return self._entered().context()

    def register(self, who: To, place: Place) -> tuple[int, int, float]:
        """The number of this start, the restarts before it, and the seconds to wait before the work begins."""
        registration = self._entered().register(who, place)
        return registration.boot, registration.starts_before, registration.delay

    def meet(
        self,
        contact: Contact | None,
        place: Place,
        sentences: list[str],
        who: To,
        figures: dict[str, float],
    ) -> list[Contact]:
        """A heartbeat of a process with its address; returns the contacts of the others."""
        self._hear(who, sentences)
        if (supervisor := self._supervisor) is None:
            return []  # it will send another heartbeat
        supervisor.table.heard(who, place, contact, figures)
        self._pass_on()
        return supervisor.table.contacts_for(who, place, supervisor.membership.contact)

    def ended(self, who: To, boot: int, failure: tuple[str, bool] | None) -> None:
        """The work of a process is over, or it has failed."""
        if self._supervisor is not None:  # otherwise this coordinator has not started it
            self._supervisor.ended(who, boot, failure)

    def notice(self, who: To) -> None:
        """A process was asked to terminate, for example by the service manager of its machine."""
        reason = f"{who.role} {who.number} was asked to terminate"
        if self._supervisor is not None:
            self._supervisor.listener.leaving([who], reason)

    def _entered(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError("the coordinator is starting")
        return self._supervisor

    def _hear(self, who: To, sentences: list[str]) -> None:
        """What several processes say word for word is said once."""
        self._sentences.extend(one for one in sentences if self._said_by.setdefault(one, who) == who)

    def _pass_on(self) -> None:
        """Passes messages of other processes on to the run."""
        if self._run is not None and self._supervisor is not None:
            with self._passing_on:
                self._run.messages.extend(self._supervisor.membership.take_sentences())

    # ---- from watchers ----

    def watch(self, since: int, start: int) -> dict[str, Any]:
        """The status of the run, and its messages after the first `since`, if those came from this `start`."""
        run, supervisor = self._run, self._supervisor
        places = dict(supervisor.table.places) if supervisor else {}
        answer: dict[str, Any] = {"over": self._over, "error": self._error, "places": places}
        answer["start"] = supervisor.membership.boot if run is not None and supervisor is not None else 0
        since = since if start == answer["start"] else 0
        if run is None or supervisor is None:
            return answer | {"messages": self._early[since:]}
        self._pass_on()
        answer |= {"status": run.status(), "messages": list(run.messages[since:])}
        answer["plain_warning"] = run.training.accounts.plain_warning
        return answer | {"header": run.header, "figures": supervisor.figures()}

    def ask(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """Calls a method of the run: switch, resize, stop or checkpoint."""
        if self._run is None and method == "stop":
            self._stop_requested = True
            return None
        if self._run is None:
            raise UserError("the run has not started yet; try again")
        return getattr(self._run, method)(*arguments, **settings)
