"""What dead runs left behind is found and removed; what live ones use stays."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gearshift.cli import app as cli
from gearshift.embedding import cold_tier
from gearshift.engine.ray.end_session import end_session
from gearshift.run import control_socket, leftovers, temporary_folders
from gearshift.run import folder as run_folder

DEAD = (
    "import sys; from pathlib import Path\n"
    "from gearshift.run import folder as run_folder, temporary_folders as temporary\n"
    "folder = run_folder.create('runs', sys.argv[1]); run_folder.set_state(folder, 'running')\n"
    "print(folder, temporary.make('gs-', folder), flush=True)\n"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of its own: those of this machine are none of this test's business."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.fixture
def started() -> Iterator[Any]:
    made: list[subprocess.Popen[str]] = []

    def start(name: str, then: str = "") -> tuple[subprocess.Popen[str], Path, Path]:
        command = [sys.executable, "-c", DEAD + then, name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        made.append(process)
        assert process.stdout is not None
        folder, temporary_folder = process.stdout.readline().split()
        return process, Path(folder), Path(temporary_folder)

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_what_a_dead_run_left_goes_and_what_others_have_stays(
    place: Path, started: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    dead, folder, sockets = started("dead")
    dead.wait()
    checkpoints = folder / "checkpoints"
    for name in (".step-9.77.part", ".step-8-2.part", "step-5"):
        (checkpoints / name).mkdir()
    (folder / control_socket.KEY).write_text("key")
    (folder / ".report.json.77").write_text("{")
    _, alive, used = started("alive", "sys.stdin.readline()")
    (alive / "checkpoints" / ".step-1.5.part").mkdir()
    for name in ("gs-12345678", "gs-mine", "other-12345678"):  # of an older version; and of others altogether
        (place / name).mkdir(mode=0o700)
        os.utime(place / name, (time.time() - 3600,) * 2)
    young = Path(tempfile.mkdtemp(prefix="gs-"))
    assert cli.run(["clean", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("would remove") == 5 and sockets.exists() and (folder / control_socket.KEY).exists()
    assert cli.run(["clean"]) == 0
    said = capsys.readouterr().out
    assert f"removed {sockets}   (temporary folder of run {folder.name}, which has ended)" in said
    assert "partially written: .step-" in said and "socket of a dead run" in said
    assert not sockets.exists() and not (folder / control_socket.KEY).exists()
    assert [path.name for path in checkpoints.iterdir()] == ["step-5"]
    assert not (place / "gs-12345678").exists()
    assert (
        used.exists()
        and young.exists()
        and (place / "gs-mine").exists()
        and (place / "other-12345678").exists()
    )
    assert (alive / "checkpoints" / ".step-1.5.part").exists()
    assert cli.run(["clean"]) == 0
    assert capsys.readouterr().out == "nothing to clean up\n"


def test_a_cluster_is_ended_once_its_run_is_over_and_not_before(
    started: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its starter is gone: while the run goes on without it, so does the cluster."""
    cluster = (
        "import subprocess, os\n"
        "made = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "temporary.mark(sys.argv[2] if len(sys.argv) > 2 else next(Path(os.environ['TMPDIR']).glob('gs-*')), folder,"
        " leader=made.pid)\n"
        "from gearshift.run import ownership as lease, process_identity as run_owner\n"
        "lease.LeaseKeeper(folder, lease.held(folder).session, 'ray', run_owner.identity(made.pid))\n"
    )
    starter, folder, place = started("ray", cluster)
    starter.wait()
    marked = temporary_folders.mark_of(place)
    assert marked is not None and marked.leader is not None and marked.run == folder.resolve()
    pid = marked.leader["pid"]
    try:
        assert run_folder.read(folder).state == "recovering"
        assert list(leftovers.find("runs", end_session=end_session)) == []
        Path("runs").rename("unmounted")  # the share is away for a while
        leftovers.clear("runs", end_session=end_session)
        assert cli.run(["clean"]) == 0
        said = capsys.readouterr().out
        assert f"left alone {place}   (Ray cluster (process {pid}) of run {folder.name}: " in said
        assert place.exists() and Path(f"/proc/{pid}").exists() and not _is_zombie(pid)
        Path("unmounted").rename("runs")
        (folder / "lease" / "keep-ray.json").unlink()  # nobody restarts it any more
        (found,) = leftovers.find("runs", end_session=end_session)
        assert f"Ray cluster (process {pid})" in found.what
        leftovers.clear("runs", end_session=end_session)  # as the next start does
        assert (not place.exists() and not Path(f"/proc/{pid}").exists()) or _is_zombie(pid)
    finally:
        end_session(pid, place)


def test_rows_on_disk_of_dead_processes_go_and_those_of_live_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cold_tier, "LOCAL", tmp_path / "var")
    set_in_config = run_folder.create("runs", "clicks") / run_folder.CONFIG
    set_in_config.write_text("storage: {path: elsewhere}")
    dead = [place / "rows-1" for place in (Path("runs/.rows"), Path("elsewhere"), cold_tier.machine_folder())]
    for folder in dead:
        folder.mkdir(parents=True)
        (folder / "lock").touch()
        (folder / "rows-0-0.gsr").touch()
    alive = cold_tier.TierFolder(Path("runs/.rows"))  # reclaims the first
    assert not dead[0].exists()
    assert cli.run(["clean", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("rows on disk of a process that is gone") == 2
    assert cli.run(["clean"]) == 0
    assert not any(folder.exists() for folder in dead) and alive.path.exists()
    alive.close()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_private_run_is_for_its_user_alone(tmp_path: Path) -> None:
    folder = run_folder.create("runs", "secret", private=True)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    open_to_all = run_folder.create("runs", "open")
    assert stat.S_IMODE(open_to_all.stat().st_mode) == 0o777 & ~_umask()
    for made in (folder, open_to_all):
        run_folder.finish(made, "done")


def test_a_private_run_of_the_command_line_writes_private_files(tmp_path: Path) -> None:
    config = (
        "name: secret\ndata: {synthetic: {examples: 1000, days: 1}}\nmodel: {name: lr}\n"
        "train: {baseline: false}\ncheckpoint: {private: true}\n"
    )
    Path("a.yaml").write_text(config)
    before = _umask()
    try:
        assert cli.run(["train", "a.yaml"]) == 0
    finally:
        os.umask(before)
    folder = Path("runs/last").resolve()
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
        if not path.is_symlink()
    }
    assert len(modes) > 8 and not [path for path, mode in modes.items() if mode & 0o077]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_rows_of_killed_processes_go_with_the_cluster_of_their_run(place: Path) -> None:
    """Its starter removes them, where the run may have some."""
    run = run_folder.create("runs", "on-ray")
    storage = place / "storage"
    (run / run_folder.CONFIG).write_text(f"storage: {{path: {storage}}}\n")
    live = cold_tier.TierFolder(storage)
    left = [Path("runs/.rows/rows-a"), storage / "rows-b"]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / cold_tier.LOCK).touch()
        (folder / "rows-0-0.gsr").touch()
    leftovers.remove_rows(run)
    assert not any(folder.exists() for folder in left) and live.path.exists()
    live.close()
    run_folder.finish(run, "done")
