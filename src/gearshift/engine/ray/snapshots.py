"""Snapshots of a run on many shards: each shard writes its part, and the parts become an ordinary checkpoint.

    checkpoints/.step-600-3.part/     while it is written, by incarnation 3
        rows0-s1-08-000.gsr           rows of store 0 on shard 1, in row files
        dense-s1.safetensors          its dense parameters, their optimizer's state, running statistics, bmuf's velocity
        s1.json                       the manifest entries of its rows, and the number of rows

All machines must see the folder. A shard loads the rows whose hash maps to it, so a checkpoint of any engine and any
number of shards loads on any other. If the number of shards is the same, it reads only its own files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor

from gearshift.embedding.row_rules import counts_by_table
from gearshift.embedding.rule_figures import RuleCounts
from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import RowBlock, StoreSnapshot
from gearshift.errors import naming
from gearshift.parameters import checkpoint
from gearshift.parameters.average import AVERAGE, AverageClock, DenseAverage, arrays_of
from gearshift.parameters.checkpoint import Arrays, Checkpoint
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ShardLayout, shard_server
from gearshift.run.saver import refuse_vanished
from gearshift.training.learner import Learner, is_of_rows

Size = tuple[int, int]  # rows, and the bytes of memory that they take
PARTS = "row_parts"  # among a checkpoint's facts: the number of shards whose files hold the rows


def part_folder(checkpoints: Path, name: str) -> Path:
    return checkpoints / f".{name}.part"


@dataclass(frozen=True)
class ShardSnapshot:
    """A shard's part at the time of the cut; the shard keeps working."""

    shard: int
    dense: dict[str, Tensor]  # keys: flat, optimizer/..., statistics/..., average..., and velocity under bmuf
    rows: tuple[StoreSnapshot, ...]
    sizes: tuple[Size, ...]  # of the stores

    @classmethod
    def of(cls, server: Server, shard: int) -> ShardSnapshot:
        dense = {"flat": server.flat.clone()}
        dense |= {f"optimizer/{name}": values.clone() for name, values in server.optimizer_state.items()}
        dense |= {f"statistics/{name}": values.clone() for name, values in server.buffers.items()}
        if server.block_velocity is not None:
            dense["velocity"] = server.block_velocity.clone()
        if (average := server.average) is not None:
            dense |= {
                "average": average.flat.clone(),
                "average_clock": torch.from_numpy(average.clock.array()),
            }
            dense |= {f"average_statistics/{n}": values.clone() for n, values in average.buffers.items()}
        sizes = tuple((len(store), store.memory_bytes()) for store in server.stores)
        return cls(shard, dense, tuple(store.cut() for store in server.stores), sizes)

    def write(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called first, and may raise."""
        try:
            check()
            refuse_vanished(folder.parent.parent)
            folder.mkdir(parents=True, exist_ok=True)
            files: dict[str, Any] = {}
            for i, cut in enumerate(self.rows):
                files |= checkpoint.write_rows(folder, f"rows{i}-s{self.shard}", cut)
            arrays = {name: values.numpy() for name, values in self.dense.items()}
            (folder / f"dense-s{self.shard}.safetensors").write_bytes(save(arrays))
            entry = {"files": files, "sizes": self.sizes}
            (folder / f"s{self.shard}.json").write_text(json.dumps(entry))
        finally:
            self.close()

    def close(self) -> None:
        for cut in self.rows:
            cut.close()


def load_part(learner: Learner, layout: ShardLayout, shard: int, path: Path) -> Server:
    """The server of this shard, with its part of the checkpoint; `learner` belongs to this process alone."""
    parted_alike = checkpoint.read_facts(path).get(PARTS) == layout.shards
    saved = Checkpoint.open(
        path, lambda file: not (parted_alike and is_of_rows(file)) or f"-s{shard}-" in file
    )
    keep = None if parted_alike else lambda block: _own_rows(block, shard, layout.shards)
    learner.restore(saved, keep=keep)
    server = shard_server(learner.server, layout, shard)
    if layout.shards > 1:
        server.threads = learner.server.threads
    if saved.has("replicas"):
        velocity = torch.from_numpy(saved.arrays("replicas")["velocity"])
        server.block_velocity = velocity[layout.dense[shard]].clone()
    return server


def _own_rows(block: RowBlock, shard: int, shards: int) -> RowBlock:
    if shards == 1:
        return block
    at = IdPlacement(block.ids_U, shards).groups[shard]
    return replace(block, **{f.name: getattr(block, f.name)[at] for f in fields(block)})


def commit(
    learner: Learner,
    layout: ShardLayout,
    temporary: Path,
    path: Path,
    facts: Mapping[str, Any],
    arrays: Mapping[str, Arrays],
    check: Callable[[], None] = lambda: None,
) -> list[Size]:
    """Turns the parts in `temporary` into a checkpoint. The learner's dense values become those of the cut.

    A velocity among the arrays of replicas is replaced by that of the shards.
    Returns the sizes of the stores, summed over all shards.
    """
    optimizer: dict[str, Tensor] = {
        name: torch.empty_like(values) for name, values in learner.server.optimizer_state.items()
    }
    files: dict[str, Any] = {}
    sizes: list[list[Size]] = []  # by shard
    velocity = torch.zeros_like(learner.worker.dense.flat) if "replicas" in arrays else None
    with torch.no_grad():
        for shard, columns in enumerate(layout.dense):
            part = dict(_arrays(temporary / f"dense-s{shard}.safetensors"))
            learner.worker.dense.flat[columns].copy_(torch.from_numpy(part["flat"]))
            for name, values in optimizer.items():
                saved = torch.from_numpy(part[f"optimizer/{name}"])
                if values.dim():
                    values[columns] = saved
                elif shard == 0:
                    values.copy_(saved)
            for name, values in learner.server.buffers.items() if shard == 0 else ():
                values.copy_(torch.from_numpy(part[f"statistics/{name}"]))
            if learner.server.average is not None:
                _take_average(learner.server.average, shard, columns, part)
            if velocity is not None:
                velocity[columns] = torch.from_numpy(part["velocity"])
            with naming(temporary / f"s{shard}.json"):
                entry = json.loads((temporary / f"s{shard}.json").read_text())
            files |= entry["files"]
            sizes.append(entry["sizes"])
    learner.rules_elsewhere = _rule_counts(learner, temporary, files)
    for leftover in [*temporary.glob("dense-s*.safetensors"), *temporary.glob("s*.json")]:
        leftover.unlink()
    dense: dict[str, Arrays] = {
        "dense": {name: t.numpy() for name, t in learner.worker.dense.state().items()},
        "optimizer": {name: t.numpy() for name, t in optimizer.items()},
    }
    if learner.server.average is not None:
        dense[AVERAGE] = arrays_of(learner.server.average, learner.worker.dense)
    if velocity is not None:
        dense["replicas"] = {"velocity": velocity.numpy()}
    checkpoint.finish(temporary, path, {**facts, PARTS: layout.shards}, {**arrays, **dense}, files, check)
    return [(sum(n for n, _ in store), sum(size for _, size in store)) for store in zip(*sizes, strict=True)]


def _take_average(
    average: DenseAverage, shard: int, columns: slice, part: Mapping[str, NDArray[Any]]
) -> None:
    """The clock of all parts is the same."""
    average.flat[columns].copy_(torch.from_numpy(part["average"]))
    average.clock = AverageClock.of(part["average_clock"])
    for name, values in average.buffers.items() if shard == 0 else ():
        values.copy_(torch.from_numpy(part[f"average_statistics/{name}"]))


def _rule_counts(learner: Learner, folder: Path, files: Mapping[str, Any]) -> RuleCounts:
    """What the rules of admission and expiry have done, on all shards."""
    counts: RuleCounts = {}
    for i, store in enumerate(learner.server.stores):
        names = [name for name in files if name.startswith(f"rules{i}-")]
        states = [dict(_arrays(folder / name)) for name in names]
        if states:
            counts |= counts_by_table(store.lifetimes.rules, sum(state["counts"].sum(0) for state in states))
    return counts


def discard(checkpoints: Path, name: str) -> None:
    shutil.rmtree(part_folder(checkpoints, name), ignore_errors=True)


def _arrays(file: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    with naming(file), safe_open(file, framework="numpy") as opened:
        for name in opened.keys():  # noqa: SIM118 (not a dict)
            yield name, np.asarray(opened.get_tensor(name))
