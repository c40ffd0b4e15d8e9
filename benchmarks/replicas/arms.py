"""An arm: a strategy with its rates, trained on one day of the generated log in virtual time and scored on the next.

DeepFM from a cold start, batches of 128, one pass. All arms of a seed have the same examples in the same order, the
same first weights and the same worker times. The link is slow on purpose: an exchange of the dense parameters takes
about as long as five batches, so that exchanges in the background are always in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal, Network, Slow
from gearshift.data.dataset import Dataset
from gearshift.data.readers.generated import GeneratedExamples
from gearshift.engine.simulation.learning import train_in_virtual_time
from gearshift.engine.simulation.switch_plan import SimulatedSwitch
from gearshift.engine.simulation.tally import Outcome
from gearshift.experiments.paired_runs import Interval, interval
from gearshift.parameters.server import RowSettings, Server
from gearshift.sync.registry import resolve
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

BATCH, SECONDS, DENSE_BYTES = 128, 0.1, 1e6
TUNING_SEED = 100  # is not reported
# A batch takes .1 s; the dense parameters there and back .57 s on a worker's link, .5 s in a ring of eight.
SLOW_LINK = Network(latency=0.001, bandwidth=3.5e6, dense_bytes=DENSE_BYTES, sync_bandwidth=32e6)
FAST_LINK = Network(latency=0.001, bandwidth=1e9, dense_bytes=DENSE_BYTES, sync_bandwidth=1e9)


@dataclass(frozen=True)
class Arm:
    strategy: str
    settings: dict[str, Any] = field(default_factory=dict)
    workers: int = 8
    network: Network = SLOW_LINK
    slow: tuple[Slow, ...] = ()
    rows_per_push: bool = False  # rows step on every push by itself, whatever the dense parameters do
    switches: tuple[
        tuple[float, str, dict[str, Any]], ...
    ] = ()  # (share of the examples, strategy, settings)


@dataclass(frozen=True)
class Rates:
    dense: float = 2e-3
    rows: float = 0.02


@dataclass(frozen=True)
class Score:
    logloss: float  # progressive
    auc: float  # on the day after
    entropy: float  # normalized, on the day after
    calibration: float
    outcome: Outcome

    @property
    def gap(self) -> float | None:
        return self.outcome.sync_gap and self.outcome.sync_gap["mean"]


@cache
def data(seed: int, examples: int, held_out: int) -> tuple[Dataset, Dataset]:
    """A day to train on and a day to score on."""
    log = gs.ClickLog(examples=2 * examples, days=2, seed=seed)
    next_day = log.day_begin(1)
    train = Dataset(GeneratedExamples(log, 0, next_day)).fitted()
    return train, Dataset(GeneratedExamples(log, next_day, next_day + min(held_out, examples))).with_schema(
        train.schema
    )


def run(arm: Arm, rates: Rates, seed: int, examples: int, held_out: int = 40_000) -> Score:
    torch.set_num_threads(1)
    train, test = data(seed, examples, held_out)
    torch.manual_seed(seed)
    on = Learner(
        Worker(gs.models.DeepFM(train.schema, dim=8, hidden=[64, 32]), train.schema, threads=1),
        rows=RowSettings(gs.RowAdagrad(lr=rates.rows)),
        optimizer=gs.Adam(lr=rates.dense),
        seed=seed,
    )
    if arm.rows_per_push:
        _push_rows_one_by_one(on.server)
    cluster = ClusterModel(
        arm.workers,
        Compute(per_batch=SECONDS),
        slow=arm.slow,
        lognormal=(Lognormal(0.2),),
        network=arm.network,
        seed=seed,
    )
    sizes = {"global_batch": BATCH * arm.workers, "batch": BATCH}
    if arm.strategy == "backup_workers":
        sizes["global_batch"] -= BATCH
    switches = [
        SimulatedSwitch(name, {**sizes, **settings}, examples=int(share * train.count()))  # type: ignore[operator]
        for share, name, settings in arm.switches
    ]
    strategy = resolve(arm.strategy, {**sizes, **arm.settings}, sizes["global_batch"], arm.workers)
    ran = train_in_virtual_time(on, train, cluster, strategy, switches=switches)
    assert ran.outcome is not None
    scored = evaluate(on, test).measures
    return Score(ran.measures.logloss, scored.auc, scored.normalized_entropy, scored.calibration, ran.outcome)


def _push_rows_one_by_one(server: Server) -> None:
    """The control "dense in sync, rows per push": what of a replica strategy's loss comes from its rows."""
    whole = server._push_rows

    def each(kept, examples, lr_scale, step):
        for push, _ in kept:
            whole([(push, 1.0)], push.examples, lr_scale, step)

    server._push_rows = each


def tuned(arm: Arm, grid: list[Rates], examples: int) -> tuple[Rates, dict[Rates, float]]:
    """The rates with the best AUC on the tuning seed."""
    found = {rates: run(arm, rates, TUNING_SEED, examples).auc for rates in grid}
    return max(found, key=lambda rates: found[rates]), found


def difference(one: list[Score], other: list[Score], figure: str = "auc") -> Interval:
    return interval([getattr(a, figure) - getattr(b, figure) for a, b in zip(one, other, strict=True)])


def text(d: Interval, digits: int = 4) -> str:
    return f"{d.mean:+.{digits}f} [{d.low:+.{digits}f}, {d.high:+.{digits}f}]"


def plain(d: Interval) -> list[float]:
    return [d.mean, d.low, d.high]
