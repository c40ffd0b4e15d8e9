"""Finds runs: all runs below a folder, or the run that a user names. Does not depend on torch, models or data."""

from __future__ import annotations

from pathlib import Path

from gearshift.errors import UserError
from gearshift.run.folder import CHECKPOINTS, LAST, RUN, RunRecord, is_run, read


def list_runs(root: str | Path) -> list[RunRecord]:
    """All runs below `root`, newest first, including runs whose record cannot be read."""
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

    Looks in each of `roots` in turn (`runs` if none is given); the first folder with such a run is used. The path of a
    checkpoint names its run.
    """
    path = Path(run)
    if is_run(path):
        return path
    if path.parent.name == CHECKPOINTS and is_run(path.parent.parent) and path.exists():
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
    """What `resume` names: a run's folder, to continue that run; or a checkpoint, from which a new run branches off.

    A checkpoint is `RUN@step-600`, `RUN@best` or its path. The last checkpoint of a run stands for the run: there are
    no later steps that continuing could overwrite.
    """
    found = find_model(name, *roots)
    if is_run(found):
        return found
    folder = found.parent.parent
    return folder if found.resolve() == (folder / CHECKPOINTS / LAST).resolve() else found


def find_model(name: str | Path, *roots: str | Path) -> Path:
    """A run's folder, as `find` does, or its checkpoint, if the name is `RUN@step-600`, `RUN@best` or a path."""
    path = Path(name)
    run, at, wanted = str(name).rpartition("@")
    if path.exists() or not at:
        folder = find(path, *roots)
        if path.parent.name != CHECKPOINTS or path.parent.parent != folder:
            return folder
    else:
        folder = find(run, *roots)
        path = folder / CHECKPOINTS / wanted
    if not path.is_dir():
        there = sorted(folder.glob(f"{CHECKPOINTS}/step-*"), key=lambda step: int(step.name[5:]))
        names = ", ".join([LAST, "best", *(step.name for step in there)]) if there else "none yet"
        raise UserError(f"run {folder} has no checkpoint `{path.name}`; it has: {names}")
    return path.with_name(path.resolve().name)


def _named(name: str, records: list[RunRecord]) -> Path | None:
    exact = [record.folder for record in records if record.name == name]
    fits = exact or [record.folder for record in records if record.name.startswith(name)]
    if len(fits) > 1:
        some = ", ".join(sorted(folder.name for folder in fits)[:5])
        raise UserError(f"`{name}` is the beginning of {len(fits)} runs; name one: {some}")
    return fits[0] if fits else None


def _last(root: Path, records: list[RunRecord]) -> Path:
    link = root / LAST
    return root / link.resolve().name if is_run(link) else records[0].folder
