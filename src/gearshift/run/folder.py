"""A run is a folder: what every tool may rely on to find, read and resume it.

    runs/shop-clicks-1115-2004/
      run.json      who runs it and how it ended     config.yaml    resolved, with versions and the command
      report.json   final figures, stable keys       metrics.jsonl  one line per measurement
      checkpoints/  {step-600, step-1030, last, best}     events-000.jsonl  decisions, to be replayed
      run.log       what it told its user, with times  faults.jsonl   what broke, and what it cost (log.py)
      control.sock, control.key   to ask a live run (control.py)
      cluster.json  of a run on a cluster: what its coordinator must know when it starts anew
      lease/        who owns the run (ownership.py)
    runs/last       a link to the newest

Files appear whole or not at all (written beside and renamed); run.log and the .jsonl files only grow. A run that says
it is running is believed only while somebody holds its lease (state.py). Only its owner writes into the folder; an
owner that was replaced finds out before it writes. Knows no torch, no model and no data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from gearshift.errors import UserError, brief, naming
from gearshift.run import log as run_log
from gearshift.run import ownership, process_identity
from gearshift.run import state as run_state
from gearshift.run.state import Ending, RunState, State

RUN, CONFIG, REPORT, METRICS, LAST = "run.json", "config.yaml", "report.json", "metrics.jsonl", "last"
CHECKPOINTS = "checkpoints"
CLUSTER = "cluster.json"  # of a run whose processes are on a cluster


@dataclass(frozen=True)
class RunRecord:
    """What run.json says, with the state as it is now."""

    folder: Path
    state: State
    command: str
    started: float  # epoch seconds
    ended: float | None = None
    reason: str = ""  # why it stopped or failed, or where it is
    standing: RunState = run_state.NOT_KNOWN

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_live(self) -> bool:
        return self.state in run_state.LIVE

    @property
    def needs_heartbeats(self) -> bool:
        """Only heartbeats, seen over time, can tell whether it lives."""
        return self.standing.recorded != "unknown"

    def seen_by(self, watcher: run_state.Watcher) -> RunRecord:
        """With what its heartbeats show."""
        now = watcher.look(self.standing)
        return replace(self, state=now.state, reason=now.reason, standing=now)


def create(root: str | Path, name: str, *, command: str = "", private: bool = False) -> Path:
    """A new folder `name-MMDD-HHMM` below `root`, owned by this process; `last` points to it.

    Nobody but its user can enter a `private` one.
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
    folder: Path, command: str, tell: Callable[[str], None] = lambda sentence: None
) -> None:
    """A claim that fails halfway (a full disk) leaves no lease behind."""
    before = ownership.held(folder)
    try:
        claim(folder, command=command, tell=tell)
    except BaseException as error:
        if ownership.held(folder) not in (None, before):
            finish(folder, "failed", brief(error))
        raise


@contextlib.contextmanager
def failed_unless_started(folder: Path) -> Iterator[None]:
    """Around what comes between the claim and the start of a run: what goes wrong ends it and releases it."""
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
    tell: Callable[[str], None] = lambda sentence: None,
) -> ownership.OwnershipLease:
    """Makes this process the owner of the run until `finish` (a new run, or one that is resumed), or says who is.

    A restarted process of the owning `session` takes over at once. `tell` hears why it may take half a minute.
    """
    before = ownership.current(folder)
    restarts = session is not None and before is not None and before.session == session
    mine = ownership.claim(folder, session=session, tell=tell)
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
        "what": "its coordinator was lost and is restarted" if state == "recovering" else "",
    }
    write_json(folder / RUN, record)
    if not restarts:
        run_log.write(folder, f"{command or 'started from Python'}: {versions()}")
    owner = record["pid"], record["host"]
    run_log.write(folder, "process {} on {} owns the run (lease {})".format(*owner, mine.fence))
    return mine


def hand_over(folder: Path) -> str:
    """Another process of this session will claim it: the session's name. This one keeps the lease until then."""
    mine = ownership.held(folder)
    assert mine is not None, "a run that is handed over is this process's own"
    return mine.session


def set_state(folder: Path, state: State, what: str = "") -> None:
    """Records what the run does now: for `recovering`, `what` is being replaced. Raises `Fenced`.

    Costs a synced write if the state changed, and nothing otherwise. What cannot be written is no reason to end.
    """
    ownership.check(folder)
    with contextlib.suppress(OSError, ValueError):
        known = _recorded(folder)
        if (known["state"], known.get("what", "")) != (state, what):
            write_json(folder / RUN, {**known, "state": state, "what": what, "since": time.time()})


def clear_leftovers(checkpoints: Path) -> None:
    """What a process that died left half done: it goes, or back to its place if it is the only copy."""
    for path in checkpoints.glob(".*.old"):
        whole = checkpoints / path.name[1:].rsplit(".", 2)[0]
        if not whole.exists():
            path.rename(whole)
    for path in [*checkpoints.glob(".*.part"), *checkpoints.glob(".*.old")]:
        shutil.rmtree(path, ignore_errors=True)


def finish(folder: Path, how: Ending, reason: str | None = None) -> None:
    """How the run ended: done, asked to stop (can be resumed), or failed with a reason.

    An owner that was fenced writes nothing: the run is another's, be it a process of the same session.
    """
    mine = ownership.held(folder)
    try:
        if mine is not None:
            mine.check()
    except ownership.Fenced:
        return
    _record_end(folder, mine, how, reason)


def finish_for_session(folder: Path, how: Ending, reason: str) -> None:
    """As `finish`, for whoever started the run and has ended its other processes: it takes the lease back first."""
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
    with contextlib.suppress(OSError, ValueError):  # a full disk is no reason to keep the lease
        write_json(folder / RUN, {**_recorded(folder), **record})
    run_log.write(folder, f"{how}: {reason}" if reason else how)
    if mine is not None:
        mine.release()


def read(folder: Path) -> RunRecord:
    try:
        said = _recorded(folder)
        now = run_state.standing(folder, said)
        started, ended = float(said["started"]), said.get("ended")
        return RunRecord(folder, now.state, said["command"], started, ended, now.reason, now)
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / RUN} is damaged; the run's checkpoints may still be intact") from None


def _recorded(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / RUN).read_text()))


def list_runs(root: str | Path) -> list[RunRecord]:
    """All runs below `root`, newest first; one whose record cannot be read hides no other."""
    folders = [path.parent for path in Path(root).glob(f"*/{RUN}") if not path.parent.is_symlink()]
    return sorted((_read_or_damaged(folder) for folder in folders), key=lambda record: -record.started)


def _read_or_damaged(folder: Path) -> RunRecord:
    try:
        return read(folder)
    except (UserError, OSError) as error:
        changed = folder.stat().st_mtime
        return RunRecord(folder, "damaged", "", changed, reason=str(error).removeprefix(f"{folder}/"))


def find(run: str | Path, *roots: str | Path) -> Path:
    """The folder of a run: its path, `last`, or the beginning of its name if that is unique.

    Looks in each of `roots` in turn (`runs` if none is given); the first that has such a run decides. A run's
    checkpoint stands for the run.
    """
    path = Path(run)
    if _is_run(path):
        return path
    if path.parent.name == CHECKPOINTS and _is_run(path.parent.parent) and path.exists():
        return path.parent.parent
    if path.exists():
        raise UserError(f"{path} is not a run folder (it has no {RUN})")
    distinct = {Path(root).resolve(): Path(root) for root in reversed(roots or ("runs",))}
    looked_in = list(reversed(distinct.values()))
    names: list[str] = []
    for root in looked_in:
        records = list_runs(root)
        if records and str(run) == LAST:
            return _last(root, records)
        if fitting := _named(str(run), records):
            return fitting
        names += [record.name for record in records]
    places = " or ".join(f"{root}/" for root in looked_in)
    if not names:
        raise UserError(
            f"no run `{run}`: there are no runs in {places} yet; start one: gearshift train CONFIG"
        )
    raise UserError(f"no run `{run}` in {places}; newest: {', '.join(names[:3])} (all: gearshift runs)")


def resume_from(name: str | Path, *roots: str | Path) -> Path:
    """What `resume` names: a run's folder, which goes on; or a checkpoint, from which a new run branches off.

    A checkpoint is `RUN@step-600`, `RUN@best` or its path. The last one of a run is the run: there is nothing
    behind it that going on could overwrite.
    """
    path = Path(name)
    run, at, wanted = str(name).rpartition("@")
    if path.exists() or not at:
        folder = find(path, *roots)
        if path.parent.name != CHECKPOINTS or path.parent.parent != folder:
            return folder
    else:
        folder = find(run, *roots)
        path = folder / CHECKPOINTS / wanted
    last = (folder / CHECKPOINTS / LAST).resolve()
    if not path.is_dir():
        there = sorted(folder.glob(f"{CHECKPOINTS}/step-*"), key=lambda step: int(step.name[5:]))
        names = ", ".join([LAST, "best", *(step.name for step in there)]) if there else "none yet"
        raise UserError(f"run {folder} has no checkpoint `{path.name}`; it has: {names}")
    return folder if path.resolve() == last else path.with_name(path.resolve().name)


def open_folder(
    resume: Path | None,
    root: str | Path,
    name: str,
    *,
    command: str = "",
    private: bool = False,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Path:
    """The folder to train in, ours from now on: that of a run which goes on, else a new one."""
    if resume is None or not _is_run(resume):
        return create(root, name, command=command, private=private)
    _claim_or_release(resume, command, tell)
    return resume


def _named(name: str, records: list[RunRecord]) -> Path | None:
    exact = [record.folder for record in records if record.name == name]
    fits = exact or [record.folder for record in records if record.name.startswith(name)]
    if len(fits) > 1:
        some = ", ".join(sorted(folder.name for folder in fits)[:5])
        raise UserError(f"`{name}` is the beginning of {len(fits)} runs; name one: {some}")
    return fits[0] if fits else None


def write_text(path: Path, text: str) -> None:
    """As `export_text`, of a run's own files: only if the run is ours."""
    ownership.check(path.parent)
    export_text(path, text)


def write_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """As `export_json`, of a run's own files: only if the run is ours."""
    write_text(path, _json(value))


def export_text(path: Path, text: str) -> None:
    """A file that the user named, wherever it is. Whole or not at all, also when the machine stops while writing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def export_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Figures that could not be measured (NaN) become null, which every reader of JSON knows."""
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
    """The resolved config, under a heading that says what made it."""
    heading = f"# {' '.join(command.split())}\n# {versions()}\n"
    write_text(folder / CONFIG, heading + config.to_yaml())


def append_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """One line more, if the run is still ours."""
    ownership.check(folder)
    run_log.append(folder / METRICS, json.dumps(_measured(metrics), allow_nan=False))


def metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl in order; torn ones are left out."""
    path = folder / METRICS
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                if isinstance(numbers := json.loads(line), dict):
                    yield numbers


def versions() -> str:
    """`gearshift 0.1.0, torch 2.13.0, python 3.11.2, commit 1a2b3c4` without importing any of them."""
    names = {"gearshift": "gearshift-ctr", "torch": "torch", "numpy": "numpy", "pyarrow": "pyarrow"}
    parts = []
    for name, distribution in names.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(distribution)}")
    commit = _git_commit()
    return ", ".join(
        [*parts, f"python {platform.python_version()}", *([f"commit {commit}"] if commit else [])]
    )


def _git_commit() -> str:
    """Of the working folder: the user's own project, if it is one."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


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
            f"cannot make a run folder in {root}/: {error.strerror}; set checkpoint.path"
        ) from None
    raise UserError(f"{root}/ has 9,999 runs named {name}; remove some")


def _link_last(folder: Path) -> None:
    beside = folder.parent / f".{LAST}.{os.getpid()}"
    with contextlib.suppress(OSError):  # file systems without links: `find` looks at the start times
        beside.symlink_to(folder.name)
        beside.replace(folder.parent / LAST)


def _last(root: Path, records: list[RunRecord]) -> Path:
    link = root / LAST
    return root / link.resolve().name if _is_run(link) else records[0].folder


def _is_run(path: Path) -> bool:
    return (path / RUN).is_file()
