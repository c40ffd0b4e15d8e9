"""The actor in which the coordinator runs: it starts, replaces and ends the others, and tells them where all are."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from gearshift.engine.ray_cluster.keeper import keep, keeper_of, leave_place
from gearshift.engine.ray_cluster.machines import (
    MEET_SECONDS,
    STARTING_SECONDS,
    draining_machines,
    end_process,
    patiently,
    this_host,
    this_place,
    token_is_on,
)
from gearshift.engine.ray_cluster.member import STARTS, Process, Seat
from gearshift.engine.ray_cluster.plan import Plan
from gearshift.engine.roles.messages import To
from gearshift.engine.wire.keys import Contact
from gearshift.errors import UserError

LOOK_SECONDS = 5.0  # between two looks of the hub at what is not a member: the keeper, the machines
FAREWELL_SECONDS = 60.0  # that the hub stays when the run has ended
FAILURES = 3  # of one member, one after the other, that end the run
WELL_SECONDS = 120.0  # a member that worked so long has not failed again, but anew
DEATHS = 8  # of one member in that time, without a word, that end the run


class Running(Protocol):
    """What the hub lets others see of the run in it."""

    @property
    def finished(self) -> bool: ...
    @property
    def messages(self) -> list[str]: ...
    def status(self) -> Any: ...
    def stop(self) -> None: ...
    def wait(self, timeout: float) -> Any:
        """For its end, and raises what went wrong; `TimeoutError` when the time is over first."""


class Hub:
    """The actor of the coordinator. It is also the staff that starts, replaces and ends the others."""

    def __init__(
        self,
        plan: Plan,
        begin: Callable[[Seat, Any, Hub], Running],
        bodies: dict[str, Callable[[Any, Any], None]],
    ) -> None:
        self._plan, self._begin, self._bodies = plan, begin, bodies
        self._site: Any = patiently(lambda: keeper_of(plan.name).give.remote())
        self._lock = threading.Lock()
        self._contacts: dict[To, Contact] = {}
        self._places: dict[To, tuple[int, str]] = {}  # pid and node
        self._boots: dict[To, int] = {}
        self._wanted = 0  # workers
        self._starts: Counter[To] = Counter()
        self._figures: dict[To, dict[str, float]] = {}
        self._actors: dict[To, Any] = {}
        self._failures: dict[To, list[float]] = {}
        self._started_at: dict[To, list[float]] = {}  # lately
        self._failure: str | None = None
        self._error: tuple[str, bool] | None = None
        self._over = self._begun = self._stop_asked = False
        self._heed: Callable[[Sequence[To], str], None] = lambda members, reason: None
        self._leaving: set[str] = set()  # machines
        self._moving: set[To] = set()  # workers that shall not start again where a place is reserved for them
        self._run: Running | None = None
        place = this_place()
        first: int = self._site.new_start(*place) * STARTS
        self._boot: int = first
        self._starts.update({**self._site.starts(), To("coordinator"): 1 + self._site.restarts()})
        self._seat = Seat(To("coordinator"), first, this_host(), place)
        threading.Thread(target=self._live, name="gearshift", daemon=True).start()

    def _live(self) -> None:
        if not token_is_on():
            self._seat.tell(
                "Ray's token authentication is off: whoever reaches this cluster can run code on it. Start it with "
                "RAY_AUTH_MODE=token (docs/security.md)"
            )
        try:
            self._seat._known = self._contacts
            self._run = self._begin(self._seat, self._site, self)
            if self._stop_asked:
                self._run.stop()
            while not self._run.finished:
                with contextlib.suppress(RayError, RuntimeError):  # its head may be busy
                    keep(self._plan.name, self._site)
                    self._heed_machines()
                with contextlib.suppress(TimeoutError):
                    self._run.wait(LOOK_SECONDS)
            self._run.wait(0)
        except UserError as error:
            self._error = str(error), True
        except BaseException:
            self._error = traceback.format_exc(), False
        with contextlib.suppress(Exception):
            self.close()
        self._site.over()
        self._over = True  # whoever watches may end this process now
        time.sleep(FAREWELL_SECONDS)  # whoever watches may still ask how it ended
        leave_place(self._plan)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    # ---- from members ----

    def site(self) -> Any:
        """With what the coordinator has learned from the data; before that, who asks must ask again."""
        if not self._begun:
            raise RuntimeError("the run has not begun")
        return self._site

    def register(self, who: To, place: tuple[int, str]) -> int:
        with self._lock:
            self._boot += 1
            self._places[who] = place
            self._boots[who] = self._boot
            self._starts[who] += 1
            self._site.record_start(who.role, who.number)
            self._started_at[who] = _lately([*self._started_at.get(who, ()), time.monotonic()])
            if len(self._started_at[who]) > DEATHS and self._failure is None:
                self._failure = (
                    f"{who.role} {who.number} was killed {DEATHS} times in {WELL_SECONDS:g} s, each time without a "
                    "word of its own: is there memory enough for it (the kernel's log names who was killed)?"
                )
            return self._boot

    def meet(
        self,
        contact: Contact | None,
        place: tuple[int, str],
        sentences: list[str],
        who: To,
        figures: dict[str, float],
    ) -> list[Contact]:
        with self._lock:
            self._figures[who] = figures
            if self._seat._contact is not None:
                self._contacts[To("coordinator")] = self._seat._contact
            if contact is not None and contact.boot >= self._boots.get(contact.who, 0):
                self._boots[contact.who] = contact.boot
                self._contacts[contact.who] = contact
                self._places[contact.who] = place  # it may have registered with a hub that is gone
            self._seat._sentences.extend(sentences)
            self._pass_on()
            return list(self._contacts.values())

    def _pass_on(self) -> None:
        """What members have to say, to whoever watches the run."""
        if self._run is not None:
            said, self._seat._sentences = self._seat._sentences, []
            self._run.messages.extend(said)

    def ended(self, who: To, boot: int, failure: tuple[str, bool] | None) -> None:
        """A member's work is over, or it cannot do it."""
        if self._boots.get(who) not in (boot, 0):
            return  # another has started in its place meanwhile
        if failure is None:
            self._end(who)
            self._site.record_end(who.role, who.number)
            self._started_at.pop(who, None)  # that was no death
            if who.role == "worker":
                threading.Timer(
                    MEET_SECONDS, self._start_if_wanted, [who]
                ).start()  # it was sent home too early
            return
        sentence, is_users = failure
        times = self._failures[who] = _lately([*self._failures.get(who, ()), time.monotonic()])
        if is_users or len(times) >= FAILURES:
            name = f"{who.role} {who.number}"
            again = "" if is_users else f" {len(times)} times, the last time so"
            self._failure = f"{name} failed{again}: {sentence.strip()}"

    def notice(self, who: To) -> None:
        """A member's process was asked to end, by whoever manages its machine."""
        self._heed([who], f"the process of {who.role} {who.number} was asked to end")

    def _heed_machines(self) -> None:
        """Ray knows which are about to be taken away: by `ray drain-node`, or by an autoscaler with spot machines."""
        draining = draining_machines()
        for machine in draining - self._leaving:
            places = {**self._places, self._seat.me: self._seat.place}
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

    # ---- the staff (`cluster.coordinate.Staff`) ----

    def heeded_by(self, notice: Callable[[Sequence[To], str], None]) -> None:
        self._heed, self._leaving = notice, set()  # also what was said before anybody listened

    def rest(self) -> None:
        self._wanted = 0

    def begin(self, site: Any, workers: int) -> None:
        self._site, self._begun = site, True
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
            make = ray.remote(Process).options(**options)
            self._actors[who] = make.remote(self._plan.name, who, self._bodies[who.role])

    def replace(self, who: To, boot: int, reason: str) -> None:
        """The process of that start (0: it never said a word); if another has started meanwhile, it has its time."""
        if boot == 0 and time.monotonic() - self._started_at.get(who, [0.0])[-1] > STARTING_SECONDS:
            boot = self._boots.get(who, 0)
        if (place := self._places.get(who)) and self._boots[who] == boot:
            self._boots[who] = 0  # once
            self._seat.tell(f"{reason}: it is started anew")
            threading.Thread(target=end_process, args=place, daemon=True).start()

    def failure(self) -> str | None:
        return self._failure

    def figures(self) -> dict[str, dict[str, float]]:
        with self._lock:
            found = {**self._figures, self._seat.me: self._seat._measure()}
            return {
                f"{who.role}-{who.number}": {**own, "restarts": max(0, self._starts[who] - 1)}
                for who, own in sorted(found.items())
            }

    def step_down(self) -> None:
        os._exit(1)  # Ray has given this process up already, and started another

    def close(self) -> None:
        self._wanted = 0
        for who in list(self._actors):
            self._end(who)

    def _end(self, who: To) -> None:
        actor = self._actors.pop(who, None)
        with self._lock:
            self._contacts.pop(who, None)
            self._figures.pop(who, None)
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
        said["start"] = self._seat.boot
        since = since if start == self._seat.boot else 0
        if run is not None:
            with self._lock:
                self._pass_on()
            said |= {"status": run.status(), "messages": list(run.messages[since:])}
            said |= {"header": getattr(run, "header", ()), "figures": self.figures()}
        return said

    def ask(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """switch, resize, stop, checkpoint."""
        if self._run is None and method == "stop":
            self._stop_asked = True
            return None
        if self._run is None:
            raise UserError("the run has not begun yet; try again")
        return getattr(self._run, method)(*arguments, **settings)


def _lately(times: list[float]) -> list[float]:
    return [at for at in times if times[-1] - at < WELL_SECONDS]
