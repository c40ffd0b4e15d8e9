"""The folder of a run: the contract that every tool relies on to find, read and resume it.

    runs/shop-clicks-1115-2004/
      run.json      its owner, and how it ended      config.yaml    resolved, with versions and the command
      report.json   final metrics, stable keys       metrics.jsonl  one line per measurement
      checkpoints/  {step-600, step-1030, last, best}     events-000.jsonl  decisions, to be replayed
      run.log       messages to the user, with times   faults.jsonl   faults and the time they cost (log.py)
      control.sock, control.key   for requests to a live run (control_socket.py)
      cluster.json  of a run on a cluster: what a restarted coordinator must know
      lease/        the owner of the run (ownership.py)
    runs/last       a link to the newest

Files are written atomically (under a temporary name, then renamed); run.log and the .jsonl files only grow. A run
recorded as running counts as such only while a process holds its lease (state.py). Only its owner writes into the
folder; an owner that was replaced notices this before it writes. Does not depend on torch, models or data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gearshift.errors import UserError, brief, naming_output
from gearshift.run import log as run_log
from gearshift.run import ownership, process_identity
from gearshift.run import state as run_state
from gearshift.run.state import Ending, RunState, State
from gearshift.run.versions import versions

RUN, CONFIG, REPORT, METRICS, LAST = "run.json", "config.yaml", "report.json", "metrics.jsonl", "last"
CHECKPOINTS = "checkpoints"
CLUSTER = "cluster.json"  # of a run whose processes are on a cluster


@dataclass(frozen=True)
class RunRecord:
    """The content of run.json, with the current state."""

    folder: Path
    state: State
    command: str
    started: float  # epoch seconds
    ended: float | None = None
    reason: str = ""  # why it stopped or failed, or where it runs
    standing: RunState = run_state.NOT_KNOWN

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_live(self) -> bool:
        return self.state in run_state.LIVE

    @property
    def needs_heartbeats(self) -> bool:
        """Whether only heartbeats, watched over time, can show if the run is alive."""
        return self.standing.recorded != "unknown"

    def seen_by(self, watcher: run_state.Watcher) -> RunRecord:
        """The record updated with what the heartbeats show."""
        now = watcher.look(self.standing)
        return replace(self, state=now.state, reason=now.reason, standing=now)


def create(root: str | Path, name: str, *, command: str = "", private: bool = False) -> Path:
    """A new folder `name-MMDD-HHMM` below `root`, owned by this process; `last` points to it.

    Only its user can enter a `private` folder.
    """
    root = Path(root)
    readable = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    stamp = time.strftime("%m%d-%H%M")
    folder = _make_unique(root, f"{readable}-{stamp}", 0o700 if private else 0o777)
    (folder / CHECKPOINTS).mkdir()
    _claim_or_release(folder, command)
    _link_last(folder)
    return folder


def _claim_or_release(
    folder: Path, command: str, notify: Callable[[str], None] = lambda sentence: None
) -> None:
    """A claim that fails halfway (a full disk) leaves no lease behind."""
    before = ownership.held(folder)
    try:
        claim(folder, command=command, notify=notify)
    except BaseException as error:
        if ownership.held(folder) not in (None, before):
            finish(folder, "failed", brief(error))
        raise


@contextlib.contextmanager
def failed_unless_started(folder: Path) -> Iterator[None]:
    """A context between the claim and the start of a run: an error in it ends and releases the run."""
    try:
        yield
    except BaseException as error:
        finish(folder, "failed", brief(error))
        raise


def claim(
    folder: Path,
    *,
    command: str = "",
    session: str | None = None,
    notify: Callable[[str], None] = lambda sentence: None,
) -> ownership.OwnershipLease:
    """Makes this process the owner of the run until `finish`, or raises an error that names the owner.

    The run may be new or resumed.

    A restarted process of the owning `session` takes over at once. `notify` gets a message if it takes a while.
    """
    before = ownership.current(folder)
    restarts = session is not None and before is not None and before.session == session
    mine = ownership.claim(folder, session=session, notify=notify)
    clear_leftovers(folder / CHECKPOINTS)
    state: State = "starting"
    known = _recorded(folder) if restarts else {}
    if known.get("state") in ("running", "recovering", "saving"):
        state = "recovering"
    record = {
        "state": state,
        **process_identity.this_process(),
        "command": command,
        "started": known.get("started", time.time()),
        "since": time.time(),
        "what": "its coordinator was lost and is being restarted" if state == "recovering" else "",
    }
    write_json(folder / RUN, record)
    if not restarts:
        run_log.write(folder, f"{command or 'started from Python'}: {versions()}")
    owner = record["pid"], record["host"]
    run_log.write(folder, "process {} on {} owns the run (lease {})".format(*owner, mine.fence))
    return mine


def hand_over(folder: Path) -> str:
    """Returns the session's name, with which another process will claim the run. We keep the lease until then."""
    mine = ownership.held(folder)
    assert mine is not None, "only the owner can hand a run over"
    return mine.session


def set_state(folder: Path, state: State, what: str = "") -> None:
    """Records the current state of the run: for `recovering`, `what` is being replaced. Raises `Fenced`.

    Costs a synced write if the state changed, and nothing otherwise. A failed write does not end the run.
    """
    ownership.check(folder)
    with contextlib.suppress(OSError, ValueError):
        known = _recorded(folder)
        if (known["state"], known.get("what", "")) != (state, what):
            write_json(folder / RUN, {**known, "state": state, "what": what, "since": time.time()})


def clear_leftovers(checkpoints: Path) -> None:
    """Removes the unfinished files of a dead process, or restores them if they are the only copy."""
    for path in checkpoints.glob(".*.old"):
        whole = checkpoints / path.name[1:].rsplit(".", 2)[0]
        if not whole.exists():
            path.rename(whole)
    for path in [*checkpoints.glob(".*.part"), *checkpoints.glob(".*.old")]:
        shutil.rmtree(path, ignore_errors=True)


def finish(folder: Path, how: Ending, reason: str | None = None) -> None:
    """Records how the run ended: done, stopped on request (it can be resumed), or failed with a reason.

    A fenced owner writes nothing: the run belongs to another process, possibly of the same session.
    """
    mine = ownership.held(folder)
    try:
        if mine is not None:
            mine.check()
    except ownership.Fenced:
        return
    _record_end(folder, mine, how, reason)


def finish_for_session(folder: Path, how: Ending, reason: str) -> None:
    """Like `finish`, for the process that started the run and has ended the others: it takes the lease back first."""
    mine = ownership.held(folder)
    if mine is None:
        return  # it has ended the run already
    try:
        mine = mine.regain()
    except ownership.Fenced:
        return
    _record_end(folder, mine, how, reason)


def _record_end(folder: Path, mine: ownership.OwnershipLease | None, how: Ending, reason: str | None) -> None:
    record = {"state": how, "what": "", "since": time.time(), "ended": time.time(), "reason": reason or ""}
    with contextlib.suppress(OSError, ValueError):  # release the lease even if the disk is full
        write_json(folder / RUN, {**_recorded(folder), **record})
    run_log.write(folder, f"{how}: {reason}" if reason else how)
    if mine is not None:
        mine.release()


def read(folder: Path) -> RunRecord:
    try:
        recorded, now = _recorded_and_standing(folder)
        started, ended = float(recorded["started"]), recorded.get("ended")
        return RunRecord(folder, now.state, recorded["command"], started, ended, now.reason, now)
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / RUN} is damaged; the run's checkpoints may still be intact") from None


def _recorded_and_standing(folder: Path) -> tuple[dict[str, Any], RunState]:
    """run.json, and the state that follows from it and the lease.

    An owner records how the run ended and then releases its lease. Between our two reads it may do both. So run.json is
    read again when a run recorded as live has no owner: only an owner that died leaves it unchanged.
    """
    recorded = _recorded(folder)
    now = run_state.standing(folder, recorded)
    if now.state != "failed" or (latest := _recorded(folder)) == recorded:
        return recorded, now
    return latest, run_state.standing(folder, latest)


def _recorded(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / RUN).read_text()))


def open_folder(
    resume: Path | None,
    root: str | Path,
    name: str,
    *,
    command: str = "",
    private: bool = False,
    notify: Callable[[str], None] = lambda sentence: None,
) -> Path:
    """The folder to train in, owned by this process from now on: that of the resumed run, or a new one."""
    if resume is None or not is_run(resume):
        return create(root, name, command=command, private=private)
    _claim_or_release(resume, command, notify)
    return resume


def write_text(path: Path, text: str) -> None:
    """Like `export_text`, for files of the run: only if this process owns the run."""
    ownership.check(path.parent)
    export_text(path, text)


def write_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Like `export_json`, for files of the run: only if this process owns the run."""
    write_text(path, _json(value))


def export_text(path: Path, text: str) -> None:
    """Writes a file that the user named, atomically, even if the machine stops while writing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming_output(path):
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # a read-only disk fails even if the file does not exist
            temporary.unlink(missing_ok=True)


def export_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Metrics that could not be measured (NaN) become null, because standard JSON has no NaN."""
    export_text(path, _json(value))


def _json(value: Mapping[str, Any] | Sequence[Any]) -> str:
    return json.dumps(_measured(value), indent=1, allow_nan=False) + "\n"


def _measured(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _measured(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_measured(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class WritesYaml(Protocol):
    def to_yaml(self) -> str: ...


def write_config(folder: Path, config: WritesYaml, command: str) -> None:
    """The resolved config, under a heading with the command and versions."""
    heading = f"# {' '.join(command.split())}\n# {versions()}\n"
    write_text(folder / CONFIG, heading + config.to_yaml())


def append_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Appends one line, if the run is still ours."""
    ownership.check(folder)
    run_log.append(folder / METRICS, json.dumps(_measured(metrics), allow_nan=False))


def metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl in order, without truncated lines."""
    path = folder / METRICS
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                if isinstance(numbers := json.loads(line), dict):
                    yield numbers


def _make_unique(root: Path, name: str, mode: int) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            folder = root / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode)
                return folder
    except OSError as error:
        raise UserError(
            f"cannot create a run folder in {root}/: {error.strerror}; set checkpoint.path"
        ) from None
    raise UserError(f"{root}/ has 9,999 runs named {name}; remove some")


def _link_last(folder: Path) -> None:
    temporary = folder.parent / f".{LAST}.{os.getpid()}"
    with contextlib.suppress(OSError):  # file systems without links: `find` looks at the start times
        temporary.symlink_to(folder.name)
        temporary.replace(folder.parent / LAST)


def is_run(path: Path) -> bool:
    """Whether it is the folder of a run."""
    return (path / RUN).is_file()
