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

from gearshift.data.batch import Batch
from gearshift.embedding.machine_memory import machine_memory, resident_bytes
from gearshift.embedding.memory_budget import with_buffers
from gearshift.embedding.row_rules import sketch_bytes
from gearshift.errors import UserError
from gearshift.settings.units import write_bytes
from gearshift.training.admission_estimate import admitted_share, growth_of, propose_admission, tables_of
from gearshift.training.learner import Learner
from gearshift.training.tier_estimate import RowGrowth, TierEstimate, estimate_tier
from gearshift.training.training import Training
from gearshift.training.worker import Worker

SAMPLE = 65_536  # examples in the sample
TIMED_STEPS = 4
EVALUATION_SHARE = 0.4  # of the time of a step: the forward pass
FREE_SHARE = 0.9  # of the memory beside the process: the rest is for batches, the network, saving
TIER_SHARE = 0.7  # of the memory, proposed for rows if the others go to disk
PROCESS_BYTES = 1 << 30  # of a process in training, without rows: libraries, data, a dense model
PROCESS_SHARE = 0.25  # of a machine with little memory, instead
LEAST_PROPOSED = 64 << 20  # enough for any common model


@dataclass(frozen=True)
class Estimate:
    rows: int
    stores: tuple[int, ...]  # bytes of the rows of each store
    seconds: float
    memory: int  # bytes: of the machine or container; with `tier`, of the rows in memory
    process: int = 0  # of `memory`, what the process needs besides rows
    tier: TierEstimate | None = None  # rows beyond `memory` go to disk
    examples_per_second: float = math.inf  # with all rows in memory

    @property
    def row_bytes(self) -> int:
        return sum(self.stores)

    @property
    def room(self) -> float:
        """Bytes of memory that rows may take: all of `memory` if the others go to disk."""
        return self.memory if self.tier is not None else FREE_SHARE * max(0, self.memory - self.process)

    def text(self, training: Training) -> str:
        parts = training.learner.server.stores[0].parts if training.learner.server.stores else ()
        each = " + ".join(f"{p.width} {p.optimizer.name}" for p in parts)
        minutes = self.seconds / 60
        length = f"{minutes:.1f} min" if minutes >= 1 else f"{self.seconds:.0f} s"
        examples, batch = training.total // training.plan.epochs, training.plan.global_batch
        few = f" One step a pass: global_batch {batch:,} is all of the {examples:,} examples."
        return (
            f"Memory {count_text(self.rows)} embedding rows expected ({each}), which need "
            f"{size_text(self.row_bytes)}; there is room for {size_text(int(self.room))}"
            f"{self._tier_text(training)}. Estimated time {length}." + (few if batch >= examples else "")
        )

    def _tier_text(self, training: Training) -> str:
        """` (memory=1GiB, less ...): 1.4 M in memory, 3.8 M on disk in up to 1.1 GB below rows (78.0 GB free). ...`"""
        tier = self.tier
        if tier is None:
            return ""
        explained = f" ({training.learner.memory_explained})"
        if not tier.cold_rows:
            return f"{explained}: all of them in memory"
        return explained + _disk_text(tier) + _limit_text(tier, self.examples_per_second)


def _disk_text(tier: TierEstimate) -> str:
    free = "" if tier.free_bytes is None else f" ({size_text(tier.free_bytes)} free)"
    text = (
        f": about {rounded(tier.hot_rows)} in memory, {rounded(tier.cold_rows)} on disk in up to "
        f"{size_text(tier.disk_bytes)} below {tier.folder}{free}"
    )
    if tier.free_bytes is not None and tier.free_bytes < tier.disk_bytes:
        text += ". Warning: they may not fit there; set storage.path to a larger disk"
    if tier.outgrown > 1:
        text += (
            ". Warning: the index of so many rows on disk takes most of the memory, and training will be slow; set "
            f"`memory` to at least {tier.outgrown:.1f} times as much"
        )
    return text


def _limit_text(tier: TierEstimate, speed: float) -> str:
    """Only if the disk, and not the training, sets the speed."""
    most = tier.limit(speed)
    if most is None or tier.reads_per_second is None:
        return ""
    of_baseline = sum(store.final_reads_per_example for store in tier.beside)
    mostly = of_baseline > tier.final_reads_per_example / 2
    whose = ", most of them for the baseline (train.baseline=false)" if mostly else ""
    return (
        f". At the end about {tier.final_reads_per_example:.2g} rows per example come from disk{whose}, which gives "
        f"{rounded(tier.reads_per_second)} of them a second: at most about {rounded(most)} examples/s"
    )


def estimate(training: Training) -> Estimate:
    """Reads the first examples; trains nothing and creates no row."""
    sample, learner = _sample(training), training.learner
    growths = [expected_growth(training, sample, i) for i in range(len(learner.server.stores))]
    stores = tuple(
        g.rows * bytes_per_row(s.width, s.state_width)
        for g, s in zip(growths, learner.server.stores, strict=True)
    )
    steps = training.total / training.plan.global_batch
    step, evaluated = _step_seconds(learner, sample[:TIMED_STEPS]), _evaluated(training, steps)
    seconds = step * (steps + EVALUATION_SHARE * evaluated / training.plan.global_batch)
    folder = next((store.tier.folder for store in learner.server.stores if store.tier), None)
    rows = sum(g.rows for g in growths)
    if folder is None:
        memory = machine_memory()
        return Estimate(rows, stores, seconds, memory, process_bytes(memory, learner.row_bytes))
    beside = training.baseline.learner
    others = (
        [expected_growth(training, sample, i, beside) for i in range(len(beside.server.stores))]
        if beside
        else []
    )
    tier = estimate_tier(growths, folder, others)
    return Estimate(
        rows,
        stores,
        seconds + tier.seconds(evaluated),
        sum(g.budget - with_buffers(g.sketch) for g in growths),
        tier=tier,
        examples_per_second=training.plan.global_batch / max(step, 1e-9),
    )


def _evaluated(training: Training, steps: float) -> float:
    """The number of examples in all evaluations; those by time are not foreseen."""
    if training.valid is None:
        return 0
    every, evaluations = training.plan.evaluation.every, training.plan.epochs
    if every is not None and every.share:
        evaluations = max(evaluations, round(1 / every.share))
    elif every is not None and every.steps:
        evaluations = max(evaluations, round(steps / every.steps))
    return evaluations * training.valid.estimate()


def process_bytes(memory: int, of_rows: int) -> int:
    """What this process has taken besides rows, which a resumed run has already, or will take if that is more."""
    return max(resident_bytes() - of_rows, int(min(PROCESS_BYTES, PROCESS_SHARE * memory)))


def bytes_per_row(width: int, state_width: int) -> int:
    """Weights, state and counters, and a 16-byte slot in an index that is about 60 % full."""
    return 4 * (width + state_width) + 12 + 27


def _sample(training: Training) -> list[Batch]:
    count = max(2, min(SAMPLE // training.plan.global_batch, 64))
    with closing(training.train.batches(training.plan.global_batch)) as batches:
        return list(itertools.islice(batches, count))


def expected_growth(
    training: Training, sample: list[Batch], store: int, learner: Learner | None = None
) -> RowGrowth:
    """Of a store of the training's learner, or of another one that trains on the same examples."""
    learner, epochs = learner or training.learner, training.plan.epochs
    group, of = learner.worker.groups[store], learner.server.stores[store]
    ids, total = [group.occurrences(batch) for batch in sample], training.total // epochs
    seen, occurrences = max(1, sum(map(len, sample))), sum(map(len, ids))
    floats, budget = of.width + of.state_width, of.tier.budget if of.tier else 0
    growth = growth_of(ids, total / seen)
    rows = int(growth.rows * admitted_share(group, sample, total / seen, epochs))
    return RowGrowth(
        rows,
        growth.exponent,
        occurrences / seen,
        max(1, total),
        floats,
        budget,
        sketch=sketch_bytes(group.rules) if budget else 0,
        shards=len(getattr(of, "shards", (of,))),
        epochs=epochs,
    )


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


def rounded(count: float) -> str:
    """With two digits: 1,200,000 becomes `1.2 M`."""
    return count_text(int(float(f"{count:.2g}")))


def size_text(size: int) -> str:
    for unit, bytes_of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_of:
            return f"{size / bytes_of:.1f} {unit}"
    return f"{size} B"


def refuse_too_large(estimate: Estimate, training: Training, *, names_features: bool = False) -> None:
    """`names_features`: the run has a config with `features`, which settings can name."""
    if estimate.tier is not None or estimate.row_bytes <= estimate.room:
        return
    smaller = sum(
        estimate.rows * bytes_per_row(store.width, len(store.parts)) // len(training.learner.server.stores)
        for store in training.learner.server.stores
    )
    raise UserError(
        f"needs about {size_text(estimate.row_bytes)} for {count_text(estimate.rows)} embedding rows. They may take "
        f"{size_text(int(estimate.room))} here: {FREE_SHARE:.0%} of what is left of {size_text(estimate.memory)} of "
        f"memory after {size_text(estimate.process)} for everything else. Options:\n"
        f"  memory={_proposed(estimate)}: rows that do not fit go to disk\n"
        f"{_admission_text(estimate, training) if names_features else ''}"
        f"  optimizer.embeddings.name=rowwise_adagrad: {size_text(smaller)}\n"
        "  a smaller model.dim, or fewer id features"
    )


def _admission_text(estimate: Estimate, training: Training) -> str:
    """`features[user_id].min_count=3: 12.1 GB; ids that occur less often get no row`, if that saves much."""
    worker, epochs, sample = training.learner.worker, training.plan.epochs, _sample(training)
    factor = training.total / epochs / max(1, sum(map(len, sample)))
    tables = [tables_of(group, sample, factor, epochs) for group in worker.groups]
    stores = list(zip(tables, estimate.stores, strict=True))
    proposal = propose_admission(worker.schema, stores, epochs=epochs, room=estimate.room)
    if proposal is None:
        return ""
    saved = f"{size_text(proposal.row_bytes)}; ids that occur less often get no row"
    return f"  {' '.join(proposal.settings)}: {saved}\n"


def _proposed(estimate: Estimate) -> str | int:
    """A size that leaves room for everything else, in round numbers."""
    memory = estimate.memory
    size = int(min(TIER_SHARE * memory, max(memory - estimate.process, memory / 4)))
    unit = 1 << 30 if size >= 2 << 30 else 1 << 20
    return write_bytes(max(LEAST_PROPOSED, size // unit * unit))
