"""The actor of the coordinator with stand-ins for Ray: how it starts, retries, watches the cluster and steps down."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayError

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray.actors import coordinator as coordinator_actor
from gearshift.engine.ray.actors import supervisor, watch
from gearshift.engine.ray.actors.coordinator import CoordinatorActor
from gearshift.engine.ray.actors.nodes import ActorState
from gearshift.engine.ray.actors.placement import ProcessPlacement
from gearshift.engine.ray.actors.process_table import ProcessTable
from gearshift.engine.ray.actors.supervisor import Supervisor
from gearshift.engine.ray.actors.watch import MachineWatch
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.process_context import ProcessContext, ProcessEnvironment, Recipe
from gearshift.engine.ray.process_records import ProcessRecords
from gearshift.engine.ray.shared_folder import SharedFolder
from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import ownership, ownership_files

Begin = Callable[[Any, Any, Any], Any]


class World:
    """What the coordinator asks of Ray, and what it did to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.did = folder, list[str]()
        self.coordinators, self.threads = list[CoordinatorActor](), set(threading.enumerate())
        self.warned: list[Callable[[str], None]] = []  # through whom
        mine = run_folder.claim(folder)
        self.context = ProcessContext(
            cast(Recipe, None),
            SharedFolder(folder, mine.session, 20.0),
            ProcessEnvironment(str(folder)),
            Connection("ipc", ""),
        )
        self.left = threading.Event()
        self.busy = 0  # answers that Ray's head does not give yet
        here = SimpleNamespace(current_actor="me", get_node_id=lambda: "node")
        ray = SimpleNamespace(get_runtime_context=lambda: here, kill=lambda *_, **__: self.end("killed"))
        for name, stand_in in {
            "ray": ray,
            "take_title": lambda *_: None,
            "warn_through": self.warned.append,
            "with_retries": lambda *_: self.context,
            "state_of": self.state_of,
            "this_place": lambda: (7, "node"),
            "this_host": lambda: "127.0.0.1",
            "token_is_on": lambda: True,
            "draining_machines": set,
            "context_store": lambda *_: None,
            "end_members": lambda plan: self.did.append("members ended"),
            "leave_place": lambda plan: self.did.append("place left"),
            "os": SimpleNamespace(_exit=self.exit),
            "FAREWELL_SECONDS": 0.0,
        }.items():
            homes = [m for m in (coordinator_actor, supervisor, watch) if hasattr(m, name)]
            assert homes, name
            for home in homes:
                monkeypatch.setattr(home, name, stand_in)

    def state_of(self, actor: object) -> ActorState:
        self.busy -= 1
        if self.busy >= 0:
            raise RayError("the head is busy")
        return ActorState("alive", (7, "node"))

    def end(self, how: str) -> None:
        self.did.append(how)
        self.left.set()

    def exit(self, code: int) -> None:
        self.end(f"exit {code}")
        threading.Event().wait()  # a process that has ended does nothing more

    def live(self, begin: Begin) -> CoordinatorActor:
        """A coordinator that has lived to its end."""
        coordinator = CoordinatorActor(ProcessPlacement("run", {}, 1, 1), begin, {})
        self.coordinators.append(coordinator)
        assert self.left.wait(30), self.did
        return coordinator

    def close(self) -> None:
        """Ends the threads of the coordinators. Without the stand-ins they would start a real Ray in this process."""
        for coordinator in self.coordinators:
            coordinator._over = True
            if coordinator._run is not None:
                cast(Any, coordinator._run).finished = True
        for thread in set(threading.enumerate()) - self.threads:
            if thread.name.endswith("(watch)"):
                thread.join(30)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "checkpoints").mkdir()
    world = World(tmp_path, monkeypatch)
    yield world
    world.close()


def done(*_: object) -> Any:
    return SimpleNamespace(finished=True, messages=[], wait=lambda seconds: None, stop=lambda: None)


ENDED = ["members ended", "place left", "killed"]


def test_a_hub_waits_for_a_head_that_is_busy_when_it_starts(world: World) -> None:
    world.busy = 3
    coordinator = world.live(done)
    assert world.busy < 0 and coordinator._error is None and world.did == ENDED


def test_a_hub_waits_for_a_folder_that_cannot_be_written_when_it_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, real = [0], ProcessRecords.new_start

    def new_start(records: ProcessRecords, *where: Any) -> int:
        tries[0] += 1
        if tries[0] < 3:
            raise OSError(errno.EROFS, "Read-only file system", str(records.folder.path / "cluster.json"))
        return real(records, *where)

    monkeypatch.setattr(ProcessRecords, "new_start", new_start)
    coordinator = world.live(done)
    assert tries == [3] and coordinator._error is None and coordinator._entered().membership.start == 1
    assert f"the coordinator cannot write in {world.folder} (Read-only file system)" in coordinator._early[0]


def test_a_run_that_cannot_begin_for_now_is_begun_again(world: World) -> None:
    tries = [0]

    def begin(*_: object) -> Any:
        tries[0] += 1
        if tries[0] < 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(world.folder / "run.json"))
        return done()

    assert world.live(begin)._error is None and tries == [2]


def test_a_folder_that_stays_away_ends_the_run_with_a_sentence(world: World) -> None:
    """The constructor has returned long before: Ray would give up an actor whose constructor raises."""
    world.context = replace(world.context, folder=replace(world.context.folder, seconds=0.3))

    def begin(*_: object) -> Any:
        raise OSError(errno.EIO, "Input/output error", str(world.folder / "run.json"))

    began = time.monotonic()
    coordinator = world.live(begin)
    assert time.monotonic() - began < 20 and coordinator.watch(0, 0)["over"]
    sentence, is_users = cast(tuple[str, bool], coordinator._error)
    assert is_users and f"could not write in {world.folder} for 0.3 s" in sentence
    assert world.did == ENDED
    assert run_folder.read(world.folder).reason == sentence


def fenced_by(world: World, session: str) -> Begin:
    """A coordinator that was frozen in its work; when it comes back, this session has the run."""

    def come_back(seconds: float) -> None:
        mine = ownership.held(world.folder)
        assert mine is not None
        ownership_files.link_claim(world.folder / ownership_files.FOLDER, mine.fence + 1, session, 0.0)
        mine.check()

    run = SimpleNamespace(finished=False, messages=[], wait=come_back, status=lambda: SimpleNamespace(step=1))
    return lambda *_: run


def test_a_coordinator_that_was_replaced_steps_down_and_ends_nothing(world: World) -> None:
    """Members, place and cluster are those of its successor now."""
    before = (world.folder / "run.json").read_text()
    coordinator = world.live(fenced_by(world, world.context.folder.token))
    assert world.did == ["exit 1"]
    assert coordinator._error is None and not coordinator._over
    assert (world.folder / "run.json").read_text() == before


def test_a_coordinator_whose_run_another_session_has_ends_its_own_members(world: World) -> None:
    """They are not those of the new owner, who has started others."""
    before = (world.folder / "run.json").read_text()
    coordinator = world.live(fenced_by(world, "another"))
    assert world.did == ENDED
    assert coordinator._error is not None and "was taken over" in coordinator._error[0]
    assert (world.folder / "run.json").read_text() == before


def test_a_failure_of_the_run_is_no_reason_to_step_down(world: World) -> None:
    def begin(*_: object) -> Any:
        raise UserError("no such column")

    assert world.live(begin)._error == ("no such column", True) and world.did == ENDED


def test_an_error_of_any_kind_does_not_end_the_watch_over_the_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would notice that machines are drained."""
    looks, ended = list[int](), threading.Event()

    def context_store(*_: object) -> None:
        looks.append(1)
        if len(looks) == 1:
            raise TypeError("an answer of another version of Ray")
        ended.set()

    monkeypatch.setattr(watch, "context_store", context_store)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    plan, nobody = ProcessPlacement("run", {}, 1, 1), cast(Any, None)
    machines = MachineWatch(plan, Supervisor(plan, {}, world.context, ProcessTable(30.0, 0, {}), nobody))
    run: Any = type("Watched", (), {"finished": property(lambda self: ended.is_set())})()
    threading.Thread(target=machines.watch, args=(run,), daemon=True).start()
    assert ended.wait(20), "the thread has ended"


def test_what_several_processes_say_word_for_word_is_said_once(world: World) -> None:
    """Every shard is warned of the same storage.path. A process may repeat itself."""
    coordinator = CoordinatorActor(ProcessPlacement("run", {}, 2, 1), done, {})
    world.coordinators.append(coordinator)
    assert world.left.wait(30)
    for shard, sentence in ((0, "in memory"), (1, "in memory"), (0, "a stranger"), (0, "a stranger")):
        coordinator.meet(None, (7, "node"), [sentence], To("shard", shard), {})
    world.warned[0]("in memory")
    assert coordinator._run is not None
    said = [*coordinator._run.messages, *coordinator._sentences]
    assert said == ["in memory", "a stranger", "a stranger"]


def test_what_a_coordinator_is_warned_of_before_it_fails_is_heard(world: World) -> None:
    """Ray discards its stderr."""

    def begin(*_: object) -> Any:
        world.warned[0]("7,212 is read as 7212")
        raise UserError("line 3 is no number")

    coordinator = world.live(begin)
    assert coordinator.watch(0, 0)["messages"] == ["7,212 is read as 7212"]
    assert coordinator._error == ("line 3 is no number", True)
