"""The event log: what is written is read back, in files of bounded size, also after a crash."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest

from gearshift.errors import UserError
from gearshift.run import event_log
from gearshift.run.event_log import Decision, EventLog, Head, TornLine
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    DataExhausted,
    Discard,
    Event,
    Extrapolation,
    GradientArrived,
    GradientRefused,
    Lease,
    Part,
    Reissue,
    Supplied,
    SwitchRequested,
    WorkerJoined,
    WorkerLost,
    WorkRequested,
)

SETTINGS = {"max_lag": math.inf, "predicted_pull": True}
HEAD = Head("gba", {"global_batch": 64, "batch": 8, **SETTINGS}, step=3, epoch=1, workers=2, seed=7)
EVERYTHING: list[tuple[Event, list[Action]]] = [
    (WorkerJoined(0, 0.5), []),
    (Supplied(0, 8, 8, 0.5), []),
    (WorkRequested(0, 0.75), [Begin(0, Lease(4, 32, 8, 1), 3, 2)]),
    (GradientArrived(0, 4, 1.25), [Apply(4, (Part(4, 1.0, "", 2, -1), Part(5, math.exp(-1), "")), True)]),
    (GradientRefused(0, 5, 'not "finite"', 1.5), [Discard(5, "not\nfinite")]),
    (WorkerLost(0, "ünanswered", 2.0), [Reissue(6, "lost"), Apply(5, (Part(7, 0.0, "too late"),))]),
    (SwitchRequested("gba", SETTINGS, "slow worker", 3.0), []),
    (DataExhausted(4.0), []),
    (WorkRequested(0, 5.0), [Begin(0, Lease(8, 64, 8), 6, 5, Extrapolation(1, 0.375))]),
    (GradientArrived(0, 8, 6.0), [Apply(6, (Part(8, 0.0, "too late", 3, 2, True),), False, 0.5333)]),
]


def fail(sentence: str) -> None:
    raise AssertionError(sentence)


def write(folder: Path, decisions: list[tuple[Event, list[Action]]] = EVERYTHING, **more) -> None:
    log = EventLog(folder, more.pop("notify", fail), **more)
    log.begin(HEAD)
    for event, actions in decisions:
        log(event, actions)
    log.close()


def messages(folder: Path) -> list[object]:
    return [message for _, message in event_log.read(event_log.files(folder))]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path)
    assert messages(tmp_path) == [HEAD, *(Decision(event, actions) for event, actions in EVERYTHING)]


def test_a_log_from_before_predicted_pulls_has_none(tmp_path: Path) -> None:
    old = SwitchRequested("gba", {"max_lag": 4}, "", 3.0)
    write(tmp_path, [(old, [])])
    (_, read) = messages(tmp_path)
    assert read == Decision(SwitchRequested("gba", {"max_lag": 4, "predicted_pull": False}, "", 3.0), [])


LINES = r"""
{"log":1,"strategy":"gba","settings":{"global_batch":64,"batch":8,"max_lag":"inf","predicted_pull":true},"step":3,"epoch":1,"workers":2,"seed":7,"version":"","time":0.0,"first_lease":0}
{"at":0.50000,"join":[0]}
{"at":0.50000,"supply":[0,8,8]}
{"at":0.75000,"ask":[0],"do":[["begin",0,[4,32,8,1],3,2]]}
{"at":1.25000,"push":[0,4],"do":[["apply",4,[[4,2,-1],[5,0,0,0.36787944117144233,""]],true]]}
{"at":1.50000,"refuse":[0,5,"not \"finite\""],"do":[["discard",5,"not\nfinite"]]}
{"at":2.00000,"lost":[0,"\u00fcnanswered"],"do":[["reissue",6,"lost"],["apply",5,[[7,0,0,0.0,"too late"]]]]}
{"at":3.00000,"switch":["gba",{"max_lag": "inf", "predicted_pull": true},"slow worker"]}
{"at":4.00000,"exhausted":[]}
{"at":5.00000,"ask":[0],"do":[["begin",0,[8,64,8,0],6,5,1,0.375]]}
{"at":6.00000,"push":[0,8],"do":[["apply",6,[[8,3,2,0.0,"too late",true]],false,0.5333]]}
"""


def test_lines_are_the_bytes_that_they_always_were(tmp_path: Path) -> None:
    write(tmp_path)
    assert (tmp_path / "events-000.jsonl").read_text() == LINES.removeprefix("\n")
    (tmp_path / "events-000.jsonl").write_text(LINES.removeprefix("\n"))
    assert messages(tmp_path) == [HEAD, *(Decision(event, actions) for event, actions in EVERYTHING)]


def test_every_line_is_plain_json(tmp_path: Path) -> None:
    write(tmp_path)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for line in (tmp_path / "events-000.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line, parse_constant=refuse), dict)


def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    log = EventLog(tmp_path, fail, file_bytes=200)
    log.begin(HEAD)
    for event, actions in EVERYTHING * 5:
        log(event, actions)
        log.write()
    log.close()
    names = [path.name for path in event_log.files(tmp_path)]
    assert names[:3] == ["events-000.jsonl", "events-001.jsonl", "events-002.jsonl"]
    assert all(path.stat().st_size < 600 for path in event_log.files(tmp_path))
    assert len(messages(tmp_path)) == 1 + 5 * len(EVERYTHING)
    with pytest.raises(UserError, match=r"events-001.jsonl continues events-000.jsonl, which is missing"):
        list(event_log.read(event_log.files(tmp_path)[1:]))


def test_a_resumed_run_goes_on_with_the_next_file(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path)
    assert [path.name for path in event_log.files(tmp_path)] == ["events-000.jsonl", "events-001.jsonl"]
    assert messages(tmp_path).count(HEAD) == 2


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("events-1000.jsonl", "events-999.jsonl", "events-x.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in event_log.files(tmp_path)] == ["events-999.jsonl", "events-1000.jsonl"]


def test_a_line_cut_short_is_told_and_spoils_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "events-000.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    write(tmp_path)
    read = messages(tmp_path)
    assert read[len(EVERYTHING)] == TornLine() and read[len(EVERYTHING) + 1] == HEAD
    assert len(read) == 2 * (1 + len(EVERYTHING))


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"at":1}', '{"at":1,"ask":[]}', '{"at":1,"ask":[1],"do":[["x"]]}', '{"log":99}']
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    write(tmp_path)
    path = tmp_path / "events-000.jsonl"
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(UserError, match=r"events-000.jsonl:1: .*damaged"):
        messages(tmp_path)


def test_lines_reach_the_file_while_nothing_happens(tmp_path: Path) -> None:
    log = EventLog(tmp_path, fail, write_seconds=0.01)
    log.begin(HEAD)
    deadline = time.monotonic() + 10
    while not (event_log.files(tmp_path) and messages(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    found = messages(tmp_path)
    log.close()
    assert found == [HEAD]


def test_waiting_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "WAITING_LINES", 3)
    log = EventLog(tmp_path, fail, write_seconds=60)
    for event, actions in EVERYTHING[:4]:
        log(event, actions)
    assert len(messages(tmp_path)) == 4
    log.close()


def test_a_log_that_cannot_be_written_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def full(handle: int, text: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log = EventLog(tmp_path, said.append, write_seconds=60)
    for _ in range(2):
        log(*EVERYTHING[0])
        log.write()
    log.close()
    assert len(said) == 1 and said[0].startswith("the event log cannot be written (No space left on device)")


def test_the_last_step_is_found_at_the_end(tmp_path: Path) -> None:
    assert event_log.last_step(tmp_path) is None
    write(tmp_path, [])
    assert event_log.last_step(tmp_path) == HEAD.step
    write(tmp_path)
    assert event_log.last_step(tmp_path) == 6
    with event_log.files(tmp_path)[-1].open("a") as file:
        file.write('{"at":5.0,"push":[0,9],"do":[["apply",6')  # torn: it may be 61
    assert event_log.last_step(tmp_path) == 6
    write(tmp_path, [(WorkerJoined(0, 0.5), [])])  # it went back to a checkpoint
    assert event_log.last_step(tmp_path) == HEAD.step


def test_the_last_step_may_be_in_the_file_before(tmp_path: Path) -> None:
    log = EventLog(tmp_path, fail, file_bytes=200)
    log.begin(HEAD)
    log(*EVERYTHING[3])
    log.write()
    log(*EVERYTHING[0])
    log.close()
    assert len(event_log.files(tmp_path)) == 2 and event_log.last_step(tmp_path) == 4


def test_a_reason_is_no_step(tmp_path: Path) -> None:
    write(tmp_path, [EVERYTHING[3], (WorkerLost(0, '["apply",99,', 2.0), [])])
    assert event_log.last_step(tmp_path) == 4
