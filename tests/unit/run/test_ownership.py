"""Who owns a run, with real processes: killed, frozen, and on another machine as far as they know."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.errors import UserError
from gearshift.run import folder as run_folder
from gearshift.run import ownership, ownership_files, process_identity
from gearshift.run.state import Watcher

FAST = (
    "from gearshift.run import ownership as lease, folder as run_folder, log as run_log\n"
    "lease.BEAT_SECONDS, lease.LAPSE_SECONDS = 0.1, 1.0\n"
)
OWNER = FAST + (
    "import sys, time; from pathlib import Path\n"
    "folder = Path(sys.argv[1])\n"
    "run_folder.claim(folder, command='gearshift train a.yaml'); run_folder.set_state(folder, 'running')\n"
    "print('mine', flush=True)\n"
    "sys.stdin.readline()\n"
    "for write in (lambda: run_folder.append_metrics(folder, {'step': 7}),\n"
    "              lambda: run_folder.set_state(folder, 'saving'),\n"
    "              lambda: run_folder.finish(folder, 'done'),\n"
    "              lambda: run_log.write(folder, 'a late word')):\n"
    "    try: write(); print('wrote', flush=True)\n"
    "    except lease.Fenced as error: print(error, flush=True)\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(ownership, "LAPSE_SECONDS", 1.0)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.fixture
def started() -> Iterator[Any]:
    made: list[subprocess.Popen[str]] = []

    def start(folder: Path, code: str = OWNER, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


def owns(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None and process.stdout.readline() == "mine\n"


def test_a_live_owner_on_another_machine_is_not_displaced(folder: Path, started: Any) -> None:
    process = started(folder, **{process_identity.MACHINE: "elsewhere"})
    owns(process)
    told: list[str] = []
    with pytest.raises(
        UserError, match=rf"still running on .* \(process {process.pid}, its heartbeat is still advancing\)"
    ):
        run_folder.claim(folder, notify=told.append)
    assert told and "still runs on" in told[0]
    assert ownership.current(folder).fence == 1  # type: ignore[union-attr]


def test_a_dead_owner_on_another_machine_is_replaced_once_its_heartbeat_has_stopped(
    folder: Path, started: Any
) -> None:
    process = started(folder, **{process_identity.MACHINE: "elsewhere"})
    owns(process)
    process.kill()
    process.wait()
    began = time.monotonic()
    mine = run_folder.claim(folder)
    assert time.monotonic() - began >= ownership.LAPSE_SECONDS
    assert mine.fence == 2
    run_folder.finish(folder, "done")


def test_a_container_with_the_same_host_name_is_another_machine(folder: Path, started: Any) -> None:
    """Its pid 1 is not our pid 1, whatever /proc says here."""
    process = started(folder, **{process_identity.MACHINE: "elsewhere"})
    owns(process)
    claim = folder / "lease" / "1.json"
    said = json.loads(claim.read_text())
    assert said["process"]["host"] == process_identity.this_process()["host"]
    assert process_identity.lives(said["process"]) is None
    with pytest.raises(UserError, match="still running"):
        run_folder.claim(folder)


def test_a_frozen_owner_of_another_machine_wakes_up_and_writes_nothing(folder: Path, started: Any) -> None:
    """It looks before it writes: its next heartbeat, which would tell it too, comes a minute later."""
    process = started(folder, OWNER.replace("= 0.1,", "= 60.0,"), **{process_identity.MACHINE: "elsewhere"})
    owns(process)
    os.kill(process.pid, signal.SIGSTOP)
    run_folder.claim(folder, command="gearshift train --resume last")
    run_folder.set_state(folder, "running")
    before = {path: path.read_text() for path in folder.iterdir() if path.is_file()}
    os.kill(process.pid, signal.SIGCONT)
    said, _ = process.communicate("go\n", timeout=60)
    first, second, *rest = said.splitlines()
    assert first == second
    assert first.startswith(f"run {folder.name} was taken over by process {os.getpid()} on ")
    assert "(lease 2; this process had 1)" in first and first.endswith("writes nothing more")
    assert rest == ["wrote", "wrote"]  # finish and the log stay silent
    assert {path: path.read_text() for path in folder.iterdir() if path.is_file()} == before
    assert run_folder.read(folder).state == "running"
    run_folder.finish(folder, "done")


def test_a_frozen_owner_of_this_machine_is_named(folder: Path, started: Any) -> None:
    process = started(folder)
    owns(process)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(
        UserError, match=rf"is suspended, not dead: .*kill -CONT {process.pid}.*kill -9 {process.pid}"
    ):
        run_folder.claim(folder)


def test_a_dead_owner_here_is_replaced_at_once_unless_its_session_lives_on(
    folder: Path, started: Any
) -> None:
    process = started(folder)
    owns(process)
    owner = ownership.current(folder)
    assert owner is not None
    keeper = ownership.LeaseKeeper(folder, owner.session, "shard-0")
    process.kill()
    process.wait()
    record = run_folder.read(folder)
    assert record.state == "recovering" and not record.standing.answers
    assert f"its owner, process {process.pid}, died" in record.standing.what
    assert record.standing.since is not None
    with pytest.raises(
        UserError, match=r"is recovering: .* is being restarted by other processes of the run; wait"
    ):
        run_folder.claim(folder)
    restarted = ownership.claim(folder, session=owner.session)
    assert (restarted.fence, restarted.session) == (2, owner.session)
    assert restarted.seconds >= restarted.fence - 2  # counts on
    restarted.release()
    keeper.close()
    assert run_folder.claim(folder).session != owner.session
    run_folder.finish(folder, "stopped")


def test_keepers_of_other_machines_keep_it_by_their_heartbeat(folder: Path, started: Any) -> None:
    process = started(folder)
    owns(process)
    owner = ownership.current(folder)
    assert owner is not None
    keep = FAST + (
        f"import sys; from pathlib import Path; lease.LeaseKeeper(Path(sys.argv[1]), {owner.session!r}, 'shard-0')\n"
        "print('mine', flush=True); sys.stdin.readline()"
    )
    keeper = started(folder, keep, **{process_identity.MACHINE: "elsewhere"})
    owns(keeper)
    process.kill()
    process.wait()
    assert run_folder.read(folder).state == "recovering"
    with pytest.raises(UserError, match="is recovering"):
        run_folder.claim(folder)
    keeper.kill()
    keeper.wait()
    assert run_folder.claim(folder).fence == 2
    run_folder.finish(folder, "stopped")


def test_a_watcher_learns_from_heartbeats_how_a_run_elsewhere_is(folder: Path, started: Any) -> None:
    from gearshift.run.state import Watcher

    process = started(folder, **{process_identity.MACHINE: "elsewhere"})
    owns(process)
    watcher = Watcher(folder)

    def seen_until(state: str) -> run_folder.RunRecord:
        until = time.monotonic() + 30
        while (record := run_folder.read(folder).seen_by(watcher)).state != state:
            assert time.monotonic() < until
            time.sleep(0.05)
        return record

    assert run_folder.read(folder).state == "unknown"
    assert seen_until("running").reason.startswith("on ")
    process.kill()
    process.wait()
    assert "no heartbeat for" in seen_until("failed").reason


def test_the_starter_takes_a_run_back_from_a_coordinator_that_is_gone(folder: Path, started: Any) -> None:
    run_folder.claim(folder)
    session = run_folder.hand_over(folder)
    process = started(folder, OWNER.replace("claim(folder,", f"claim(folder, session={session!r},"))
    owns(process)
    assert ownership.current(folder).fence == 2  # type: ignore[union-attr]
    process.kill()
    process.wait()
    run_folder.finish_for_session(folder, "failed", "Ray is gone")
    record = run_folder.read(folder)
    assert (record.state, record.reason) == ("failed", "Ray is gone")
    run_folder.claim(folder)
    run_folder.finish(folder, "stopped")


def test_a_starter_whose_run_was_taken_over_by_others_does_not_touch_it(folder: Path, started: Any) -> None:
    run_folder.claim(folder)
    mine = ownership.held(folder)
    assert mine is not None
    claim = folder / "lease" / "1.json"
    said = json.loads(claim.read_text())
    claim.write_text(json.dumps({**said, "process": {**said["process"], "process_start": -1}}))
    process = started(folder)
    owns(process)
    run_folder.finish(folder, "failed", "an untrue sentence")
    assert run_folder.read(folder).state == "running"
    with pytest.raises(ownership.Fenced, match=f"taken over by process {process.pid}"):
        mine.check()


def test_a_run_of_a_version_with_locks_is_resumed(folder: Path, started: Any) -> None:
    old = {key: value for key, value in process_identity.this_process().items() if key != "machine"}
    record = {"state": "running", **old, "command": "gearshift train a.yaml", "started": 1.0}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "run.lock").write_text(json.dumps(old))
    assert run_folder.read(folder).state == "running"
    with pytest.raises(UserError, match=rf"still running \(process {os.getpid()}\)"):
        run_folder.claim(folder)
    for dead in ({**old, "process_start": -1}, {**old, "host": "elsewhere"}):
        (folder / "run.lock").write_text(json.dumps(dead))
        run_folder.claim(folder)
        assert not (folder / "run.lock").exists()
        run_folder.finish(folder, "done")
        for path in (folder / "lease").iterdir():
            path.unlink()
    (folder / "run.json").write_text(json.dumps({**record, "state": "ended", "ended": 2.0}))
    assert run_folder.read(folder).state == "done"


def test_a_claim_that_was_cut_short_is_judged_by_its_heartbeat(folder: Path) -> None:
    (folder / "lease").mkdir()
    (folder / "lease" / "4.json").write_text('{"sess')
    assert ownership.claim(folder).fence == 5
    ownership.held(folder).release()  # type: ignore[union-attr]


def test_a_new_owner_removes_what_the_old_one_was_about_to_commit(folder: Path) -> None:
    """So that an owner frozen between its last look and its rename has nothing to rename."""
    (folder / "checkpoints" / ".step-9.77.part").mkdir()
    run_folder.claim(folder)
    assert not list((folder / "checkpoints").iterdir())
    run_folder.finish(folder, "done")


def test_a_file_system_without_hard_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", no_links)
    ownership.claim(folder).release()
    assert ownership.claim(folder).fence == 2
    with pytest.raises(UserError, match="still running"):
        ownership.claim(folder)
    ownership.held(folder).release()  # type: ignore[union-attr]


RIVAL = (
    "import sys, time, random; from pathlib import Path\n"
    "from gearshift.run import ownership as lease; from gearshift.errors import UserError\n"
    "folder, seed = Path(sys.argv[1]), int(sys.argv[2])\n"
    "draw = random.Random(seed); log = (folder / f'log-{seed}').open('w')\n"
    "until = time.monotonic() + 1.5\n"
    "while time.monotonic() < until:\n"
    "    try: mine = lease.claim(folder)\n"
    "    except UserError: continue\n"
    "    print('in', mine.fence, time.monotonic(), file=log, flush=True)\n"
    "    time.sleep(draw.random() * 0.01)\n"
    "    mine.check()\n"
    "    print('out', mine.fence, time.monotonic(), file=log, flush=True)\n"
    "    if draw.random() < 0.05: import os; os._exit(9)\n"  # dies as the owner
    "    mine.release()\n"
)


def test_rivals_never_own_the_run_at_the_same_time(folder: Path) -> None:
    """Stress: claim, hold, release or die. Each number is had once, and the times of ownership do not overlap."""
    commands = [[sys.executable, "-c", RIVAL, str(folder), str(seed)] for seed in range(6)]
    rivals = [subprocess.Popen(command) for command in commands]
    for rival in rivals:
        assert rival.wait(timeout=60) in (0, 9)
    spans = []
    for path in folder.glob("log-*"):
        lines = [line.split() for line in path.read_text().splitlines()]
        spans += [
            (int(begun[1]), float(begun[2]), float(ended[2]))
            for begun, ended in zip(lines[::2], lines[1::2], strict=True)
        ]
    spans.sort()
    assert len(spans) > 5  # on a busy machine
    numbers = [number for number, _, _ in spans]
    assert len(set(numbers)) == len(numbers)
    for (_, _, ended), (_, begun, _) in itertools.pairwise(spans):
        assert ended <= begun


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), threads=st.integers(2, 5))
def test_of_claimants_at_once_one_gets_each_number(
    seed: int, threads: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Threads that sleep at every step of a claim, so that their steps interleave in many orders."""
    folder, draw = tmp_path_factory.mktemp("rivals"), random.Random(seed)
    pauses = [[draw.random() * 0.002 for _ in range(20)] for _ in range(threads)]
    won: list[int] = []
    real = ownership_files.newest_claim

    def slow_newest(place: Path) -> Path | None:
        own = (
            pauses[int(threading.current_thread().name)] if threading.current_thread().name.isdigit() else []
        )
        time.sleep(own.pop() if own else 0.0)
        return real(place)

    def claim() -> None:
        try:
            mine = ownership.claim(folder)
        except UserError:
            return
        won.append(mine.fence)
        if pauses[int(threading.current_thread().name)]:
            mine.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ownership_files, "newest_claim", slow_newest)
        workers = [threading.Thread(target=claim, name=str(number)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(set(won)) == len(won) >= 1
    for mine in list(ownership._held.values()):
        mine.release()


def test_runs_and_status_show_a_run_of_another_machine_as_it_is(
    folder: Path, started: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gearshift.cli import app as cli
    from gearshift.run import polling

    monkeypatch.setattr(polling, "WATCH_SECONDS", 3.0)
    process = started(folder, **{process_identity.MACHINE: "elsewhere"})
    owns(process)
    assert cli.run(["status", str(folder), "--exit-code"]) == 0
    assert "running" in capsys.readouterr().out
    assert cli.run(["runs", str(folder.parent)]) == 0
    assert " running " in capsys.readouterr().out
    assert cli.run(["switch", str(folder), "gba"]) == 2
    assert "run `switch` there" in capsys.readouterr().err
    process.kill()
    process.wait()
    assert cli.run(["status", str(folder), "--exit-code"]) == 5
    assert "there was no heartbeat for" in capsys.readouterr().out


def test_an_owner_that_was_replaced_by_its_own_session_ends_nothing(folder: Path, started: Any) -> None:
    """A coordinator that was frozen and replaced wakes up and fails: the run of its successor goes on."""
    mine = run_folder.claim(folder, session="one")
    successor = started(folder, OWNER.replace("command='gearshift train a.yaml'", "session='one'"))
    assert successor.stdout.readline() == "mine\n"
    run_folder.finish(folder, "failed", "woke up too late")
    assert run_folder.read(folder).state == "running"
    assert ownership_files.current(folder).fence == mine.fence + 1  # type: ignore[union-attr]


def test_a_process_of_a_run_that_has_ended_cannot_claim_it_again(folder: Path) -> None:
    run_folder.claim(folder, session="one")
    run_folder.finish(folder, "stopped")
    with pytest.raises(ownership.Fenced, match="has ended"):
        run_folder.claim(folder, session="one")
    assert run_folder.read(folder).state == "stopped"
    run_folder.claim(folder, session="two")  # a resume is a session of its own


def test_a_claim_that_another_made_after_the_claims_were_removed_fences(folder: Path, started: Any) -> None:
    mine = run_folder.claim(folder)
    for path in (folder / ownership_files.FOLDER).iterdir():
        path.unlink()
    other = started(folder)
    assert other.stdout.readline() == "mine\n"
    with pytest.raises(ownership.Fenced):
        mine.check()


def test_a_dead_run_on_a_cluster_of_others_does_not_recover_for_ever(
    folder: Path, started: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can look at the processes of such a cluster: their heartbeats tell, or that there are none."""
    from gearshift.cli import app as cli
    from gearshift.cli.metrics import page_or_state, probe
    from gearshift.run import polling

    process = started(folder)
    owns(process)
    owner = ownership.current(folder)
    assert owner is not None
    ownership.LeaseKeeper(folder, owner.session, "ray", {})
    process.kill()
    process.wait()
    record = run_folder.read(folder)
    assert record.state == "recovering" and record.needs_heartbeats
    shard = ownership.LeaseKeeper(folder, owner.session, "shard-0", {})
    shard_heart = ownership.HeartbeatThread(shard.path)
    (seen,) = polling.seen([record], 30.0)
    assert seen.state == "recovering" and not seen.needs_heartbeats
    shard_heart.stop()
    (seen,) = polling.seen([record], 0.3)
    assert (seen.state, seen.needs_heartbeats) == ("unknown", True)
    assert seen.reason == (
        "its owner is gone; no heartbeat for 0 s; it counts as failed after 1 s without one"
    )
    monkeypatch.setattr(polling, "WATCH_SECONDS", 0.3)
    assert cli.run(["status", str(folder), "--exit-code"]) == 7
    assert "(its owner is gone; no heartbeat for 0 s; it counts as failed after 1 s without one)" in (
        capsys.readouterr().out
    )
    watchers: dict[
        Path, Watcher
    ] = {}  # of a process that serves /healthz: each look is shorter than the wait
    answers = [probe(folder, watchers)[1].split()[0]]
    for _ in range(20):
        answers.append(probe(folder, watchers)[1].split()[0])
        time.sleep(0.2)
    assert (answers[0], answers[-1]) == ("unknown", "failed")
    assert 'state="failed"} 1' in page_or_state(folder, watchers)
    revived = ownership.HeartbeatThread(ownership.LeaseKeeper(folder, owner.session, "shard-1", {}).path)
    assert "failed" not in [probe(folder, watchers)[1].split()[0] for _ in range(5)]
    revived.stop()
    assert cli.run(["status", str(folder), "--exit-code", "--wait"]) == 5
    assert "there was no heartbeat for" in capsys.readouterr().out
    monkeypatch.setattr(polling, "WATCH_SECONDS", 3.0)
    assert cli.run(["status", str(folder), "--exit-code"]) == 5
    assert "there was no heartbeat for" in capsys.readouterr().out
    assert 'state="failed"} 1' in page_or_state(folder)


def test_a_claim_of_a_number_that_was_released_and_removed_meanwhile_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two looks of a slow claimant another one claims the next number and removes the released claim."""
    place = folder / "lease"
    ownership.claim(folder).release()
    looks = list[str]()

    def next_owner_comes(*_: object) -> None:
        if not looks:
            looks.append("later")
            (place / "2.json").write_text("{}")
            (place / "1.released").unlink()

    exists, newest = Path.exists, ownership_files.newest_claim

    def exists_then(path: Path) -> bool:
        found = exists(path)
        if path.name == "1.released":
            next_owner_comes()
        return found

    def newest_then(there: Path) -> Path | None:
        found = newest(there)
        next_owner_comes()
        return found

    monkeypatch.setattr(Path, "exists", exists_then)
    monkeypatch.setattr(ownership_files, "newest_claim", newest_then)
    assert not ownership_files.link_claim(place, 1, "late", 0.0)
    assert looks
