"""Estimates the embedding rows, memory and time that a run will need, from a sample of the first examples.

Distinct ids grow with the number of examples n about as n^b (Heaps' law); b comes from the sample's two halves.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gearshift.data.batch import Batch
from gearshift.errors import UserError
from gearshift.training.learner import Learner
from gearshift.training.training import Training
from gearshift.training.worker import Worker

SAMPLE = 65_536  # examples in the sample
TIMED_STEPS = 4
FREE_SHARE = 0.9  # share of the memory for rows: the rest is for data and the network
TIER_SHARE = 0.7  # proposed share of the memory for rows if other rows go to disk


@dataclass(frozen=True)
class Estimate:
    rows: int
    row_bytes: int  # bytes of all rows
    seconds: float
    memory: int  # bytes available
    has_disk: bool = False  # rows beyond `memory` go to disk

    def text(self, training: Training) -> str:
        parts = training.learner.server.stores[0].parts if training.learner.server.stores else ()
        each = " + ".join(f"{p.width} {type(p.optimizer).__name__.removeprefix('Row')}" for p in parts)
        minutes = self.seconds / 60
        length = f"{minutes:.1f} min" if minutes >= 1 else f"{self.seconds:.0f} s"
        examples, batch = training.total // training.plan.epochs, training.plan.global_batch
        few = f" One step a pass: global_batch {batch:,} is all of the {examples:,} examples."
        on_disk = self.row_bytes - self.memory
        spilled = f", about {size_text(on_disk)} of them on disk" if self.has_disk and on_disk > 0 else ""
        return (
            f"Memory {count_text(self.rows)} embedding rows expected ({each}) = {size_text(self.row_bytes)} "
            f"of {size_text(self.memory)}{spilled}. Estimated time {length}."
            + (few if batch >= examples else "")
        )


def estimate(training: Training, memory: int | None = None) -> Estimate:
    """Reads the first examples; trains nothing and creates no row."""
    sample = _sample(training)
    total = training.total // training.plan.epochs
    rows, row_bytes = 0, 0
    for i, store in enumerate(training.learner.server.stores):
        expected = expected_rows(training.learner, sample, i, total)
        rows += expected
        row_bytes += expected * bytes_per_row(store.width, store.state_width)
    steps = training.total / training.plan.global_batch
    seconds = _step_seconds(training.learner, sample[:TIMED_STEPS]) * steps
    return Estimate(rows, row_bytes, seconds, memory or available_memory(), memory is not None)


def bytes_per_row(width: int, state_width: int) -> int:
    """Weights, state and counters, and a 16-byte slot in an index that is about 60 % full."""
    return 4 * (width + state_width) + 12 + 27


def _sample(training: Training) -> list[Batch]:
    count = max(2, min(SAMPLE // training.plan.global_batch, 64))
    with closing(training.train.batches(training.plan.global_batch)) as batches:
        return list(itertools.islice(batches, count))


def expected_rows(learner: Learner, sample: list[Batch], store: int, total: int) -> int:
    group = learner.worker.groups[store]
    ids = [np.unique(group.occurrences(batch)) for batch in sample]
    seen = sum(len(batch) for batch in sample)
    if not ids or not seen:
        return 0
    whole = len(np.unique(np.concatenate(ids)))
    half = len(np.unique(np.concatenate(ids[: max(1, len(ids) // 2)])))
    growth = 0.0 if len(ids) < 2 or half == 0 else max(0.0, min(1.0, math.log2(whole / half)))
    return int(whole * max(1.0, total / seen) ** growth)


def _step_seconds(learner: Learner, sample: list[Batch]) -> float:
    """The time of a step on a copy of the network; rows are read but not created."""
    worker = Worker(
        copy.deepcopy(learner.model), learner.schema, loss=learner.worker.loss, threads=learner.worker.threads
    )
    times = []
    for batch in sample:
        started = time.perf_counter()
        indexed = learner.find(batch)
        worker.compute(indexed, learner.server.peek(indexed, worker.buffers))
        times.append(time.perf_counter() - started)
    return min(times, default=0.0)  # the first ones warm up


def count_text(count: int) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:.1f} M"


def size_text(size: int) -> str:
    for unit, bytes_of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_of:
            return f"{size / bytes_of:.1f} {unit}"
    return f"{size} B"


def available_memory() -> int:
    """The memory of this machine, or the limit of its container if that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total


def refuse_too_large(estimate: Estimate, training: Training) -> None:
    if estimate.has_disk or estimate.row_bytes <= FREE_SHARE * estimate.memory:
        return
    fitting = max(1, int(TIER_SHARE * estimate.memory) >> 30)
    smaller = sum(
        estimate.rows * bytes_per_row(store.width, len(store.parts)) // len(training.learner.server.stores)
        for store in training.learner.server.stores
    )
    raise UserError(
        f"needs about {size_text(estimate.row_bytes)} for {count_text(estimate.rows)} embedding rows "
        f"({size_text(estimate.memory)} here). Options: optimizer.embeddings.name=rowwise_adagrad "
        f"({size_text(smaller)}), a smaller model.dim, fewer id features, or memory={fitting}GiB: rows that do not "
        "fit go to disk"
    )
