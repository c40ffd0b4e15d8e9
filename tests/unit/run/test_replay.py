"""A replayed log gives the same decisions; one that was changed does not, and the place is named."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from gearshift.cli import app as cli
from gearshift.errors import UserError
from gearshift.run import event_log
from gearshift.run.event_log import EventLog, Head
from gearshift.run.replay import replay, story
from gearshift.sync.coordinator import Coordinator
from gearshift.sync.events import (
    Begin,
    DataExhausted,
    Event,
    GradientArrived,
    GradientRefused,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)
from gearshift.sync.registry import STRATEGIES, make_strategy


def record(folder: Path, strategy: str = "sync", *, seed: int = 0, switches: list[str] | None = None) -> None:
    """A run of four workers at random speeds over 40 leases, in which one is lost and one gradient refused."""
    draw, to = random.Random(seed), list(switches or [])
    settings = asdict(make_strategy(strategy, {"global_batch": 32, "batch": 8}))  # type: ignore[call-overload]
    head = Head(strategy, settings, step=5, workers=4)
    coordinator = Coordinator(make_strategy(strategy, head.settings), make_strategy, step=5)
    log = EventLog(folder, print)
    log.begin(head)
    flying: list[Begin] = []

    def tell(event: Event) -> None:
        actions = coordinator.handle(event)
        log(event, actions)
        flying.extend(action for action in actions if isinstance(action, Begin))

    for worker in range(4):
        tell(WorkerJoined(worker))
    tell(Supplied(0, 320, 8))
    tell(DataExhausted())
    for worker in range(4):
        tell(WorkRequested(worker))
    for turn in range(200):
        if not flying:
            break
        begin = flying.pop(draw.randrange(len(flying)))
        if turn == 9:
            tell(WorkerLost(begin.worker, "no answer"))
            continue
        if turn == 15:
            tell(GradientRefused(begin.worker, begin.lease.number, "not finite"))
        else:
            tell(GradientArrived(begin.worker, begin.lease.number))
        tell(WorkRequested(begin.worker))
        if to and turn % 7 == 3:
            new = make_strategy(to.pop(0), {"global_batch": 32, "batch": 8})
            tell(SwitchRequested(new.name, asdict(new), "for the test"))  # type: ignore[call-overload]
    log.close()


def change(folder: Path, old: str, new: str) -> int:
    """In the last line that has it; returns the line's number."""
    path = folder / "events-000.jsonl"
    lines = path.read_text().splitlines()
    number = max(n for n, line in enumerate(lines) if old in line)
    lines[number] = lines[number].replace(old, new, 1)
    path.write_text("\n".join(lines) + "\n")
    return number + 1


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_log_gives_the_same_decisions_again(tmp_path: Path, strategy: str) -> None:
    record(tmp_path, strategy, switches=["gba", "async", "sync"])
    done = replay(tmp_path)
    assert done.difference is None and done.torn == ()
    assert (done.files, done.epochs, done.switches) == (1, 1, 3) and done.steps > 5
    assert str(done).startswith("same decisions: ")


def test_epochs_and_incarnations_each_begin_afresh(tmp_path: Path) -> None:
    record(tmp_path, seed=1)
    record(tmp_path, "gba", seed=2)
    done = replay(tmp_path)
    assert (done.files, done.epochs, done.difference) == (2, 2, None)
    assert replay(tmp_path / "events-001.jsonl").epochs == 1


@pytest.mark.parametrize(
    ("old", "new"), [('["apply",', '["apply",1'), (',"do":[', ',"done":['), ("[3", "[2")]
)
def test_a_changed_log_is_found_at_its_line(tmp_path: Path, old: str, new: str) -> None:
    record(tmp_path)
    line = change(tmp_path, old, new)
    try:
        done = replay(tmp_path)
    except UserError as error:
        assert f"events-000.jsonl:{line}" in str(error)
        return
    assert done.difference is not None
    assert done.difference.place.line == line or new == "[2"  # a changed event shows where it first matters
    assert "logged" in str(done) and "replayed" in str(done)


def test_an_event_left_out_is_found(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "events-000.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    gone = next(number for number, line in enumerate(lines) if '"apply"' in line)
    path.write_text("".join(lines[:gone] + lines[gone + 1 :]))
    assert replay(tmp_path).difference is not None


def test_a_log_cut_short_is_the_same_as_far_as_it_goes(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "events-000.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    done = replay(tmp_path)
    assert done.difference is None and len(done.torn) == 1
    assert "is cut short (the process was killed there)" in str(done)


def test_impossible_events_are_named(tmp_path: Path) -> None:
    path = tmp_path / "events-000.jsonl"
    head = event_log.head_line(Head("sync", {"global_batch": 4, "batch": 4}))
    path.write_text('{"at":0,"join":[1]}\n')
    with pytest.raises(UserError, match=r":1: an event before the log header"):
        replay(path)
    path.write_text(head + '{"at":0,"supply":["a","b","c"]}\n')
    with pytest.raises(UserError, match=r":2: .* cannot follow the events before it"):
        replay(path)
    path.write_text("")
    with pytest.raises(UserError, match="is empty"):
        replay(path)


def test_the_story_reads_in_words(tmp_path: Path) -> None:
    record(tmp_path, "gba", switches=["sync"])
    told = list(story(tmp_path))
    assert told[0].startswith("epoch 1 from step 5: gba, 4 workers, global_batch=32 batch=8 max_lag=None")
    assert any("step 6: 4 gradients, 32 examples, staleness up to 0" in line for line in told)
    assert any("switch to sync: for the test" in line for line in told)
    assert any("lost: no answer" in line for line in told)
    assert any("reissued: no answer" in line for line in told)
    assert any("discarded: not finite" in line for line in told)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    record(tmp_path / "run")
    yield tmp_path / "run"


def test_the_command_says_one_line_and_exits_with_0(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["replay", "run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("same decisions: ") and out.count("\n") == 1
    assert cli.run(["replay", "run", "--show"]) == 0
    assert capsys.readouterr().out.startswith("epoch 1 from step 5: sync")


def test_the_command_shows_a_difference_and_exits_with_1(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = change(recorded, '["apply",', '["apply",1')
    assert cli.run(["replay", "run/events-000.jsonl"]) == 1
    out = capsys.readouterr().out
    assert f"run/events-000.jsonl:{line}: action 1 of this event differs" in out
    assert "written by Gearshift " in out  # the head of the test has no version


def test_without_a_log_the_command_says_so(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", "nothing"]) == 2
    assert "no run `nothing`" in capsys.readouterr().err


def test_infinite_settings_survive(tmp_path: Path) -> None:
    log = EventLog(tmp_path, print)
    log.begin(Head("gba", {"global_batch": 4, "batch": 4, "max_lag": math.inf}))
    log.close()
    assert replay(tmp_path).difference is None


def test_a_gradient_that_comes_after_its_lease_has_ended_is_no_difference(tmp_path: Path) -> None:
    """It is discarded without being counted, and the log does not say so."""
    coordinator = Coordinator(make_strategy("sync", {"global_batch": 16, "batch": 8}), make_strategy)
    log = EventLog(tmp_path, print)
    log.begin(Head("sync", {"global_batch": 16, "batch": 8}, workers=2))
    events: list[Event] = [WorkerJoined(0), WorkerJoined(1), Supplied(0, 64, 8), WorkRequested(0)]
    for event in [*events, WorkerLost(0, "no answer"), WorkerJoined(0), GradientArrived(0, 0)]:
        log(event, coordinator.handle(event))
    log.close()
    assert "had ended" in event_log.files(tmp_path)[0].read_text()
    assert replay(tmp_path).difference is None


def test_other_words_for_a_reason_are_no_difference(tmp_path: Path) -> None:
    record(tmp_path)
    file = event_log.files(tmp_path)[0]
    changed = file.read_text().replace("no answer", "not heard of")
    assert changed != file.read_text()
    file.write_text(changed)
    assert replay(tmp_path).difference is None
