"""The decisions of a run as JSON lines in its folder: every event that a strategy saw and the actions it answered with.

    events-000.jsonl, events-001.jsonl ...    the next number when one is full, or when the run is resumed

An epoch begins with a header, which has everything that a fresh coordinator needs; each line after it is one event. So
the log can be replayed (replay.py). A line is formatted in the caller's thread (microseconds, and no thread that
competes for the interpreter); another thread writes the file twice a second, so a killed process loses at most half a
second of it. If the log cannot be written, the user is notified once and training continues without it.
docs/event_log.md has the format.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

import msgspec

from gearshift.errors import UserError
from gearshift.sync import events
from gearshift.sync.events import (
    Action,
    Apply,
    Begin,
    Discard,
    Duplicate,
    Event,
    Exchange,
    Lease,
    Part,
    Reissue,
)

FORMAT = 1
FILE_BYTES = 64 << 20
WRITE_SECONDS = 0.5
WAITING_LINES = (
    50_000  # with more pending lines the caller writes them itself, which bounds memory on a slow disk
)


@dataclass(frozen=True)
class Head:
    """The starting point of a replay of an epoch."""

    strategy: str
    settings: dict[str, Any]
    step: int = 0  # steps applied before the epoch
    epoch: int = 0
    workers: int = 1
    seed: int = 0
    version: str = ""  # of Gearshift
    time: float = 0.0  # epoch seconds; `at` of the events counts from here
    first_lease: int = 0  # the number of the first lease


@dataclass(frozen=True)
class Decision:
    event: Event
    actions: list[Action]


@dataclass(frozen=True)
class TornLine:
    """The last line of a file is incomplete: the process was killed during the write."""


@dataclass(frozen=True)
class LogPosition:
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


# ---- messages as text: by hand, because this runs for every event. msgspec takes twice as long, json four times, and
# both would write other bytes (docs/adr/0020) ----

# What a strategy did before it had a setting, where it does something else by default.
_BEFORE: dict[str, dict[str, Any]] = {"gba": {"predicted_pull": False}}
_KINDS: dict[str, Callable[..., Event]] = {
    "join": events.WorkerJoined,
    "ask": events.WorkRequested,
    "push": events.GradientArrived,
    "refuse": events.GradientRefused,
    "lost": events.WorkerLost,
    "supply": events.Supplied,
    "exhausted": events.DataExhausted,
    "switch": events.SwitchRequested,
    "exchanged": events.ExchangeDone,
    "time": events.TimePassed,
}
_EVENT_TEXT: dict[type, Callable[[Any], str]] = {
    events.WorkerJoined: lambda e: f'"join":[{e.worker}]',
    events.WorkRequested: lambda e: f'"ask":[{e.worker}]',
    events.GradientArrived: lambda e: (
        f'"push":[{e.worker},{e.lease},{e.version}]' if e.version else f'"push":[{e.worker},{e.lease}]'
    ),
    events.GradientRefused: lambda e: f'"refuse":[{e.worker},{e.lease},{quoted(e.reason)}]',
    events.WorkerLost: lambda e: f'"lost":[{e.worker},{quoted(e.reason)}]',
    events.Supplied: lambda e: f'"supply":[{e.first},{e.count},{e.batch}]',
    events.DataExhausted: lambda e: '"exhausted":[]',
    events.TimePassed: lambda e: '"time":[]',
    events.ExchangeDone: lambda e: f'"exchanged":[{e.number}]',
    events.SwitchRequested: lambda e: (
        f'"switch":[{quoted(e.strategy)},{json.dumps(_finite(e.settings))},{quoted(e.reason)}]'
    ),
}


def _begin_text(begin: Begin) -> str:
    lease, ahead = begin.lease, begin.extrapolation
    extrapolation = f",{ahead.steps},{ahead.waiting!r}" if ahead.steps else ""
    return (
        f'["begin",{begin.worker},[{lease.number},{lease.first},{lease.count},{lease.attempt}],'
        f"{begin.token},{begin.version}{extrapolation}]"
    )


def _part_text(part: Part) -> str:
    if part.weight == 1.0 and not part.reason:
        return f"[{part.lease},{part.staleness},{part.lag}]"
    rows = ",true" if part.unchanged_rows else ""
    return f"[{part.lease},{part.staleness},{part.lag},{part.weight!r},{quoted(part.reason)}{rows}]"


def _apply_text(apply: Apply) -> str:
    parts = ",".join([_part_text(part) for part in apply.parts])
    if apply.dense_rate != 1.0:
        return f'["apply",{apply.step},[{parts}],{json.dumps(apply.over_kept)},{apply.dense_rate!r}]'
    return f'["apply",{apply.step},[{parts}]{",true" if apply.over_kept else ""}]'


_ACTION_TEXT: dict[type, Callable[[Any], str]] = {
    Begin: _begin_text,
    Apply: _apply_text,
    Discard: lambda a: f'["discard",{a.lease},{quoted(a.reason)}]',
    Reissue: lambda a: f'["reissue",{a.lease},{quoted(a.reason)}]',
    Duplicate: lambda a: f'["duplicate",{a.lease},{quoted(a.reason)}]',
    Exchange: lambda a: f'["exchange",{a.number}]',
}


def action_text(action: Action) -> str:
    return _ACTION_TEXT[type(action)](action)


def _seconds_text(at: float) -> str:
    """Exact, because decisions may depend on it. Those of engines have five digits; virtual time has more."""
    text = f"{at:.5f}"
    return text if float(text) == at else repr(at)


def line(event: Event, actions: list[Action]) -> str:
    what = _EVENT_TEXT[type(event)](event)
    if not actions:
        return f'{{"at":{_seconds_text(event.at)},{what}}}\n'
    do = ",".join([_ACTION_TEXT[type(action)](action) for action in actions])
    return f'{{"at":{_seconds_text(event.at)},{what},"do":[{do}]}}\n'


def head_line(head: Head) -> str:
    record = {"log": FORMAT, **asdict(head), "settings": _finite(head.settings)}
    return json.dumps(record, separators=(",", ":")) + "\n"


def _finite(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: it is written as text."""
    return {key: "inf" if value == math.inf else value for key, value in settings.items()}


def _settings(strategy: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings as they were: a log has every setting that existed when it was written."""
    known = {key: math.inf if value == "inf" else value for key, value in settings.items()}
    return known | {key: value for key, value in _BEFORE.get(strategy, {}).items() if key not in known}


# ---- messages from text ----


def _event(record: dict[str, Any]) -> Event:
    (word,) = record.keys() & _KINDS.keys()
    fields = record[word]
    if word == "push":
        worker, lease, *version = fields
        return events.GradientArrived(worker, lease, record["at"], version=version[0] if version else 0)
    if word == "switch":
        strategy, settings, reason = fields
        fields = strategy, _settings(strategy, settings), reason
    return _KINDS[word](*fields, at=record["at"])


def _action(record: list[Any]) -> Action:
    match record:
        case ["begin", worker, lease, token, version, *extrapolation]:
            return Begin(worker, Lease(*lease), token, version, events.Extrapolation(*extrapolation))
        case ["apply", step, parts, *rest]:
            return Apply(step, tuple(_part(*part) for part in parts), *rest)
        case ["discard", lease, reason]:
            return Discard(lease, reason)
        case ["reissue", lease, reason]:
            return Reissue(lease, reason)
        case ["duplicate", lease, reason]:
            return Duplicate(lease, reason)
        case ["exchange", number]:
            return Exchange(number)
    raise ValueError(f"unknown action {record}")


def _part(
    lease: int, staleness: int, lag: int, weight: float = 1.0, reason: str = "", rows: bool = False
) -> Part:
    return Part(lease, weight, reason, staleness, lag, rows)


def _head(record: dict[str, Any]) -> Head:
    if record.pop("log") != FORMAT:
        raise ValueError("another format")
    return Head(**{**record, "settings": _settings(record["strategy"], record["settings"])})


# ---- reading ----


def files(folder: Path) -> list[Path]:
    """The logs of a run, in order."""
    named = [path for path in folder.glob("events-*.jsonl") if re.fullmatch(r"events-\d+\.jsonl", path.name)]
    return sorted(named, key=_number)


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("events-"))


def read(paths: list[Path]) -> Iterator[tuple[LogPosition, Head | Decision | TornLine]]:
    """The content of these files, in order. Each must begin an epoch or continue the file before it."""
    before = None
    for path in paths:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                place = LogPosition(path, number)
                if not text.endswith(b"\n"):
                    yield place, TornLine()
                    continue
                record = _parsed(place, text)
                if "goes_on" not in record:
                    yield place, _message(place, record)
                elif before is None or before.name != record["goes_on"]:
                    raise UserError(
                        f"{path} continues {record['goes_on']}, which is missing; replay the run's folder"
                    )
        before = path


def last_step(folder: Path, before: int = 0) -> int | None:
    """The step that the log of a run ends at; None if it has none. Looks at the end, not at 64 MB of lines.

    The first `before` files are ignored: an earlier session wrote them.
    """
    for path in reversed(files(folder)[before:]):
        text = path.read_bytes()
        text = text[: text.rfind(b"\n") + 1]  # the text after it is incomplete
        applied, head = text.rfind(_APPLIED), text.rfind(_HEAD)
        if applied > head:
            return int(text[applied + len(_APPLIED) :].split(b",", 1)[0])
        if head >= 0:
            return int(json.loads(text[head:].split(b"\n", 1)[0])["step"])
    return None


_APPLIED, _HEAD = (
    b'["apply",',
    f'{{"log":{FORMAT},"strategy":'.encode(),
)  # not inside a reason, where quotes are escaped


def _parsed(place: LogPosition, text: bytes) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(text)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{place}: not a line of an event log; the file is damaged")
    return record


def _message(place: LogPosition, record: dict[str, Any]) -> Head | Decision:
    try:
        if "log" in record:
            return _head(record)
        return Decision(_event(record), [_action(action) for action in record.get("do", ())])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{place}: unknown event or action; the line is damaged, or of another version of Gearshift"
        ) from None


# ---- writing ----


@dataclass
class EventLog:
    """Appends to the folder's log: `begin` an epoch, call it with each event and its actions, `close` at the end."""

    folder: Path
    notify: Callable[[str], None]  # gets a message for the user
    file_bytes: int = FILE_BYTES
    write_seconds: float = WRITE_SECONDS
    check: Callable[[], None] = lambda: (
        None
    )  # called before a write: raises a `UserError` if another process owns the run now
    _waiting: deque[str] = field(default_factory=deque)
    _file: int | None = None
    _path: Path | None = None  # the newest file of ours
    _size: int = 0
    _failed: bool = False

    def __post_init__(self) -> None:
        self._writing, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="gearshift-event-log", daemon=True)
        self._thread.start()

    def begin(self, head: Head) -> None:
        self._add(head_line(head))

    def __call__(self, event: Event, actions: list[Action]) -> None:
        self._add(line(event, actions))

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._close_file()

    def _add(self, text: str) -> None:
        if self._failed:
            return
        self._waiting.append(text)
        if len(self._waiting) > WAITING_LINES:
            self.write()

    def _write_on(self) -> None:
        while not self._closed.wait(self.write_seconds):
            self.write()
        self.write()

    def write(self) -> None:
        """Writes pending lines to the file. May be called from any thread."""
        with self._writing:
            waiting = self._waiting
            text = "".join([waiting.popleft() for _ in range(len(waiting))]).encode()
            if not text or self._failed:
                return
            try:
                self.check()
                self._append(text)
            except UserError:  # the run reports the reason when it ends
                self._failed = True
                self._close_file()
            except OSError as error:
                self._failed = True
                self._close_file()
                self.notify(
                    f"the event log cannot be written ({error.strerror}); training continues without it, "
                    f"and `replay` will end at this place"
                )

    def _append(self, text: bytes) -> None:
        handle = self._open() if self._file is None else self._file
        rest = memoryview(text)
        while rest:
            rest = rest[os.write(handle, rest) :]
        self._size += len(text)
        if self._size >= self.file_bytes:
            self._close_file()

    def _open(self) -> int:
        """Opens the next file. Its first line names the file that it continues, if this process wrote it."""
        before, taken = self._path, files(self.folder)
        path = self.folder / f"events-{_number(taken[-1]) + 1 if taken else 0:03d}.jsonl"
        self._file, self._path, self._size = (
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644),
            path,
            0,
        )
        if before is not None:
            os.write(self._file, f'{{"log":{FORMAT},"goes_on":{quoted(before.name)}}}\n'.encode())
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
