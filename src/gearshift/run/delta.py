"""Deltas: what changed between two checkpoints of a run, so that a remote copy can be updated without sending all rows.

    delta/manifest.json             the base it applies to, and digests of the rows before and after
          rows0-00-000.gsr          the rows of store 0 that are new or changed, and tombstones of those that are gone
          dense.safetensors, ...    all other arrays, whole

A base and its deltas give the full checkpoint, bit for bit; digests of all rows verify it. It does not matter how many
shards wrote either checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gearshift.embedding import row_files
from gearshift.embedding.row_files import PartitionChanges
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.part_folder import written_beside
from gearshift.parameters.row_changes import Partitions, RowDigest, applied, by_partition, changes
from gearshift.run import catalog

DELTA, OF_SHARDS = "delta", "row_parts"  # key among the facts of a manifest


@dataclass(frozen=True)
class Delta:
    """A delta that was written."""

    path: Path
    since: int
    step: int
    changed: int  # rows that are new or differ
    erased: int
    rows: int  # rows of the newer checkpoint
    bytes: int


@dataclass
class Counted:
    """What was in the changes that were read."""

    changed: int = 0
    erased: int = 0

    def reading(self, difference: Iterable[PartitionChanges]) -> Iterator[PartitionChanges]:
        for each in difference:
            self.changed += len(each.changed.ids_U)
            self.erased += len(each.erased_U)
            yield each


def write_delta(
    run: str | Path, since: int, *, to: int | None = None, path: str | Path | None = None
) -> Delta:
    """Writes what changed between the checkpoints of step `since` and step `to` (the last one if None)."""
    folder = catalog.find(run)
    checkpoints = folder / "checkpoints"
    base, newer = _of_step(checkpoints, since), _of_step(checkpoints, to)
    step = int(newer.facts["step"])
    if step <= since:
        raise UserError(f"the checkpoint of step {step} is not newer than that of step {since}")
    out = Path(path) if path else folder / "deltas" / f"step-{since}-to-{step}"
    if path is not None:
        _refuse_existing(out)
    counts: dict[str, dict[str, Any]] = {}
    arrays = _arrays(newer)
    with written_beside(out) as temporary:
        files: dict[str, Any] = {}
        for name in sorted(_stores(base) | _stores(newer)):
            before, after, counted = RowDigest(), RowDigest(), Counted()
            difference = changes(
                before.reading(by_partition(base.rows(name))), after.reading(by_partition(newer.rows(name)))
            )
            stacks = row_files.write_changes(temporary, name, counted.reading(difference), newer.layout(name))
            files |= checkpoint.entries(stacks)
            counts[name] = {"base": before.facts, "full": after.facts, **vars(counted)}
        facts = {k: v for k, v in newer.facts.items() if k != OF_SHARDS}
        facts[DELTA] = {"since": since, "stores": counts}
        checkpoint.finish(temporary, out, facts, arrays, files, version=checkpoint.FORMAT_DELTA)
    return Delta(
        out,
        since,
        step,
        sum(each["changed"] for each in counts.values()),
        sum(each["erased"] for each in counts.values()),
        sum(each["full"]["rows"] for each in counts.values()),
        sum(file.stat().st_size for file in out.iterdir()),
    )


def apply_deltas(base: str | Path, deltas: Sequence[str | Path], path: str | Path) -> Path:
    """Writes the full checkpoint that follows from a base and deltas, in order, to the folder `path`."""
    if not deltas:
        raise UserError("name at least one delta")
    opened = Checkpoint.open(checkpoint.resolve(Path(base)))
    chain = [Checkpoint.open(Path(delta), formats=(checkpoint.FORMAT_DELTA,)) for delta in deltas]
    _check_order(opened, chain)
    last, out = chain[-1], Path(path)
    _refuse_existing(out)
    with written_beside(out) as temporary:
        files: dict[str, Any] = {}
        for name in sorted(last.facts[DELTA]["stores"]):
            before, after = RowDigest(), RowDigest()
            rows: Partitions = before.reading(by_partition(opened.rows(name)))
            for delta in chain:
                rows = applied(rows, delta.row_changes(name))
            layout = last.layout(name) or opened.layout(name)
            blocks = (block for _, block in after.reading(rows))
            files |= checkpoint.write_rows(temporary, name, blocks, layout)
            if before.facts != _digests(chain[0], name)["base"]:
                raise UserError(f"delta {chain[0].path} was made for other rows than those of {opened.path}")
            if after.facts != _digests(last, name)["full"]:
                raise UserError(
                    f"delta {last.path} does not reproduce the rows that it was made from; make a new one"
                )
        facts = {k: v for k, v in last.facts.items() if k != DELTA}
        checkpoint.finish(temporary, out, facts, _arrays(last), files)
    return out


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise UserError(f"{out} exists: name a new folder")


def _digests(delta: Checkpoint, name: str) -> dict[str, Any]:
    """Of a store before and after the delta, which does not list stores without rows."""
    no_rows = RowDigest().facts
    facts: dict[str, Any] = delta.facts[DELTA]["stores"].get(name, {"base": no_rows, "full": no_rows})
    return facts


def _of_step(checkpoints: Path, step: int | None) -> Checkpoint:
    path = checkpoints / ("last" if step is None else f"step-{step}")
    if not (path / checkpoint.MANIFEST).is_file():
        kept = sorted(int(each.name.removeprefix("step-")) for each in checkpoints.glob("step-*"))
        known = f"there are those of steps {', '.join(map(str, kept))}" if kept else "the run has none yet"
        raise UserError(
            f"no checkpoint of step {step} in {checkpoints}: {known} (checkpoint.keep keeps more)"
        )
    return Checkpoint.open(path.resolve())


def _check_order(base: Checkpoint, chain: Sequence[Checkpoint]) -> None:
    step, where = int(base.facts["step"]), base.path
    for delta in chain:
        since = delta.facts[DELTA]["since"]
        if since != step:
            raise UserError(f"delta {delta.path} applies to step {since}, but {where} is from step {step}")
        step, where = int(delta.facts["step"]), delta.path
    for earlier, later in pairwise(chain):
        for name in {*earlier.facts[DELTA]["stores"], *later.facts[DELTA]["stores"]}:
            if _digests(later, name)["base"] != _digests(earlier, name)["full"]:
                raise UserError(f"delta {later.path} was made for other rows than those of {earlier.path}")


def _stores(saved: Checkpoint) -> set[str]:
    return {match[0] for file in saved.files if (match := re.match(r"(baseline-)?rows\d+(?=-)", file))}


def _arrays(saved: Checkpoint) -> dict[str, Any]:
    """All arrays that are not rows."""
    names = [file.removesuffix(".safetensors") for file in saved.files if file.endswith(".safetensors")]
    rows = tuple(f"{store}-" for store in _stores(saved))
    return {name: saved.arrays(name) for name in names if not name.startswith(rows)}
