"""A process whose run was taken over writes nothing more into the run's folder, whichever file it is."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import gearshift as gs
from gearshift.engine.ray.saver import ClusterSaver
from gearshift.engine.ray.shared_folder import SharedFolder, write_state
from gearshift.engine.ray.snapshots import ShardSnapshot
from gearshift.run import control_socket, control_socket_server, ownership, ownership_files
from gearshift.run import folder as run_folder
from gearshift.run import log as run_log
from gearshift.run.event_log import EventLog, Head
from gearshift.run.folder import append_metrics, set_state, write_config, write_json
from gearshift.run.saver import Saver
from tests.unit.run.test_control_socket import Fake

DATA = gs.read(gs.ClickLog(examples=2_000, days=1))


def taken_over(folder: Path) -> None:
    """As by a `--resume` on another machine, while this process was frozen."""
    owner = ownership.current(folder)
    assert owner is not None
    assert ownership_files.link_claim(
        folder / ownership_files.FOLDER, owner.fence + 1, secrets.token_hex(8), 0.0
    )


def content(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def prune(folder: Path) -> None:
    Saver(folder / "checkpoints", 1, print).prune()


def take_over(folder: Path) -> None:
    other = folder.parent / "step-3"
    other.mkdir(exist_ok=True)
    (other / "manifest.json").write_text("{}")
    Saver(folder / "checkpoints", 1, print).take_over(other, 3)


def save(folder: Path) -> None:
    saver = Saver(folder / "checkpoints", 1, print)
    saver.save(3, {"step": 3}, {}, (), best=True)
    saver.wait()


def log_events(folder: Path) -> None:
    log = EventLog(folder, print, check=lambda: ownership.check(folder))
    log.begin(Head("sync", {}))
    log.close()


def write_part(folder: Path) -> None:
    """By a shard, which holds no lease: it looks whose session the lease is."""
    mine = ownership.held(folder)
    assert mine is not None
    shared = SharedFolder(folder, mine.session)
    ShardSnapshot(0, {}, (), ()).write(folder / "checkpoints" / ".step-3-1.part", shared.check_not_taken)


def discard_part(folder: Path) -> None:
    ClusterSaver(folder / "checkpoints", 1, print).could_not("step-3-1", "the disk is full")


WRITERS: dict[str, Callable[[Path], object]] = {
    "run.json": lambda folder: set_state(folder, "saving"),
    "run.json, at the end": lambda folder: run_folder.finish(folder, "done"),
    "config.yaml": lambda folder: write_config(folder, SimpleNamespace(to_yaml=lambda: "a: 1"), "train"),
    "report.json": lambda folder: write_json(folder / "report.json", {"auc": 0.7}),
    "bad_lines.txt": lambda folder: run_folder.write_text(folder / "bad_lines.txt", "3"),
    "metrics.jsonl": lambda folder: append_metrics(folder, {"step": 3}),
    "cluster.json": lambda folder: write_state(folder, incarnation=3),
    "run.log": lambda folder: run_log.write(folder, "a late word"),
    "faults.jsonl": lambda folder: run_log.record(folder, run_log.Fault("lost", "shard")),
    "events": log_events,
    "control.sock": lambda folder: control_socket_server.ControlServer(folder, Fake()),
    "checkpoints/step-3": save,
    "checkpoints/last": lambda folder: Saver(folder / "checkpoints", 1, print).link("last", Path("step-3")),
    "checkpoints of another run": take_over,
    "checkpoints that are too many": prune,
    "part of a checkpoint": write_part,
    "part of a checkpoint that failed": discard_part,
}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], None]]:
    made: list[control_socket_server.ControlServer] = []

    def do(folder: Path) -> None:
        done = WRITERS[request.param](folder)
        made.extend([done] if isinstance(done, control_socket_server.ControlServer) else [])

    yield do
    for server in made:
        server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With what writers replace or remove."""
    folder = run_folder.create(tmp_path, "shop")
    for name in ("step-0", "step-1", "step-2", ".step-3-1.part"):
        (folder / "checkpoints" / name).mkdir()
    return folder


def test_an_owner_writes(folder: Path, write: Callable[[Path], None]) -> None:
    before = content(folder)
    write(folder)
    assert content(folder) != before


def test_who_was_replaced_neither_writes_nor_removes(folder: Path, write: Callable[[Path], None]) -> None:
    taken_over(folder)
    before = content(folder)
    with suppress(ownership.Fenced):
        write(folder)
    assert content(folder) == before


class TakenOver(gs.Callback):
    """At step 5 the run becomes another's; from then on its folder must stay as it is."""

    before: dict[Path, bytes | None]

    def on_step(self, run: gs.Run) -> None:
        if run.training.step == 5:
            run.parts.saving.saver.wait()
            taken_over(run.folder)
            run.parts.events.write()  # a write that was under way is done, and from now on there is none
            self.before = content(run.folder)
            mine = ownership.held(run.folder)
            assert mine is not None
            mine.lost = ""  # as if its heartbeat had not noticed yet


def test_a_run_that_was_taken_over_writes_nothing(tmp_path: Path) -> None:
    seen = TakenOver()
    policy = gs.CheckpointPolicy(gs.Every(steps=2), keep=1, path=tmp_path)
    trainer = gs.Trainer(global_batch=100, checkpoint=policy)
    model = gs.models.DNN(DATA.schema, dim=2, hidden=[4])
    run = trainer.start(model, DATA, callbacks=[seen], name="shop")
    with pytest.raises(ownership.Fenced, match="this process has stopped and writes nothing more"):
        run.wait(60)
    own = {
        run.folder / control_socket.SOCKET,
        run.folder / control_socket.KEY,
    }  # nobody else has made his own yet
    after = content(run.folder)
    assert {path: text for path, text in seen.before.items() if path not in own} == after
    assert run_folder.read(run.folder).ended is None
