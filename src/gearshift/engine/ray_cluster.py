"""Processes on a Ray cluster: Ray places them, starts them, and starts them anew. Nothing else imports Ray.

One actor is the hub, in which the coordinator runs; the others hear from it who else is there. All of them are
detached: they outlive whoever started the run. Every actor begins its work by itself when its process starts, so one
that Ray has started anew needs nobody to tell it. What passes through Ray is where a process listens and its public
key; rows, gradients and everything about the training go over the wire.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from gearshift.engine.roles.messages import To
from gearshift.engine.wire.keys import Contact
from gearshift.errors import UserError

NAMESPACE = "gearshift"
HEAD = {"node:__internal_head__": 0.001}  # a resource that only the machine of Ray's head has
MEET_SECONDS = 1.0  # between two looks at who is there
ANSWER_SECONDS = 20.0  # for a question to the hub
STARTING_SECONDS = 60.0  # in which a process that has just started may be silent
REACH_SECONDS = 10.0  # in which Ray's head must take a connection
PLACE_SECONDS = 60.0  # in which a first process must be there
LOOK_SECONDS = 5.0  # between two looks of the hub at what is not a member: the keeper, the machines
NOTICE_SECONDS = 8.0  # that a process that was asked to end has for it
FAREWELL_SECONDS = 60.0  # that the hub stays when the run has ended
STARTS = 1 << 20  # of members, that one start of the hub has numbers for
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


@dataclass(frozen=True)
class Needs:
    """What one process of a role takes of its machine."""

    cpus: float = 1.0
    gpus: float = 0.0

    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus, "GPU": self.gpus} if self.gpus else {"CPU": self.cpus}


@dataclass(frozen=True)
class Plan:
    """What is to be started, and where."""

    name: str  # of the run; no other live one has it
    needs: dict[str, Needs]  # by role
    shards: int
    workers: int
    spread: bool = False  # over machines, rather than together
    group: PlacementGroup | None = None

    @property
    def members(self) -> list[To]:
        """All that are there from the beginning; the place in this list is that of its bundle."""
        shards = [To("shard", i) for i in range(self.shards)]
        return [To("coordinator"), *shards, *(To("worker", i) for i in range(self.workers))]

    def options(self, who: To) -> dict[str, Any]:
        needs = self.needs[who.role]
        found: dict[str, Any] = {
            "name": actor_name(self.name, who),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": needs.cpus,
            "num_gpus": needs.gpus,
        }
        if self.group is not None and who in self.members:
            place = self.members.index(who)
            found["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self.group, place)
        return found


def actor_name(run: str, who: To) -> str:
    return f"{run}/{who.role}-{who.number}"


# ---- in every process ----


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
        place = _this_place()
        boot = _patiently(lambda: hub.register.remote(self._who, place))
        self._site = _patiently(lambda: hub.site.remote())
        seat = Seat(self._who, boot, _this_host(), place)
        threading.Thread(target=self._keep_in_touch, args=(hub, seat), daemon=True).start()
        failure: tuple[str, bool] | None = None
        try:
            self._body(seat, self._site)
        except UserError as error:
            failure = str(error), True
        except BaseException:
            failure = traceback.format_exc(), False
        with contextlib.suppress(Exception):
            _patiently(lambda: hub.ended.remote(self._who, boot, failure))
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


def _patiently(ask: Callable[[], Any]) -> Any:
    """The hub may be starting anew itself."""
    while True:
        try:
            return ray.get(ask(), timeout=ANSWER_SECONDS)
        except RayError:
            time.sleep(MEET_SECONDS)


def end_process(pid: int, node: str) -> None:
    """At once, also if it is frozen; by a task on its own machine."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    with contextlib.suppress(RayError):
        task = ray.remote(_kill).options(num_cpus=0, scheduling_strategy=here, max_retries=0)
        ray.get(task.remote(pid), timeout=ANSWER_SECONDS)


def draining_machines() -> set[str]:
    """The nodes that Ray has been told will be gone; it has no public word for it, and may lose this one."""
    return set(getattr(ray._private.state.state, "get_draining_nodes", dict)())


def token_is_on() -> bool:
    """Whether Ray refuses those without its token."""
    return bool(is_token_auth_enabled())


def _this_host() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def _this_place() -> tuple[int, str]:
    return os.getpid(), ray.get_runtime_context().get_node_id()


def _cpus(of: Callable[[], dict[str, float]]) -> float:
    return of().get("CPU", 0)


def _lately(times: list[float]) -> list[float]:
    return [at for at in times if times[-1] - at < WELL_SECONDS]


def _kill(pid: int) -> None:
    """If it is still one of Ray's: numbers are used again."""
    title = Path(f"/proc/{pid}/cmdline")
    with contextlib.suppress(OSError):
        if not Path("/proc").is_dir() or title.read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)


# ---- the hub ----


class Keeper:
    """Holds what the run is made of, for the hub and all that start anew.

    It may be large (a table in memory), and Ray forgets large arguments of an actor before it starts it again.
    """

    def __init__(self, site: Any) -> None:
        self._site = site

    def give(self) -> Any:
        return self._site


def keeper_of(run: str) -> Any:
    return ray.get_actor(f"{run}/keeper", namespace=NAMESPACE)


def keep(run: str, site: Any) -> Any:
    """The keeper of this run, which is started if it is not there."""
    with contextlib.suppress(ValueError):
        return keeper_of(run)
    options: dict[str, Any] = {"name": f"{run}/keeper", "namespace": NAMESPACE, "lifetime": "detached"}
    options |= {"num_cpus": 0, "resources": HEAD}  # any other machine may be lost, and the run goes on
    return ray.remote(Keeper).options(**options).remote(site)


class Hub:
    """The actor of the coordinator. It is also the staff that starts, replaces and ends the others."""

    def __init__(
        self,
        plan: Plan,
        begin: Callable[[Seat, Any, Hub], Running],
        bodies: dict[str, Callable[[Any, Any], None]],
    ) -> None:
        self._plan, self._begin, self._bodies = plan, begin, bodies
        self._site: Any = _patiently(lambda: keeper_of(plan.name).give.remote())
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
        place = _this_place()
        first: int = self._site.new_start(*place) * STARTS
        self._boot: int = first
        self._starts[To("coordinator")] = 1 + self._site.restarts()
        self._seat = Seat(To("coordinator"), first, _this_host(), place)
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


# ---- from where a run is started ----


def connect(address: str) -> None:
    """To a cluster that is there."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints a paragraph for every process that dies; the run says in a sentence what it does about it.
    setattr(ray._private.worker, "listen_error_messages", lambda *_: None)  # noqa: B010
    host, _, port = address.rpartition(":")
    if ray.is_initialized():
        raise UserError(
            "this process is connected to Ray already: wait for the run that it started, or start this one from "
            "another process"
        )
    try:
        if port.isdigit() and "//" not in host:  # Ray itself asks for minutes at an address where nobody is
            socket.create_connection((host, int(port)), REACH_SECONDS).close()
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise UserError(
            f"cannot reach Ray at {address} ({str(error).splitlines()[0]}). Is the head up (`ray status`)? "
            "For a cluster on this machine: cluster.address=local"
        ) from None


def reserve(plan: Plan, seconds: float) -> PlacementGroup:
    """Room for all processes of the plan, or a sentence that says what is missing."""
    bundles = [plan.needs[who.role].bundle() for who in plan.members]
    strategy = "SPREAD" if plan.spread else "PACK"
    group: PlacementGroup = placement_group(bundles, strategy=strategy, name=plan.name, lifetime="detached")
    try:
        ready, _ = ray.wait([group.ready()], timeout=seconds)
    except BaseException:  # Ctrl-C, say
        remove_placement_group(group)
        raise
    if not ready:
        remove_placement_group(group)
        wanted = sum(bundle["CPU"] for bundle in bundles)
        there, free = _cpus(ray.cluster_resources), _cpus(ray.available_resources)
        raise UserError(
            f"the run asks {wanted:g} CPUs ({len(bundles)} processes); the Ray cluster has {there:g}, {free:g} of them "
            "free. Wait for others to end, or lower cluster.workers, cluster.shards or cluster.resources"
        )
    return group


def refuse_several_machines(plan: Plan) -> None:
    """Of those who want to talk inside one."""
    placed = set(placement_group_table(plan.group)["bundles_to_node_id"].values())
    hosts = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in placed})  # type: ignore[no-untyped-call]
    if len(hosts) > 1:
        raise UserError(
            f"cluster.wire is ipc, which is for one machine, and Ray placed the run on {len(hosts)} "
            f"({', '.join(hosts)}); set cluster.wire=curve, or leave it out"
        )


def launch(
    plan: Plan,
    begin: Callable[[Any, Any, Any], Running],
    bodies: dict[str, Callable[[Any, Any], None]],
    site: Any,
) -> Any:
    """Starts the hub, which starts the others; its handle."""
    options = plan.options(To("coordinator")) | {"max_concurrency": 64}
    try:
        ray.get(keep(plan.name, site).give.remote(), timeout=PLACE_SECONDS)
        return ray.remote(Hub).options(**options).remote(plan, begin, bodies)
    except TypeError as error:  # what pickle says of what it cannot take along
        cause = error.__cause__ or error
        raise UserError(
            f"the run cannot be taken to other processes: {cause}. Models, losses and data must be of classes that "
            "can be imported there and pickled; a config always can"
        ) from None


def answer(reference: Any, seconds: float = ANSWER_SECONDS, silence: Any = None) -> Any:
    """What an actor says, or `silence` if it does not: it is starting anew, or Ray is gone."""
    try:
        return ray.get(reference, timeout=seconds)
    except RayError as error:
        cause = getattr(error, "cause", None)  # what was raised there, without Ray's account of where
        if isinstance(cause, UserError | TimeoutError):
            raise cause from None
        return silence


def end(hub: Any, plan: Plan) -> None:
    with contextlib.suppress(RayError):
        ray.kill(hub, no_restart=True)
    leave_place(plan)


def leave_place(plan: Plan) -> None:
    """What was reserved is free again; whatever still runs there ends."""
    with contextlib.suppress(Exception):
        ray.kill(keeper_of(plan.name), no_restart=True)
    if plan.group is not None:
        with contextlib.suppress(Exception):
            remove_placement_group(plan.group)


def leave() -> None:
    ray.shutdown()


def answers() -> bool:
    """Whether Ray's head takes connections. Not asked by Ray, which would wait for it."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError:
        return False
    return True
