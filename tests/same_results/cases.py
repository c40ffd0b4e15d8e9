"""The runs that a refactoring must not change: each strategy family, one worker, threads and Ray, resume and switch."""

from __future__ import annotations

from dataclasses import dataclass

BASE = {
    "name": "same",
    "data": {"synthetic": {"examples": 12_000, "days": 3}},
    "model": {"name": "deepfm", "dim": 4, "hidden": [16]},
    "train": {"global_batch": 256, "baseline": False, "average": "off"},  # earlier versions had no average
    "checkpoint": {"every": 10, "keep": 100},
}


@dataclass(frozen=True)
class Case:
    """One run. `resume_step` starts a second run from that checkpoint of the first and records the second.

    Of workers that run freely only the accounts are compared: the rest depends on who was faster.
    """

    name: str
    overrides: tuple[str, ...]
    resume_step: int | None = None
    free_running: bool = False


CASES = (
    Case("one worker", ()),
    Case(
        "one worker, DIN, shuffled, two epochs, dropout",
        (
            "data.synthetic.sequences=true",
            "model={name: din, dim: 4, hidden: [16], dropout: 0.2}",
            "train.epochs=2",
            "train.shuffle=true",
            "optimizer.embeddings.name=adam",
        ),
    ),
    Case(
        "one worker, baseline, clipping, FTRL rows",
        ("train.baseline=true", "optimizer.clip_norm=0.5", "optimizer.embeddings.name=ftrl"),
    ),
    Case("one worker, vr_adam on micro-batches", ("optimizer.dense.name=vr_adam", "train.micro_batches=8")),
    Case("one worker, resumed", (), resume_step=10),
    Case(
        "one worker, switches",
        ("train.batch=64", "strategy={name: sync, switch: [{at: 30%, to: gba}, {at: 60%, to: sync}]}"),
    ),
    Case("one worker, k-step Adam", ("strategy={name: k_step_adam, exchange: {every: 5}}",)),
    Case("one worker, averaged, resumed", ("train.average=auto",), resume_step=10),
    Case("threads, sync", ("cluster.workers=4",)),
    Case("threads, sync, resumed", ("cluster.workers=4",), resume_step=10),
    Case("threads, gba", ("cluster.workers=4", "strategy=gba"), free_running=True),
    Case("threads, async", ("cluster.workers=4", "strategy=async"), free_running=True),
    Case("threads, backup workers", ("cluster.workers=5", "strategy=backup_workers")),
    Case(
        "threads, easgd",
        ("cluster.workers=4", "strategy={name: easgd, exchange: {every: 5}}"),
        free_running=True,
    ),
    Case("Ray, sync, two shards", ("cluster.engine=ray", "cluster.workers=2", "cluster.shards=2")),
    Case("Ray, gba", ("cluster.engine=ray", "cluster.workers=2", "strategy=gba"), free_running=True),
)
