"""python -m tests.matrix.case NAME: carries out one case against a real run and prints the result as JSON.

`carry_out` starts it in a process of its own; where that is permitted in a private mount namespace with its own
/dev/shm, so that disks can be filled and shared memory that is left behind is the run's.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from functools import cache
from math import inf
from pathlib import Path

from tests.matrix import processes, scenarios
from tests.matrix.injection import COMMAND_SECONDS, DISK_MEGABYTES, Injected, inject
from tests.matrix.live_run import START_SECONDS, LiveRun
from tests.matrix.scenarios import FREEZE, START, STOP_AFTER, Case, limit, training_seconds
from tests.matrix.verdict import (
    Result,
    accounts,
    is_done,
    last_words,
    leftovers,
    longest_gap,
    may_be_told,
    step_times,
    told,
)

LONGER = (
    80.0  # seconds that a run may take beyond its limit until it is given up: it fails, and how late is known
)
ROOT = Path(__file__).parents[2]
SHARED = Path("/dev/shm")
NAMESPACE = ("unshare", "--mount", "--propagation", "private")
EVERY = {case.name: case for case in (*scenarios.matrix(), *scenarios.SHORT)}


# ---- from outside ----


@cache
def mounts_permitted() -> bool:
    try:
        trial = [*NAMESPACE, "--uts", "mount", "-t", "tmpfs", "none", str(SHARED)]
        return subprocess.run(trial, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def carry_out(case: Case, python: str = sys.executable, keep: Path | None = None) -> Result:
    """The result of one case; whatever happens, nothing of it is left running."""
    if case.fault in scenarios.NEEDS_MOUNTS and not mounts_permitted():
        return replace(Result.of(case), outcome="skipped", said="mounting a small disk is not permitted here")
    marker = secrets.token_hex(8)
    command = [sys.executable, "-m", "tests.matrix.case", case.name, "--python", python, "--marker", marker]
    command += ["--private"] if mounts_permitted() else []
    command += ["--keep", str(keep)] if keep else []
    environment = {
        key: value for key, value in os.environ.items() if key != "TMPDIR"
    }  # sockets' paths are short
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*(NAMESPACE if mounts_permitted() else ()), *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=2 * START_SECONDS + 2 * limit(case) + LONGER + 200,
            check=False,
        )
        result = Result(**json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        said = done.stderr[-2000:] if isinstance(error, (IndexError, ValueError)) else str(error)
        result = replace(Result.of(case), outcome="harness", failures=["the harness failed"], evidence=said)
    finally:
        processes.end_all(marker)
    return replace(result, seconds=round(time.monotonic() - began, 1))


# ---- inside ----


def run_case(case: Case, python: str, marker: str, *, private: bool, keep: Path | None = None) -> Result:
    work, result = Path(tempfile.mkdtemp(prefix="op-")), Result.of(case)
    if private:
        _mount("1g", SHARED)
        (work / "runs").mkdir()
        _mount(f"{DISK_MEGABYTES}m", work / "runs")
    run = LiveRun(python, work, marker, case.strategy, training_seconds(case))
    try:
        _judge(run, case, result, SHARED if private else None)
    except AssertionError as error:
        result.outcome, result.failures = "harness", [*result.failures, f"{error}"]
    finally:
        run.close()
        if result.failures:
            result.evidence = run.output[-6000:]
        if keep is not None:
            shutil.copytree(work, keep / case.name.replace("/", "."), symlinks=True, ignore=_sockets)
        if private:
            subprocess.run(["umount", "--lazy", work / "runs"], check=False)
        shutil.rmtree(work, ignore_errors=True)
    return result


def _mount(size: str, place: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def _judge(run: LiveRun, case: Case, result: Result, shared: Path | None) -> None:
    run.start()
    injected = inject(run, case)
    result.in_time = injected.in_time
    result.failures += _answers(case, injected, result) if case.target == scenarios.OWNER else []
    ended = _wait_for_end(run, case, injected)
    result.exit_code = run.driver.poll()
    if ended is None:
        result.outcome, result.said = "hangs", last_words(run.output)
        result.failures += [f"still there: {one.title[:60]}" for one in processes.marked(run.marker)][:20]
        result.failures.append(f"it is not over {limit(case) + LONGER:.0f} s after the fault")
        return
    result.failures += _not_replaced(case, injected)
    result.failures += _measure(run, case, injected, ended, result)
    result.said = last_words(run.output)
    result.failures += [f"left behind: {what}" for what in leftovers(run, case, shared)]
    if is_done(run):
        result.outcome = "done"
        expected = -signal.SIGKILL if (case.target, case.fault) == ("driver", "kill -9") else 0
        if result.exit_code != expected:
            result.failures.append(f"the run is done, and the exit code is {result.exit_code}")
    else:
        result.outcome = "told"
        result.failures += told(run, case, result.exit_code, run.output)
        if not may_be_told(case):
            result.failures.append("it should have gone on to its end")
        injected.undo()
        result.failures += _resume(run, case)
    log_may_end = case.target == scenarios.FOLDER
    result.redone, wrong = accounts(run.folder, run.trained, log_may_end=log_may_end)
    result.failures += wrong


def _answers(case: Case, injected: Injected, result: Result) -> list[str]:
    """Second owners must be refused; any other command must be answered in a sentence, whatever it is."""
    failures = []
    for command in injected.commands:
        code, said = command.result(COMMAND_SECONDS)
        assert "--help" not in said, f"the harness gave a wrong command: {said}"
        result.answers.append(f"{code}: {last_words(said)}")
        if case.target == scenarios.OWNER and code != 2:
            failures.append(f"a second owner was not refused: exit code {code}: {last_words(said)}")
        elif code is None or "Traceback" in said:
            failures.append(f"a command was not answered in a sentence: exit code {code}: {last_words(said)}")
    return failures


def _wait_for_end(run: LiveRun, case: Case, injected: Injected) -> float | None:
    """When the run was over (epoch seconds); None if it is not in time. The operator stops a trouble without end."""
    stopped = False
    driver_is_out = case.target == "driver" and FREEZE[case.fault] in (0.0, inf)
    while time.time() < injected.at + limit(case) + LONGER:
        injected.look_at_victims()
        if _is_over(run, driver_is_out):
            ended = time.time()
            injected.undo()  # a driver that was frozen for ever may end now
            return ended if run.wait_for_driver(START) is not None else None
        if case.fault in scenarios.ENDLESS and not stopped and time.time() > injected.at + STOP_AFTER:
            run.stop()
            stopped = True
        time.sleep(0.1)
    return None


def _not_replaced(case: Case, injected: Injected) -> list[str]:
    """A process that is frozen for ever is ended and another started, if the run lasts long enough to see it."""
    for_ever = FREEZE.get(case.fault) == inf and case.target in scenarios.REPLACEABLE
    if for_ever and injected.frozen_for > scenarios.REPLACED_AFTER:
        bound = scenarios.REPLACED_AFTER
        return [
            f"what was frozen was still there {injected.frozen_for:.0f} s later; the bound is {bound:g} s"
        ]
    return []


def _is_over(run: LiveRun, driver_is_out: bool) -> bool:
    if not driver_is_out:
        return run.driver.poll() is not None
    return bool(run.record().get("ended"))


def _measure(run: LiveRun, case: Case, injected: Injected, ended: float, result: Result) -> list[str]:
    said = run.record().get("ended")  # the run may have ended before its driver did
    over = min(ended, said) if isinstance(said, float) and said > injected.at else ended
    hidden = run.folder.with_name("hidden")
    folder = hidden if hidden.exists() else run.folder
    result.to_the_end = round(ended - injected.at, 1)
    failures = [] if case.target == scenarios.OWNER else _answers(case, injected, result)
    if result.to_the_end > limit(case):
        failures.append(
            f"it was over {result.to_the_end:.0f} s after the fault; the limit is {limit(case):.0f} s"
        )
    times = step_times(folder, run.samples)
    result.without_step = round(longest_gap(times, injected.at, over, done=is_done(run)), 1)
    if result.bound is not None and result.without_step > result.bound:
        failures.append(f"{result.without_step} s without a step; the bound is {result.bound:g} s")
    return failures


def _resume(run: LiveRun, case: Case) -> list[str]:
    """A run that ended with a sentence can be resumed and goes to its end."""
    resumed = run.train("--resume", str(run.folder))
    seconds = START_SECONDS + 2 * training_seconds(case)
    try:
        code = resumed.wait(seconds)
    except subprocess.TimeoutExpired:
        resumed.send_signal(signal.SIGKILL)
        return [f"resumed, it is not over after {seconds:.0f} s"]
    return [] if code == 0 else [f"resumed, it ends with exit code {code}: {last_words(run.output)}"]


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("name", choices=sorted(EVERY), metavar="NAME")
    parse.add_argument("--python", default=sys.executable)
    parse.add_argument("--marker", default=secrets.token_hex(8))
    parse.add_argument(
        "--private", action="store_true", help="this process is in a mount namespace of its own"
    )
    parse.add_argument("--keep", type=Path, help="copy the work folder here")
    asked = parse.parse_args()
    result = run_case(EVERY[asked.name], asked.python, asked.marker, private=asked.private, keep=asked.keep)
    print(json.dumps(asdict(result)))
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
