"""Estimates the embedding rows, memory and time that a run will need, from a sample of the first examples.

Distinct ids grow with the number of examples n about as n^b (Heaps' law); b comes from the sample's two halves.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from gearshift.data.batch import Batch
from gearshift.embedding.machine_memory import machine_memory
from gearshift.errors import UserError
from gearshift.settings.units import write_bytes
from gearshift.training.learner import Learner
from gearshift.training.tier_estimate import RowGrowth, TierEstimate, estimate_tier
from gearshift.training.training import Training
from gearshift.training.worker import Worker

SAMPLE = 65_536  # examples in the sample
TIMED_STEPS = 4
FREE_SHARE = 0.9  # of the memory: the rest is for data and the network
TIER_SHARE = 0.7  # of the memory, proposed for rows if the others go to disk
PROCESS_BYTES = 1 << 30  # of a process without rows: libraries, data, a dense model
LEAST_PROPOSED = 64 << 20  # enough for any common model


@dataclass(frozen=True)
class Estimate:
    rows: int
    row_bytes: int  # bytes of all rows
    seconds: float
    memory: int  # bytes that may be used
    tier: TierEstimate | None = None  # rows beyond `memory` go to disk

    def text(self, training: Training) -> str:
        parts = training.learner.server.stores[0].parts if training.learner.server.stores else ()
        each = " + ".join(f"{p.width} {type(p.optimizer).__name__.removeprefix('Row')}" for p in parts)
        minutes = self.seconds / 60
        length = f"{minutes:.1f} min" if minutes >= 1 else f"{self.seconds:.0f} s"
        examples, batch = training.total // training.plan.epochs, training.plan.global_batch
        few = f" One step a pass: global_batch {batch:,} is all of the {examples:,} examples."
        return (
            f"Memory {count_text(self.rows)} embedding rows expected ({each}) = {size_text(self.row_bytes)} "
            f"of {size_text(self.memory)}{_tier_text(self.tier)}. Estimated time {length}."
            + (few if batch >= examples else "")
        )


def _tier_text(tier: TierEstimate | None) -> str:
    """`: 1.4 M in memory, 3.8 M on disk in up to 1.1 GB below rows (78.0 GB free). ...`"""
    if tier is None:
        return ""
    if not tier.cold_rows:
        return ": all of them in memory"
    free = "" if tier.free_bytes is None else f" ({size_text(tier.free_bytes)} free)"
    text = (
        f": about {count_text(tier.hot_rows)} in memory, {count_text(tier.cold_rows)} on disk in up to "
        f"{size_text(tier.disk_bytes)} below {tier.folder}{free}"
    )
    if tier.free_bytes is not None and tier.free_bytes < tier.disk_bytes:
        text += ". Warning: they may not fit there; set storage.path to a larger disk"
    reads, rate = tier.final_reads_per_example, tier.reads_per_second
    if rate is None or not reads:
        return text
    return (
        f"{text}. At the end {reads:.2g} rows per example come from disk, at {rate:,.0f} random reads/s: "
        f"about {rate / reads:,.0f} examples/s at most"
    )


def estimate(training: Training) -> Estimate:
    """Reads the first examples; trains nothing and creates no row."""
    sample, learner = _sample(training), training.learner
    total = training.total // training.plan.epochs
    growths = [expected_growth(learner, sample, i, total) for i in range(len(learner.server.stores))]
    row_bytes = sum(
        g.rows * bytes_per_row(s.width, s.state_width)
        for g, s in zip(growths, learner.server.stores, strict=True)
    )
    steps = training.total / training.plan.global_batch
    seconds = _step_seconds(learner, sample[:TIMED_STEPS]) * steps
    folder = next((store.tier.folder for store in learner.server.stores if store.tier), None)
    if folder is None:
        return Estimate(sum(g.rows for g in growths), row_bytes, seconds, machine_memory())
    tier = estimate_tier(growths, folder)
    if tier.reads_per_second:
        seconds = max(seconds, training.plan.epochs * tier.reads / tier.reads_per_second)
    return Estimate(sum(g.rows for g in growths), row_bytes, seconds, sum(g.budget for g in growths), tier)


def bytes_per_row(width: int, state_width: int) -> int:
    """Weights, state and counters, and a 16-byte slot in an index that is about 60 % full."""
    return 4 * (width + state_width) + 12 + 27


def _sample(training: Training) -> list[Batch]:
    count = max(2, min(SAMPLE // training.plan.global_batch, 64))
    with closing(training.train.batches(training.plan.global_batch)) as batches:
        return list(itertools.islice(batches, count))


def expected_growth(learner: Learner, sample: list[Batch], store: int, total: int) -> RowGrowth:
    group, of = learner.worker.groups[store], learner.server.stores[store]
    ids = [group.occurrences(batch) for batch in sample]
    seen, occurrences = sum(len(batch) for batch in sample), sum(map(len, ids))
    floats, budget = of.width + of.state_width, of.tier.budget if of.tier else 0
    if not occurrences or not seen:
        return RowGrowth(0, 0.0, 0.0, max(1, total), floats, budget)
    whole = len(np.unique(np.concatenate(ids)))
    half = len(np.unique(np.concatenate(ids[: max(1, len(ids) // 2)])))
    growth = 0.0 if len(ids) < 2 or half == 0 else max(0.0, min(1.0, math.log2(whole / half)))
    rows = int(whole * max(1.0, total / seen) ** growth)
    return RowGrowth(rows, growth, occurrences / seen, max(1, total), floats, budget)


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


def refuse_too_large(estimate: Estimate, training: Training) -> None:
    if estimate.tier is not None or estimate.row_bytes <= FREE_SHARE * estimate.memory:
        return
    smaller = sum(
        estimate.rows * bytes_per_row(store.width, len(store.parts)) // len(training.learner.server.stores)
        for store in training.learner.server.stores
    )
    raise UserError(
        f"needs about {size_text(estimate.row_bytes)} for {count_text(estimate.rows)} embedding rows "
        f"({size_text(estimate.memory)} here). Options: optimizer.embeddings.name=rowwise_adagrad "
        f"({size_text(smaller)}), a smaller model.dim, fewer id features, or memory={_proposed(estimate.memory)}: "
        "rows that do not fit go to disk"
    )


def _proposed(memory: int) -> str | int:
    """A size that leaves room for everything else, in round numbers."""
    size = int(min(TIER_SHARE * memory, max(memory - PROCESS_BYTES, memory / 4)))
    unit = 1 << 30 if size >= 2 << 30 else 1 << 20
    return write_bytes(max(LEAST_PROPOSED, size // unit * unit))
