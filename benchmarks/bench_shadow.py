"""Background exchange against its foreground twin: does it scale, and is it as good? (ShadowSync, Meta 2020)

    python benchmarks/bench_shadow.py                      everything; about 40 minutes of CPU, one core
    python benchmarks/bench_shadow.py scaling              seconds: timing only, 1 to 64 trainers
    python benchmarks/bench_shadow.py quality --seeds 5    rates tuned per arm, then paired seeds
    python benchmarks/bench_shadow.py sweeps               against the gap, the trainers and Hogwild workers
    python benchmarks/bench_shadow.py threads              wall time on this machine's threads; needs a quiet machine

scaling: batches of .1 s, dense parameters of 4 MB, links of 1 GB/s, two sync servers of 40 MB/s: together they carry
10 exchanges a second. Background, and the same every 5 batches; then the same with 32 sync servers. quality and
sweeps: real gradients in virtual time (`replicas/arms.py` has the cluster), DeepFM, one pass from a cold start, scored
on the next day. The dense rate is tuned per arm on one grid and a seed that is not reported; differences are paired by
seed, with Student's 95 % interval. The last line is one JSON object; `scaling_64` is the share of 64 times one
trainer's examples/s, `quality_gap` the AUC of background minus that of every 5 batches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from statistics import median
from typing import Any

import torch
from replicas.arms import BATCH, Arm, Rates, Score, difference, plain, run, text, tuned

import gearshift as gs
from gearshift.cluster_model.cluster import ClusterModel, Compute, Lognormal, Network
from gearshift.engine.simulation.simulator import simulate
from gearshift.sync.registry import resolve

NAMES = ("easgd", "model_averaging", "bmuf")
TRAINERS = (1, 2, 4, 8, 16, 32, 64)
GRID = [Rates(dense=rate) for rate in (1e-3, 3e-3, 9e-3)]
EVERY_5 = {"exchange": {"every": 5}}
DELTA = {"merge": "delta"}


# ---- (a) examples per second against trainers ----


def speed(name: str, settings: dict[str, Any], trainers: int, servers: int) -> float:
    network = Network(
        latency=0.0005, bandwidth=1e9, dense_bytes=4e6, sync_servers=servers, sync_bandwidth=40e6
    )
    cluster = ClusterModel(
        trainers, Compute(per_batch=0.1), lognormal=(Lognormal(0.1),), network=network, seed=1
    )
    strategy = resolve(name, {"batch": BATCH, **settings}, BATCH * trainers, trainers)
    return simulate(cluster, strategy, BATCH * trainers * 200).examples_per_second


def scaling() -> dict[str, Any]:
    found: dict[str, Any] = {"scaling_64": {}, "scaling": {}}
    print("share of n times one trainer alone, by trainers: " + " ".join(f"{n:>6}" for n in TRAINERS))
    for name in NAMES:
        for label, settings, servers in (
            ("background", {}, 2),
            ("every_5", EVERY_5, 2),
            ("every_5_32_servers", EVERY_5, 32),
        ):
            if servers == 32 and name != "easgd":
                continue  # a mean of all needs no server
            alone = speed(name, {"exchange": "background"}, 1, servers)
            shares = [speed(name, settings, n, servers) / (n * alone) for n in TRAINERS]
            print(f"{name + ' ' + label:49}" + " ".join(f"{share:6.3f}" for share in shares), flush=True)
            key = name if label == "background" else f"{name}_{label}"
            found["scaling_64"][key] = shares[-1]
            found["scaling"][key] = dict(zip(TRAINERS, shares, strict=True))
    return found


# ---- (b) quality ----


def quality_arms() -> dict[str, Arm]:
    arms = {"sync": Arm("sync")}
    for name in NAMES:
        arms[name] = Arm(name)
        arms[f"{name}_delta"] = Arm(name, DELTA)
        arms[f"{name}_every_5"] = Arm(name, EVERY_5)
    return arms


def quality(options: argparse.Namespace) -> dict[str, Any]:
    arms, chosen, scores = quality_arms(), {}, {}
    known = json.loads(options.rates)
    for name, arm in arms.items():
        if name in known:
            chosen[name] = Rates(dense=known[name])
            continue
        chosen[name], found = tuned(arm, GRID, options.tuning_examples)
        each = ", ".join(f"{rates.dense:g}: {auc:.4f}" for rates, auc in found.items())
        print(f"tuning {name:26} {each}", flush=True)
    for name, arm in arms.items():
        scores[name] = [run(arm, chosen[name], seed, options.examples) for seed in seeds(options)]
        print(f"{name:26} {chosen[name].dense:g}  {line(scores[name], scores['sync'])}", flush=True)
    pairs = {name: (name, f"{name}_every_5") for name in NAMES}
    pairs |= {f"{name}_delta": (f"{name}_delta", f"{name}_every_5") for name in NAMES}
    pairs |= {f"{name}_delta_minus_elastic": (f"{name}_delta", name) for name in NAMES}
    gaps = {}
    for label, (one, other) in pairs.items():
        for figure in ("auc", "logloss", "entropy"):
            d = difference(scores[one], scores[other], figure)
            gaps[label] = gaps.get(label, {}) | {figure: plain(d)}
        print(f"{one} - {other}: AUC {text(difference(scores[one], scores[other]))}", flush=True)
    return {
        "quality_gap": {name: gaps[name]["auc"] for name in gaps},
        "quality": gaps,
        "rates": {name: rates.dense for name, rates in chosen.items()},
        "auc": {name: [score.auc for score in own] for name, own in scores.items()},
    }


def seeds(options: argparse.Namespace) -> range:
    return range(1, options.seeds + 1)


def line(scores: list[Score], base: list[Score]) -> str:
    auc = sum(score.auc for score in scores) / len(scores)
    entropy = sum(score.entropy for score in scores) / len(scores)
    gap = scores[0].gap
    flight = scores[0].outcome.sync_gap
    return (
        f"AUC {auc:.4f}, NE {entropy:.4f}, gap {'-' if gap is None else f'{gap:.1f}'}, "
        f"in flight {'-' if flight is None else format(flight['in_flight'], '.2f')}, "
        f"minus sync: AUC {text(difference(scores, base))}, progressive log loss "
        f"{text(difference(scores, base, 'logloss'))}"
    )


def sweeps(options: argparse.Namespace, rates: dict[str, float]) -> dict[str, Any]:
    """Against the gap, the number of trainers and of Hogwild workers; at the rates tuned for gap 5 and 8 trainers."""
    found: dict[str, Any] = {}
    few = range(1, options.sweep_seeds + 1)

    def scored(label: str, arm: Arm, rate: str) -> None:
        own = [run(arm, Rates(dense=rates.get(rate, 2e-3)), seed, options.examples) for seed in few]
        auc = [score.auc for score in own]
        found[label] = {"auc": auc, "gap": own[0].gap}
        gap = own[0].gap
        print(
            f"{label:40} gap {'-' if gap is None else f'{gap:6.1f}'}  AUC {sum(auc) / len(auc):.4f}",
            flush=True,
        )

    for k in (1, 20, 50):
        for name in ("easgd", "model_averaging"):
            scored(f"{name} every {k}", Arm(name, {"exchange": {"every": k}}), f"{name}_every_5")
    for pause in (1.5, 4.5):
        for name in ("easgd", "model_averaging"):
            scored(f"{name} background, pause {pause} s", Arm(name, {"pause": pause}), name)
    for trainers in (2, 4, 16, 32):
        scored(f"sync {trainers} workers", Arm("sync", workers=trainers), "sync")
        for name in ("easgd", "model_averaging"):
            scored(f"{name} background, {trainers} trainers", Arm(name, workers=trainers), name)
            scored(
                f"{name} every 5, {trainers} trainers",
                Arm(name, EVERY_5, workers=trainers),
                f"{name}_every_5",
            )
    for shared in (2, 4):
        settings = {"workers_per_replica": shared}
        scored(f"easgd, {8 // shared} trainers x {shared} Hogwild workers", Arm("easgd", settings), "easgd")
    return {"sweeps": found}


# ---- (a) and (c) on real threads ----


def on_threads(options: argparse.Namespace) -> dict[str, Any]:
    """Examples per second of this process's threads, exchanges in memory; interleaved rounds."""
    data = gs.read(gs.ClickLog(examples=options.thread_examples, days=1))
    cases = {
        f"{name} {trainers} x {shared}": (name, trainers * shared, {"workers_per_replica": shared})
        for trainers, shared in ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2))
        for name in ("easgd", "model_averaging")
    } | {f"sync {n}": ("sync", n, {}) for n in (1, 2, 4)}
    rates: dict[str, list[float]] = {label: [] for label in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for label, (name, workers, settings) in cases.items():
                torch.manual_seed(1)
                trainer = gs.Trainer(
                    global_batch=1024,
                    workers=workers,
                    strategy={"name": name, **settings},
                    checkpoint=gs.CheckpointPolicy(None, path=folder),
                    training=gs.TrainingSettings(batch=1024 // workers),
                )
                result = trainer.fit(gs.models.DeepFM(data.schema, dim=16, hidden=[256, 128]), data)
                rates[label].append(result.examples_per_second)
    for label, own in rates.items():
        print(f"threads: {label:24} {median(own):10,.0f} examples/s", flush=True)
    return {"threads": {label: median(own) for label, own in rates.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["scaling", "quality", "sweeps", "threads"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sweep-seeds", type=int, default=2)
    parser.add_argument("--examples", type=int, default=100_000, help="of the day that is trained")
    parser.add_argument("--tuning-examples", type=int, default=100_000)
    parser.add_argument("--rates", default="{}", help='dense rates that are known, by arm: {"sync": 1e-3}')
    parser.add_argument("--rounds", type=int, default=5, help="of threads")
    parser.add_argument("--thread-examples", type=int, default=200_000)
    options = parser.parse_args()
    began, found = time.perf_counter(), dict[str, Any]()
    if "scaling" in options.parts:
        found |= scaling()
    if "quality" in options.parts:
        found |= quality(options)
    if "sweeps" in options.parts:
        found |= sweeps(options, found.get("rates", {}))
    if "threads" in options.parts:
        found |= on_threads(options)
    found["seconds"] = time.perf_counter() - began
    print(json.dumps(found))


if __name__ == "__main__":
    main()
