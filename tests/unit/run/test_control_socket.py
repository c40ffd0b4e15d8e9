"""A live run asked from outside: who may ask, what it answers, and what is left when it is over."""

from __future__ import annotations

import json
import math
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gearshift as gs
from gearshift.cli import app as cli
from gearshift.engine.ray.connection import Connection
from gearshift.engine.ray.launched_run import LaunchedRun
from gearshift.engine.ray.outcome import LaunchedProcesses
from gearshift.engine.ray.process_context import ProcessContext, ProcessEnvironment
from gearshift.engine.ray.shared_folder import SharedFolder
from gearshift.engine.ray.silence import Loss
from gearshift.errors import UserError
from gearshift.run import control_socket, control_socket_server
from gearshift.run import folder as run_folder
from gearshift.run.attached_run import RemoteRun, attach
from gearshift.run.polling import Watched
from gearshift.run.status import Status
from gearshift.training.requests import Switch


@dataclass
class Fake:
    """A run that does what it is asked."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    header: tuple[str, ...] = ("shop -> runs/shop", "Data   train: 3 files")
    messages: list[str] = field(default_factory=list)

    def status(self) -> Status:
        return Status(812, 410_000, 1_000_000, 10.0, 41_000.0, 0.13, math.nan, None, "training")

    def switch(self, strategy: str, *, reason: str = "", timeout: float = 60.0, **settings: Any) -> Switch:
        if strategy == "faulty":
            raise RuntimeError("broken")
        if strategy == "nothing":
            raise UserError("unknown strategy `nothing`")
        self.asked.append((strategy, settings, reason))
        return Switch(strategy, "sync", 812, 0.44, 8, 0, reason)

    def stop(self, *, give_up: bool = False) -> None:
        self.stopping.set()

    def checkpoint(self) -> None:
        self.asked.append(("checkpoint",))

    def notify(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def folder(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of this process, with its control open."""
    monkeypatch.chdir(tmp_path)
    made = run_folder.create("runs", "shop")
    close = control_socket_server.serve(made, fake)
    yield made
    close()


def raw(folder: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(os.path.realpath(folder / control_socket.SOCKET))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_only_its_user_can_read_the_key_and_reach_the_socket(folder: Path) -> None:
    for name in (control_socket.KEY, control_socket.SOCKET):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert len((folder / control_socket.KEY).read_text()) >= 40


def test_a_remote_run_answers_like_the_run(folder: Path, fake: Fake) -> None:
    remote = attach()
    assert isinstance(remote, RemoteRun) and remote.name == folder.name
    status = remote.status()
    assert status.step == 812 and math.isnan(status.auc_so_far) and status.day is None
    switch = remote.switch("gba", reason="slow worker", max_lag=math.inf)
    assert switch == Switch("gba", "sync", 812, 0.44, 8, 0, "slow worker")
    remote.checkpoint()
    remote.stop()
    assert fake.asked == [("gba", {"max_lag": math.inf}, "slow worker"), ("checkpoint",)]
    assert fake.stopping.is_set() and fake.said[0].startswith("stop requested by another process")


@pytest.mark.parametrize("key", ["", "wrong", None, 5, "\ud800", "ü"])
def test_a_wrong_key_is_refused(folder: Path, fake: Fake, key: Any) -> None:
    answer = json.loads(raw(folder, json.dumps({"key": key, "do": "stop"}).encode() + b"\n"))
    assert answer["error"].startswith("the key is wrong")
    assert not fake.stopping.is_set()


@pytest.mark.parametrize("request_", [b"", b"\n", b"{", b"[1]\n", b"\xff\xfe\n", b"[" * 60_000 + b"\n"])
def test_nonsense_is_refused_and_does_no_harm(folder: Path, request_: bytes) -> None:
    assert b"error" in raw(folder, request_)
    assert attach().status().step == 812


def test_a_request_that_is_too_long_is_cut_off(folder: Path) -> None:
    try:
        answer = raw(folder, b" " * (3 * control_socket.MAX_BYTES) + b"\n")
    except OSError:  # cut off while it was sending
        answer = b""
    assert answer == b"" and attach().status().step == 812


def test_a_slow_asker_is_given_up_and_keeps_nobody_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "READ_SECONDS", 0.3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.settimeout(10)
        slow.connect(str(folder / control_socket.SOCKET))
        slow.sendall(b"{")
        assert attach().status().step == 812
        assert slow.recv(100) == b""


def test_unknown_requests_and_faults_are_answers(folder: Path) -> None:
    with pytest.raises(UserError, match="does not know the request"):
        control_socket.ask(folder, "dance")
    with pytest.raises(UserError, match="unknown strategy `nothing`"):
        attach().switch("nothing")
    with pytest.raises(UserError, match="internal error: RuntimeError: broken"):
        attach().switch("faulty")
    with pytest.raises(UserError, match="strategy gba has no setting `timeout`"):
        control_socket.ask(folder, "switch", strategy="gba", settings={"timeout": 1}, reason="")
    assert cli.run(["switch", "gba", "timeout=1"]) == 2


def test_whoever_watches_hears_each_message_once(folder: Path, fake: Fake) -> None:
    remote = attach()
    assert remote.messages == []
    fake.messages += ["one", "two"]
    assert remote.messages == ["one", "two"]
    fake.messages += ["three"]
    assert remote.messages == ["one", "two", "three"]
    assert attach().messages == ["one", "two", "three"], "whoever comes later hears all"


def test_many_messages_come_in_several_answers(folder: Path, fake: Fake) -> None:
    fake.messages += [f"{i} " + "x" * (control_socket.NEWS // 3) for i in range(10)] + [
        "y" * (2 * control_socket.NEWS),
        "end",
    ]
    watched = Watched(folder)
    for _ in range(12):
        watched.look()
    assert [message[:2] for message in watched.messages] == [*(f"{i} " for i in range(10)), "yy", "en"]
    assert len(watched.messages[-2]) == control_socket.NEWS
    watched = Watched(folder)
    watched.look()
    assert len(watched.messages) == 2


def test_messages_of_a_process_that_started_anew_are_all_new(folder: Path, fake: Fake) -> None:
    watched = Watched(folder)
    fake.messages += ["one", "two"]
    watched.look()
    watched._process += 1  # as if those had been another's
    fake.messages[:] = ["again"]
    watched.look()
    watched.look()
    assert watched.messages == ["one", "two", "again"]


@pytest.mark.parametrize("seen", ["1", None, 1.5])
def test_a_watch_that_makes_no_sense_is_refused(folder: Path, seen: Any) -> None:
    with pytest.raises(UserError, match="does not know the request"):
        control_socket.ask(folder, "watch", seen=seen, process=os.getpid())
    assert control_socket.ask(folder, "watch", seen=-5, process=os.getpid())["messages"] == []


def test_a_remote_run_is_waited_for(folder: Path, fake: Fake) -> None:
    remote = attach()
    with pytest.raises(TimeoutError, match="is not done after 0"):
        remote.wait(0)
    (folder / run_folder.REPORT).write_text('{"auc": 0.7}')
    run_folder.finish(folder, "done")
    assert remote.finished and remote.wait().report == {"auc": 0.7}
    run_folder.finish(folder, "stopped")
    assert remote.wait().report == {}
    run_folder.finish(folder, "failed", "no space left")
    with pytest.raises(UserError, match="failed: no space left"):
        remote.wait()


def test_a_coordinator_that_is_gone_may_come_back(tmp_path: Path) -> None:
    code = (
        "import os, sys; from gearshift.run import folder as run_folder, ownership as lease\n"
        "from gearshift.run import process_identity as run_owner\n"
        "folder = run_folder.create(sys.argv[1], 'shop')\n"
        "lease.LeaseKeeper(folder, lease.held(folder).session, 'driver', run_owner.identity(os.getppid()))\n"
        "run_folder.set_state(folder, 'running'); print(folder)"
    )
    made = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    folder = Path(made.stdout.strip())
    watched = Watched(folder)
    assert watched.ending() is None and run_folder.read(folder).state == "recovering"
    with pytest.raises(control_socket.NotLive, match=r"is recovering since \d\d:\d\d: .*; retry `switch`"):
        control_socket.ask(folder, "switch", strategy="sync", settings={}, reason="")
    (folder / "lease" / "keep-driver.json").unlink()
    ended = watched.ending()
    assert ended is not None and "its process is gone" in ended.reason


def test_nothing_is_left_at_the_end(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run_folder.create("runs", "shop")
    control_socket_server.serve(folder, fake)()
    assert not list(folder.glob("control.*"))
    with pytest.raises(UserError, match=r"accepts no requests: it is starting or shutting down"):
        control_socket.ask(folder, "stop")
    run_folder.finish(folder, "done")
    with pytest.raises(
        UserError, match=r"is not running \(done \d\d:\d\d, exit 0\); `stop` needs a live run"
    ):
        control_socket.ask(folder, "stop")


def test_what_a_killed_run_left_is_replaced(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run_folder.create("runs", "shop")
    old = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old.bind(str(folder / control_socket.SOCKET))
    old.close()  # the file stays, nobody listens
    (folder / control_socket.KEY).write_text("old")
    with pytest.raises(UserError, match="accepts no requests"):
        control_socket.ask(folder, "status")
    close = control_socket_server.serve(folder, fake)
    assert control_socket.ask(folder, "status")["step"] == 812
    close()


def test_a_long_path_has_its_socket_elsewhere(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tempfile.mkdtemp(dir="/tmp")  # a test's own folder may be too long itself
    monkeypatch.setattr(tempfile, "tempdir", short)
    root = tmp_path / ("long" * 30)
    folder = run_folder.create(root, "shop")
    close = control_socket_server.serve(folder, fake)
    target = (folder / control_socket.SOCKET).readlink()
    assert len(str(target)) < 108 and stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    assert attach(folder).status().step == 812
    close()
    assert not target.parent.exists() and not list(folder.glob("control.*"))
    Path(short).rmdir()


def test_a_run_without_a_socket_trains_on(tmp_path: Path, fake: Fake) -> None:
    control_socket_server.serve(tmp_path / "nowhere", fake)()
    assert "will not reach this run" in fake.said[0]


OWNER = """
import sys
from pathlib import Path
from gearshift.run import control_socket_server, folder as run_folder
from tests.unit.run.test_control_socket import Fake
folder = Path(sys.argv[1])
run_folder.claim(folder)
control_socket_server.serve(folder, Fake())
print("served", flush=True)
sys.stdin.readline()
"""


DATA = gs.read(gs.ClickLog(examples=200, days=1))


def trainer(path: Path, epochs: int = 1) -> gs.Trainer:
    return gs.Trainer(global_batch=100, epochs=epochs, checkpoint=gs.CheckpointPolicy(path=path))


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run that another process owns, with its control open."""
    folder = trainer(tmp_path).fit(gs.models.LR(DATA.schema), DATA).folder
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OWNER, str(folder)]
    owner = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=pipe, stdout=pipe, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "served\n"
    yield folder
    assert owner.poll() is None
    owner.communicate("\n", timeout=30)


def test_a_second_owner_that_is_refused_leaves_the_socket_of_the_first(owned: Path) -> None:
    assert attach(owned).status().step == 812
    with pytest.raises(UserError, match=r"is still running \(process \d+\)"):
        trainer(owned.parent, epochs=2).start(gs.models.LR(DATA.schema), DATA, resume=owned)
    assert attach(owned).status().step == 812


def test_a_starter_whose_run_was_taken_over_leaves_the_socket_of_the_new_owner(owned: Path) -> None:
    """Its Ray died; somebody has resumed the run before it noticed."""
    nothing: Any = None
    context = ProcessContext(
        nothing, SharedFolder(owned, "of before"), ProcessEnvironment(str(owned)), Connection("ipc", "")
    )
    ray = SimpleNamespace(CoordinatorWatchdog=lambda *_: None, end=lambda *_: None, leave=lambda: None)
    run = LaunchedRun(LaunchedProcesses(context, ray, None, None), None)
    run._outcome.lose(Loss("the Ray cluster of this run died"))
    assert attach(owned).status().step == 812
    assert run_folder.read(owned).is_live and "died" not in (owned / "run.log").read_text()


def test_switch_says_one_sentence(folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.run(["switch", "shop", "gba", "max_lag=4", "decay=cut", "divisor=none", "--reason", "slow"]) == 0
    )
    assert capsys.readouterr().out == (
        f"switched {folder.name} from sync to gba after step 812 in 0.4 s; "
        "8 batches in flight carried over, none lost\n"
    )
    assert cli.run(["switch", "async"]) == 0
    assert fake.asked == [("gba", {"max_lag": 4, "decay": "cut", "divisor": None}, "slow"), ("async", {}, "")]
    assert cli.run(["switch", "a", "b", "c"]) == 2
    assert "name a run and a strategy" in capsys.readouterr().err
    assert cli.run(["checkpoint"]) == 0
    assert "saves a checkpoint" in capsys.readouterr().out


def test_stop_waits_until_the_run_is_saved(
    folder: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    def end() -> None:
        fake.stopping.wait(10)
        time.sleep(0.2)
        run_folder.finish(folder, "stopped")

    ending = threading.Thread(target=end)
    ending.start()
    assert cli.run(["stop", "last"]) == 0
    ending.join()
    assert (
        capsys.readouterr().out
        == f"stopped {folder.name}; saved. Resume: gearshift train --resume {folder}\n"
    )
    assert cli.run(["stop"]) == 2
    assert "is not running (stopped" in capsys.readouterr().err
