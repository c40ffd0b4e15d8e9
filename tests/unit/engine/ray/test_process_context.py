"""The run's folder must be one that all machines of a run see."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gearshift.engine.protocol.messages import To
from gearshift.engine.ray import shared_folder as sites
from gearshift.engine.ray import snapshots
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.coordinator_process import coordinate
from gearshift.engine.ray.process_context import ProcessContext, ProcessEnvironment
from gearshift.engine.ray.saver import FolderSnapshotStore
from gearshift.engine.ray.shard_process import serve
from gearshift.engine.ray.shared_folder import SharedFolder, write_state
from gearshift.engine.ray.worker_process import work
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint, CheckpointFolder
from gearshift.run import folder as run_folder
from gearshift.run import ownership, ownership_files
from tests.small_disk import small_disk

NOBODY: Any = None  # whom a process that sees no folder never comes to ask
NEW: Any = SimpleNamespace(restarted=False)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "SHARED_SECONDS", 0.0)


def site_in(folder: Path, token: str = "0123", seconds: float = sites.FOLDER_SECONDS) -> ProcessContext:
    environment, connection = ProcessEnvironment(str(folder)), Connection("ipc", str(folder / "s"))
    return ProcessContext(NOBODY, SharedFolder(folder, token, seconds), environment, connection)


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "the folder of another run"])
def test_who_does_not_see_the_folder_ends_the_run_with_a_sentence(tmp_path: Path, there: str) -> None:
    folder = tmp_path / "runs" / "shop"
    if there != "nothing":
        folder.mkdir(parents=True)
    if there == "the folder of another run":
        write_state(folder, token="4567")
    context = site_in(folder)
    assert context.records.new_start(1, "node", restarted=False) == 1
    for process in (serve, work):
        with pytest.raises(
            UserError, match=rf"does not see the run's folder {folder}, .* set checkpoint.path"
        ):
            process(NEW, context)
    with pytest.raises(UserError, match="does not see the run's folder"):
        coordinate(NEW, context, NOBODY)


def test_who_sees_it_goes_on(tmp_path: Path) -> None:
    write_state(tmp_path, token="0123")
    context = site_in(tmp_path)
    context.enter()
    assert (
        context.records.new_start(7, "node", False) == 1 and context.records.new_start(8, "node", True) == 2
    )
    assert context.records.restarts() == 1
    write_state(tmp_path, starts_before=2)  # as when it is resumed
    assert context.records.new_start(9, "node", False) == 3 and context.records.restarts() == 0
    context.enter()


def test_who_lost_the_run_to_another_session_says_so_and_writes_nothing(tmp_path: Path) -> None:
    """A coordinator that Ray restarts after somebody has resumed its run elsewhere."""
    (tmp_path / "checkpoints").mkdir()
    run_folder.claim(tmp_path)
    write_state(tmp_path, token=run_folder.hand_over(tmp_path))
    before = (tmp_path / sites.STATE).read_text()
    context = site_in(tmp_path)
    context.records.new_start(7, "node", restarted=False)
    for process in (serve, work):
        with pytest.raises(ownership.Fenced, match=r"was taken over by process \d+ on .* \(lease 1\)"):
            process(NEW, context)
    with pytest.raises(ownership.Fenced, match="was taken over"):
        coordinate(NEW, context, NOBODY)
    assert (tmp_path / sites.STATE).read_text() == before
    run_folder.finish(tmp_path, "done")


def test_a_fenced_coordinator_leaves_the_processes_to_the_one_of_its_session(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    mine = run_folder.claim(tmp_path)
    context = site_in(tmp_path, mine.session)
    assert not context.folder.is_replaced()
    claims = tmp_path / ownership_files.FOLDER
    ownership_files.link_claim(claims, mine.fence + 1, mine.session, 0.0)  # as a restarted coordinator does
    assert context.folder.is_replaced()
    ownership_files.link_claim(claims, mine.fence + 2, "another", 0.0)
    assert not context.folder.is_replaced()


def test_starts_are_counted_beyond_the_coordinator(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    context = site_in(tmp_path, run_folder.claim(tmp_path).session)
    for _ in range(3):
        context.records.record_start("worker", 1)
    context.records.record_start("worker", 0)
    context.records.record_end("worker", 0)
    context.records.record_start("worker", 0)
    assert context.records.starts() == {To("worker", 1): 3, To("worker", 0): 1}
    run_folder.finish(tmp_path, "done")


def test_a_coordinator_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    """Cut off and given up, it may come back to a folder in which another goes on."""
    (tmp_path / "checkpoints").mkdir()
    mine = run_folder.claim(tmp_path)
    context = site_in(tmp_path, mine.session)
    snapshot_store = FolderSnapshotStore(context.folder, NOBODY, NOBODY, lambda path, write: write(), NOBODY)
    assert snapshot_store.new_incarnation() == 1
    ownership_files.link_claim(tmp_path / ownership_files.FOLDER, mine.fence + 1, mine.session, 0.0)
    before = (tmp_path / sites.STATE).read_text()
    for write in (snapshot_store.new_incarnation, lambda: snapshot_store.commit(1, "step-3-1", {})):
        with pytest.raises(ownership.Fenced, match="was taken over"):
            write()
    assert (tmp_path / sites.STATE).read_text() == before and context.folder.is_replaced()


def test_a_coordinator_that_restarts_after_a_resume_on_threads_notes_nothing(tmp_path: Path) -> None:
    """Such a run has no token of its own in cluster.json: the lease alone tells whose the folder is."""
    (tmp_path / "checkpoints").mkdir()
    write_state(tmp_path, token="0123", start=1)
    run_folder.claim(tmp_path)
    before = (tmp_path / sites.STATE).read_text()
    context = site_in(tmp_path)
    context.records.new_start(7, "node", restarted=True)
    assert (tmp_path / sites.STATE).read_text() == before
    with pytest.raises(ownership.Fenced, match="was taken over"):
        context.enter(restarted=True)
    run_folder.finish(tmp_path, "done")


def test_a_coordinator_that_restarts_waits_for_its_folder(tmp_path: Path) -> None:
    folder, said = tmp_path / "runs" / "shop", list[str]()
    context = site_in(folder, seconds=20.0)

    def start() -> int:
        if said:  # somebody reads it and puts the folder back
            folder.mkdir(parents=True, exist_ok=True)
            write_state(folder, token="0123", start=4)
        return context.records.new_start(1, "node", True)

    assert context.folder.with_retries(start, said.append) == 5
    problem = f"the coordinator cannot write in {folder} (the run's folder is gone)"
    assert said == [f"{problem}; it tries again for 20 s, then the run ends"]


@pytest.mark.parametrize(
    ("number", "named"),
    [(errno.ENOSPC, False), (errno.EROFS, False), (errno.EIO, True), (errno.ESTALE, True)],
)
def test_a_folder_that_stays_unwritable_ends_in_one_sentence(
    tmp_path: Path, number: int, named: bool
) -> None:
    def write() -> None:
        raise OSError(number, os.strerror(number), *([str(tmp_path / "cluster.json")] if named else []))

    context, said = site_in(tmp_path, seconds=0.5), list[str]()
    expected = (
        rf"could not write in {tmp_path} for 0\.\d s \({os.strerror(number)}\)\. .* --resume {tmp_path}$"
    )
    with pytest.raises(UserError, match=expected):
        context.folder.with_retries(write, said.append)
    assert len(said) == 1


def test_a_run_that_is_asked_to_stop_waits_for_its_folder_no_longer(tmp_path: Path) -> None:
    asked = list[str]()

    def write() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    context = site_in(tmp_path, seconds=10_000.0)
    with pytest.raises(UserError, match=r"\(Read-only file system\) and was asked to stop\. .* --resume"):
        context.folder.with_retries(write, asked.append, lambda: bool(asked))


def refused_by_a_socket() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        socket.create_connection(nobody_listens.getsockname(), 1)


def bad_block_of_a_data_file() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))  # as a read has it: without a name


def full_disk_elsewhere() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/elsewhere/cache")


@pytest.mark.parametrize(
    ("do", "error"),
    [
        (Path("data.csv").read_text, FileNotFoundError),
        (refused_by_a_socket, ConnectionRefusedError),
        (bad_block_of_a_data_file, OSError),
        (full_disk_elsewhere, OSError),
        (lambda: 1 // 0, ZeroDivisionError),
    ],
)
def test_what_is_not_of_the_run_folder_is_raised_at_once_as_itself(
    tmp_path: Path, do: Callable[[], object], error: type[Exception]
) -> None:
    """Data that are not there will not come, and the folder is not to blame."""
    context = site_in(tmp_path / "run", seconds=60.0)
    with pytest.raises(error) as raised:
        context.folder.with_retries(do, NOBODY)
    assert type(raised.value) is error


def test_writes_in_the_run_folder_name_it_on_a_full_disk(tmp_path: Path) -> None:
    """The system names no file when there is no space for its content."""
    with small_disk(tmp_path / "disk") as disk:
        folder = disk.path / "run"
        (folder / "lease").mkdir(parents=True)
        disk.fill()
        for write in (
            lambda: write_state(folder, token="x" * 100_000),
            lambda: ownership_files.write_whole(folder / "lease" / "keep-a.json", {"session": "x" * 100_000}),
        ):
            with pytest.raises(OSError, match="No space left") as raised:
                write()
            assert str(raised.value.filename).startswith(str(folder))


def test_a_disk_full_of_a_copied_checkpoint_is_of_the_folder_that_it_goes_to(tmp_path: Path) -> None:
    """A run that branches off another one's checkpoint has a copy of it, if the disk is another."""
    source = tmp_path / "step-3"
    source.mkdir()
    (source / "manifest.json").write_text("x" * 100_000)
    with small_disk(tmp_path / "disk") as disk:
        context = site_in(disk.path, seconds=0.3)
        disk.fill()
        said: list[str] = []
        with pytest.raises(UserError, match=f"could not write in {disk.path}"):
            context.folder.with_retries(lambda: CheckpointFolder(disk.path, 3).take_over(source), said.append)
        disk.free()
        here = CheckpointFolder(disk.path, 3).take_over(source)
        assert [file.name for file in here.iterdir()] == ["manifest.json"]


def snapshot_store_of(
    context: ProcessContext, last: Path, stopped: Callable[[], bool], said: list[str]
) -> FolderSnapshotStore:
    saver: Any = SimpleNamespace(last=last)
    made = type("Asked", (SimpleNamespace,), {"stop_requested": property(lambda self: stopped())})
    observer: Any = made(notify=said.append)
    return FolderSnapshotStore(context.folder, NOBODY, saver, NOBODY, observer)


def test_a_rewind_that_waits_for_its_folder_ends_when_the_run_is_asked_to_stop(tmp_path: Path) -> None:
    """The checkpoint is away with its folder: that is no checkpoint that is damaged."""
    site, said = site_in(tmp_path / "run", seconds=10_000.0), list[str]()
    vault = snapshot_store_of(site, site.folder.path / "checkpoints" / "step-3", lambda: bool(said), said)
    with pytest.raises(UserError, match=r"\(the run's folder is gone\) and was asked to stop"):
        vault.newest()


@pytest.mark.parametrize("read", ["checkpoint", "part"])
def test_a_file_of_tensors_that_is_away_is_of_the_run_folder(tmp_path: Path, read: str) -> None:
    """safetensors says so without a number and a name."""
    site, said = site_in(tmp_path, seconds=0.3), list[str]()
    saved = Checkpoint(tmp_path / "checkpoints" / "step-3", {}, ())
    part = tmp_path / "checkpoints" / ".step-3-1.part" / "dense-s0.safetensors"
    with pytest.raises(UserError, match=rf"could not write in {tmp_path} .*\(No such file or directory\)"):
        site.folder.with_retries(
            lambda: saved.arrays("dense") if read == "checkpoint" else dict(snapshots._arrays(part)),
            said.append,
        )
    assert len(said) == 1
