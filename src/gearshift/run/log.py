"""The history of a run, kept in its folder.

    run.log        every message to the user, and each change of owner, with local time and zone
    faults.jsonl   a line per fault: what broke, when, what was done about it; and lines with what it cost

Both only grow, and outlive the process that writes them, so totals include the restarts of a coordinator. A line that
cannot be written (a full disk) is dropped; the training continues. Does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from gearshift.errors import UserError
from gearshift.run import ownership

LOG, FAULTS = "run.log", "faults.jsonl"
Kind = Literal["start", "end", "lost", "frozen", "save failed", "cost"]


@dataclass(frozen=True)
class Fault:
    """Something that broke, or a process that started or ended (those count restarts).

    A line of kind `cost` adds what became known later to the newest fault of that role and number. Unless the cost is
    `open` itself, the run has recovered from all its faults.
    """

    kind: Kind
    role: str  # coordinator, shard, worker, driver, ray, run
    number: int = 0
    reason: str = ""
    action: str = ""  # what was done about it
    seconds_lost: float = 0.0  # without a step
    redone_steps: int = 0
    session: str = ""
    time: float = field(default_factory=time.time)  # epoch seconds
    open: bool = False  # the run has not recovered from it yet


@dataclass(frozen=True)
class Totals:
    """Totals of the newest session of a run: since it was started or resumed."""

    restarts: dict[str, int]  # by role
    by_member: dict[str, int]  # worker-3: its restarts
    redone_steps: int
    seconds_lost: float
    failed_saves: int
    faults: int

    def as_json(self) -> dict[str, Any]:
        """For report.json."""
        return {key: value for key, value in asdict(self).items() if key != "by_member"}


class Messages(list[str]):
    """Messages for the user, in order; each goes to run.log too."""

    def __init__(self, folder: Path, sentences: Iterable[str] = ()) -> None:
        super().__init__()
        self._folder = folder
        self.extend(sentences)

    def append(self, sentence: str) -> None:
        super().append(sentence)
        write(self._folder, sentence)

    def extend(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self.append(sentence)

    def __iadd__(self, sentences: Iterable[str]) -> Messages:  # type: ignore[override,misc]
        self.extend(sentences)
        return self

    def insert(self, index: SupportsIndex, sentence: str) -> None:
        raise TypeError("messages are append-only")


def write(folder: Path, sentence: str, *, session: str | None = None) -> None:
    """A line of run.log; the lines of a longer text are indented below it.

    Written by the run's owner, or by another process of its `session`, such as the one that started it.
    """
    at = time.strftime("%Y-%m-%d %H:%M:%S %z")
    _append_if_ours(folder, LOG, f"{at}  " + sentence.rstrip().replace("\n", "\n    "), session)


def record(folder: Path, fault: Fault, *, session: str | None = None) -> None:
    """Adds a line to faults.jsonl; the same processes as in `write` may do so."""
    mine = ownership.held(folder)
    known = session or fault.session or (mine.session if mine else "")
    _append_if_ours(folder, FAULTS, json.dumps({**asdict(fault), "session": known}), session)


def faults(folder: Path) -> list[Fault]:
    """The faults in order, each with its total cost."""
    merged: list[Fault] = []
    for line in _lines(folder):
        if line.kind != "cost":
            merged.append(line)
            continue
        at = _charged(merged, line)
        if at is None:  # the fault itself could not be written
            merged.append(replace(line, kind="lost"))
        else:
            seconds, steps = (
                merged[at].seconds_lost + line.seconds_lost,
                merged[at].redone_steps + line.redone_steps,
            )
            merged[at] = replace(merged[at], seconds_lost=seconds, redone_steps=steps)
        if not line.open:
            merged = [replace(one, open=one.open and one.session != line.session) for one in merged]
    return merged


def _charged(faults: list[Fault], cost: Fault) -> int | None:
    """The index of the fault that this cost belongs to."""
    for at, fault in reversed(list(enumerate(faults))):
        same = (fault.session, fault.role, fault.number) == (cost.session, cost.role, cost.number)
        if same and fault.kind in ("lost", "frozen"):
            return at
    return None


def unrecovered(folder: Path) -> list[Fault]:
    """The faults of this session that the run has not recovered from, in order."""
    owner = ownership.current(folder)
    session = owner.session if owner else ""
    return [fault for fault in faults(folder) if fault.open and fault.session == session]


def seconds_open(folder: Path) -> float:
    """Seconds since the newest fault that the run has not recovered from. Only for reports: it trusts the clocks."""
    known = unrecovered(folder)
    return max(0.0, time.time() - known[-1].time) if known else 0.0


def _lines(folder: Path) -> Iterator[Fault]:
    """The lines of faults.jsonl, without those that are torn or from a later version."""
    with contextlib.suppress(OSError), (folder / FAULTS).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError):
                yield Fault(**json.loads(line))


def totals(folder: Path) -> Totals:
    """The totals. A start counts as a restart if the previous start of that process did not exit normally."""
    owner = ownership.current(folder)
    session = owner.session if owner else ""
    known = [fault for fault in faults(folder) if fault.session == session]
    started, restarts = set[str](), Counter[str]()
    for fault in known:
        who = f"{fault.role}-{fault.number}"
        if fault.kind == "start":
            restarts[who] += who in started
            started.add(who)
        elif fault.kind == "end":
            started.discard(who)
    by_role = Counter[str]()
    for who, count in restarts.items():
        by_role[who.rpartition("-")[0]] += count
    broken = [fault for fault in known if fault.kind not in ("start", "end")]
    return Totals(
        {role: count for role, count in sorted(by_role.items()) if count},
        dict(restarts),
        sum(fault.redone_steps for fault in broken),
        sum(fault.seconds_lost for fault in broken),
        sum(fault.kind == "save failed" for fault in broken),
        len(broken),
    )


def append(path: Path, line: str) -> None:
    """Appends a line in one write. A line cut short by a crash is terminated first, so that it spoils no other."""
    with path.open("ab+", buffering=0) as file:
        torn = b""
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            torn = b"" if file.read(1) == b"\n" else b"\n"
        file.write(torn + line.encode(errors="replace") + b"\n")


def _append_if_ours(folder: Path, name: str, line: str, session: str | None) -> None:
    with contextlib.suppress(OSError, UserError):  # a full disk, or another process owns the run
        if session is None:
            ownership.check(folder)
        elif (owner := ownership.current(folder)) is not None and owner.session != session:
            return
        append(folder / name, line)
