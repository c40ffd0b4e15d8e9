"""What became of a run that was harmed, judged from outside: its steps, its accounts, its words, its leftovers."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from tests.ledger import Ledger
from tests.matrix import processes, scenarios
from tests.matrix.live_run import LiveRun, Sample
from tests.matrix.scenarios import Case, expectation

LEFT_SECONDS = 20.0  # in which everything of a run that is over must be gone
CONTROL = ("control.sock", "control.key")


@dataclass
class Result:
    """One case, for the journal and the table."""

    name: str
    fault: str
    target: str
    moment: str
    strategy: str
    outcome: str = ""  # done, told (and resumed), hangs, skipped
    exit_code: int | None = None
    said: str = ""  # the last words
    without_step: float | None = None  # seconds: until the next step, or the end where none follows
    bound: float | None = None  # of these
    to_the_end: float | None = None  # seconds from the fault to the end of the run
    redone: int = 0  # steps
    in_time: bool = True  # the fault came while the moment lasted
    seconds: float = 0.0  # that the case took
    answers: list[str] = field(default_factory=list)  # to what was asked at the moment of the fault
    failures: list[str] = field(default_factory=list)
    evidence: str = ""  # the end of what it printed, if something failed

    @classmethod
    def of(cls, case: Case) -> Result:
        bound = expectation(case).without_step
        return cls(
            case.name,
            case.fault,
            case.target,
            case.moment,
            case.strategy,
            bound=bound if isfinite(bound) else None,
        )

    @property
    def ok(self) -> bool:
        return not self.failures


# ---- steps ----


def step_times(folder: Path, samples: list[Sample]) -> list[float]:
    """Epoch seconds of every step that the event log or a look at the run shows, in order."""
    times = [now.at for before, now in pairwise(samples) if now.step != before.step]
    for file in sorted(folder.glob("events-*.jsonl")):
        began = 0.0
        for line in file.read_text(errors="replace").splitlines():
            if '"apply"' not in line and '"time"' not in line:
                continue
            with suppress(ValueError):  # torn
                said = json.loads(line)
                began = said.get("time", began)
                if "at" in said:
                    times.append(began + said["at"])
    return sorted(times)


def longest_gap(times: list[float], fault: float, end: float, *, done: bool) -> float:
    """The longest time without a step that was not over before the fault.

    Up to `end` if no step follows, or if the run was not done: it may have stood still before it gave up.
    """
    before = [at for at in times if at <= fault][-1:] or [fault]
    after = [at for at in times if fault < at <= end]
    if not after:
        return end - fault
    if not done:
        after.append(end)
    return max(later - earlier for earlier, later in zip([*before, *after], after, strict=False))


# ---- accounts ----


def accounts(folder: Path, examples: int, *, log_may_end: bool) -> tuple[int, list[str]]:
    """Steps done again, and what is wrong with the accounts. A log that could not be written may end early."""
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        ledger = Ledger.of(folder)
    except (OSError, ValueError, KeyError, AssertionError) as error:
        return 0, [f"the accounts cannot be read: {type(error).__name__}: {error}"]
    wrong = []
    if report["examples"] != examples:
        wrong.append(f"the report has {report['examples']} examples, the epoch {examples}")
    if log_may_end and ledger.step < report["global_steps"]:
        return ledger.again, wrong
    try:
        ledger.assert_exact(examples)
    except AssertionError as error:
        wrong.append(str(error))
    counted = ledger.leases(applied=True), ledger.leases(applied=False)
    if (report["applied"], report["discarded"]) != counted:
        wrong.append(f"applied and discarded: report {report['applied'], report['discarded']}, log {counted}")
    return ledger.again, wrong


# ---- leftovers ----


def leftovers(run: LiveRun, case: Case, shared: Path | None) -> list[str]:
    """What is still there of a run that is over, after some time. It cannot tidy up a folder that it cannot write."""
    end = time.monotonic() + LEFT_SECONDS
    while (left := _outside(run, shared) + _in_folder(run, case)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


def _outside(run: LiveRun, shared: Path | None) -> list[str]:
    found = [f"process {one.pid} {one.title[:60]}" for one in processes.marked(run.marker)]
    found += [f"temporary {path.name}" for path in run.temporary.iterdir()]
    return found + ([f"shared memory {path.name}" for path in shared.iterdir()] if shared else [])


def _in_folder(run: LiveRun, case: Case) -> list[str]:
    if case.fault in scenarios.ENDLESS:
        return []
    found = [f"in the run folder: {name}" for name in CONTROL if (run.folder / name).exists()]
    found += [f"half a checkpoint {path.name}" for path in run.folder.glob("checkpoints/.*.part")]
    if run.record().get("state") in ("running", "recovering", "starting", "saving"):
        found.append(f"the state `{run.record()['state']}` in run.json")
    return found


# ---- words ----


def is_done(run: LiveRun) -> bool:
    return run.record().get("state") in ("ended", "done") and (run.folder / "report.json").exists()


def told(run: LiveRun, case: Case, code: int | None, said: str) -> list[str]:
    """What is wrong with how a run that did not get to its end took its leave."""
    wrong = []
    if code is None or code <= 0:
        wrong.append(f"it ended without being done, with exit code {code}")
    if "Traceback" in said:
        wrong.append("it ended with a traceback")
    reason = f"{said} {run.record().get('reason', '')}"
    words = expectation(case).words
    if words and not re.search(words, reason):
        wrong.append(f"its last words do not say what happened (/{words}/)")
    return wrong


def last_words(output: str) -> str:
    lines = [line for line in output.strip().splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    return lines[-1][:400] if lines else ""


def may_be_told(case: Case) -> bool:
    return expectation(case).outcome == "done or told" or case.fault in scenarios.ENDLESS
