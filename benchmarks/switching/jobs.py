"""A job is one seed of one case, in a process of its own: text in, text out, so that two cores do two seeds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from gearshift.training.learner import Learner
from switching.base import Arm, Score
from switching.cases import CASES
from switching.days import Days
from switching.epochs import Epochs


@dataclass(frozen=True)
class Job:
    case: str
    seed: int
    arms: dict[str, Arm]
    dense_lr: float
    row_lr: float
    per_day: int
    base_per_day: int
    data: str  # the folder of Frappe

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        line = json.loads(text)
        arms = {name: Arm(**arm) for name, arm in line.pop("arms").items()}
        return cls(**line, arms=arms)


@dataclass(frozen=True)
class Done:
    scores: dict[str, Score]
    same: bool | None  # whether the switch to itself left every bit as it was

    @classmethod
    def from_json(cls, text: str) -> Done:
        line = json.loads(text)
        return cls({name: Score(**score) for name, score in line["scores"].items()}, line["same"])


def run_all(jobs: list[Job], at_once: int) -> Iterator[Done]:
    """What came of each, in their order."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(_in_a_process, jobs)


def _in_a_process(job: Job) -> Done:
    command = [sys.executable, "-m", "switching.jobs", job.to_json()]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return Done.from_json(done.stdout)


def run(job: Job) -> Done:
    torch.set_num_threads(1)
    case = replace(CASES[job.case], dense_lr=job.dense_lr, row_lr=job.row_lr)
    with tempfile.TemporaryDirectory() as name:
        if case.epochs:
            return _run(job, Epochs(case, job.seed, Path(job.data), Path(name)))
        return _run(job, Days(case, job.seed, job.per_day, job.base_per_day, Path(name)))


def _run(job: Job, seed: Days | Epochs) -> Done:
    found: dict[str, Score] = {}
    of_sync: Learner | None = None
    same: bool | None = None
    for name, arm in job.arms.items():
        if arm.drops_like is not None:
            share = found[arm.drops_like].discarded
            arm = replace(arm, settings={"share": share, "seed": job.seed})
        score, on = seed.run(arm)
        if name == "sync":
            of_sync = on
        if arm.itself:
            assert of_sync is not None
            same = identical(on, of_sync)
        else:
            found[name] = score
    return Done(found, same)


def identical(one: Learner, other: Learner) -> bool:
    """The same bits: dense parameters, optimizer state, rows and theirs."""

    def arrays(on: Learner) -> Iterator[np.ndarray]:
        yield on.server.flat.numpy()
        for name in sorted(on.server.optimizer_state):
            yield on.server.optimizer_state[name].numpy()
        for store in on.server.stores:
            blocks = list(store.blocks())
            order = np.argsort(np.concatenate([block.ids_U for block in blocks]))
            yield np.concatenate([block.weights_UW for block in blocks])[order]
            yield np.concatenate([block.state_US for block in blocks])[order]

    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def main() -> None:
    done = run(Job.from_json(sys.argv[1]))
    print(json.dumps({"scores": {n: asdict(score) for n, score in done.scores.items()}, "same": done.same}))


if __name__ == "__main__":
    main()
