"""The gradients that strategies step on, as the GBA paper draws them: norms under sync, gba and async, from real runs.

    python benchmarks/bench_gradient_norms.py --svg gradient_norms.svg       about two minutes of CPU

DeepFM on a generated log, real gradients in virtual time: 8 workers of uneven speed (jitter of .3, one worker 2x, one
8x slower), each run from the same beginning with the same rates. sync and gba step on the mean over a global batch of
1,024 = 8 x 128, async on each 128 alone. Measured is the L2 norm of the dense gradient of every step after the first
fifth of the examples. `sync_128` is sync with the global batch of an async step: what is left between it and async is
staleness.

`ks_...` is the Kolmogorov-Smirnov distance to sync's distribution, 0 to 1; `half_...` that between the two halves of
sync's own steps, what the same strategy differs from itself by as training goes on. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from pictures import histograms
from torch import Tensor

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal, Slow
from gearshift.data.dataset import Dataset
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.optim.first_order import DenseOptimizer, State
from gearshift.parameters.server import RowSettings
from gearshift.sync.registry import make_strategy
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

BATCH, GLOBAL, WORKERS = 128, 1024, 8
ARMS = {
    "sync": ("sync", GLOBAL),
    "gba": ("gba", GLOBAL),
    "async": ("async", GLOBAL),
    "sync_128": ("sync", BATCH),
}


@dataclass(frozen=True)
class Recording:
    """An optimizer that notes the norm of what it steps on."""

    base: DenseOptimizer
    norms: list[float] = field(default_factory=list, repr=False)

    @property
    def lr(self) -> float:
        return self.base.lr

    def init(self, n: int) -> State:
        return self.base.init(n)

    def step(self, flat: Tensor, grad: Tensor, state: State, *, lr_scale: float = 1.0) -> None:
        self.norms.append(float(torch.linalg.vector_norm(grad)))
        self.base.step(flat, grad, state, lr_scale=lr_scale)


def norms(arm: str, data: Dataset, seed: int) -> tuple[list[float], float]:
    """Those of all steps but the first fifth, and the AUC of every example before it trained."""
    strategy, global_batch = ARMS[arm]
    torch.manual_seed(seed)
    recording = Recording(gs.Adam(lr=1e-3))
    learner = Learner(
        Worker(gs.models.DeepFM(data.schema, dim=8, hidden=[64, 64]), data.schema),
        rows=RowSettings(gs.RowAdagrad(lr=0.02)),
        optimizer=recording,
        seed=seed,
    )
    cluster = ClusterModel(
        1 if global_batch == BATCH else WORKERS,
        Compute(per_batch=0.1),
        slow=() if global_batch == BATCH else (Slow(2.0, (3,)), Slow(8.0, (5,))),
        lognormal=(Lognormal(0.3),),
        seed=seed,
    )
    settings = {"global_batch": global_batch, "batch": BATCH}
    run = train_in_virtual_time(learner, data, cluster, make_strategy(strategy, settings))
    return recording.norms[len(recording.norms) // 5 :], run.measures.auc


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Of Kolmogorov and Smirnov."""
    at = np.sort(np.concatenate([one, other]))
    below = [np.searchsorted(np.sort(group), at, side="right") / len(group) for group in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=600_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, help="where to draw them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Dataset(GeneratedExamples(gs.ClickLog(examples=options.examples, seed=options.seed))).fitted()
    found: dict[str, list[float]] = {}
    for arm in ARMS:
        found[arm], auc = norms(arm, data, options.seed)
        low, middle, high = np.quantile(found[arm], (0.05, 0.5, 0.95))
        print(
            f"{arm:9} {len(found[arm]):6,} steps  norm {middle:.4f} [{low:.4f}, {high:.4f}]  AUC {auc:.4f}",
            flush=True,
        )
    if options.svg is not None:
        title = f"Norm of the dense gradient of a step ({options.examples:,} examples, DeepFM)"
        histograms(options.svg, title, "L2 norm, log scale; height is the share of steps", found)
        print(f"Drawn in {options.svg}")
    sync = found["sync"]
    half = len(sync) // 2
    figures = {f"ks_{arm}": round(distance(own, sync), 4) for arm, own in found.items() if arm != "sync"}
    figures["half_sync"] = round(distance(sync[:half], sync[half:]), 4)
    medians = {f"median_{arm}": round(float(np.median(own)), 5) for arm, own in found.items()}
    print(json.dumps(figures | medians | {"examples": options.examples}))


if __name__ == "__main__":
    main()
