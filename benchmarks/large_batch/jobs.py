"""Trials in processes of one core each, that live on: a line of JSON in, a line out. What is done is kept in a file."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

import numpy as np
import torch

from gearshift.experiments.largest_batch import TUNING_SEED, Score, Trial
from gearshift.metrics import Measures
from gearshift.optim.schedule import Schedule
from gearshift.parameters.server import RowSettings
from gearshift.training.evaluation import evaluate
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker
from large_batch.arms import GRADIENTS, LEAST, Arm, arm
from large_batch.cases import CASES, Data, load

WARMUP = Schedule(warmup=0.1)  # of every arm


@dataclass(frozen=True)
class Job:
    case: str
    trial: Trial
    examples: int
    base_batch: int
    frappe: str  # the folder, for that case

    def of_the_base(self) -> Job:
        """VR from one gradient is its base, and need not be trained again."""
        name = self.trial.optimizer
        if self.trial.batch > self.base_batch or not arm(name).reduces:
            return self
        return replace(self, trial=replace(self.trial, optimizer=name.removeprefix("vr_").partition("/")[0]))

    @classmethod
    def from_json(cls, line: dict[str, object]) -> Job:
        return cls(**{**line, "trial": Trial(**line["trial"])})  # type: ignore[arg-type]


def run(job: Job) -> Score | None:
    began, trial, chosen = time.process_time(), job.trial, arm(job.trial.optimizer)
    data = _data(job.case, trial.seed, trial.share, job.examples, job.frappe)
    torch.manual_seed(trial.seed)
    on = Learner(
        Worker(CASES[job.case].build(data.train.schema), data.train.schema),
        rows=RowSettings(
            replace(chosen.rows, lr=chosen.rows.lr * trial.rows), clip=chosen.clip, trust=chosen.trust
        ),
        optimizer=chosen.optimizer(trial.dense),
        seed=trial.seed,
    )
    try:
        progressive = _train(on, chosen, data, trial, CASES[job.case].epochs)
    except FloatingPointError:
        return None
    tuning = (progressive if data.valid is None else evaluate(on, data.valid).measures).logloss
    steps, seconds = on.server.step, time.process_time() - began
    if trial.seed == TUNING_SEED:
        return Score(nan, nan, nan, tuning, steps, seconds)
    test, seen = (evaluate(on, part).measures for part in (data.test, data.newest))
    return Score(test.auc, test.logloss, seen.auc - test.auc, tuning, steps, seconds)


def _train(on: Learner, chosen: Arm, data: Data, trial: Trial, epochs: int) -> Measures:
    """In sync: a step is one gradient, for VR that of each of its pieces."""
    seen, done, total = [], 0, epochs * data.train.counted()
    piece = max(LEAST, trial.batch // GRADIENTS) if chosen.reduces else trial.batch
    for epoch in range(epochs):
        waiting, waiting_examples = [], 0
        for batch in data.train.batches(piece, shuffle=(trial.seed, epoch) if data.valid else None):
            push = on.compute(on.find(batch), done)
            seen.append((batch.labels_BT[:, 0], push.probabilities_BT[:, 0]))
            waiting.append((push.kept() if piece < trial.batch else push, 1.0))
            done, waiting_examples = done + len(batch), waiting_examples + len(batch)
            if waiting_examples >= trial.batch or done % data.train.counted() == 0:
                on.server.apply_group(waiting, lr_scale=WARMUP.factor(done / total))
                waiting, waiting_examples = [], 0
    progressive = Measures()
    progressive.update(*(np.concatenate(column) for column in zip(*seen, strict=True)))
    return progressive


@lru_cache(maxsize=1)
def _data(case: str, seed: int, share: float, examples: int, frappe: str) -> Data:
    return load(case, seed, share, examples, Path(frappe), Path(sys.argv[1]))


class Pool:
    """`at_once` processes; `pool(job)` from any thread. Nothing is computed twice, nor again if `journal` has it."""

    def __init__(self, at_once: int, journal: Path | None) -> None:
        self._journal, self._lock = journal, threading.Lock()
        self._known: dict[str, Future[Score | None]] = {}
        if journal is not None and journal.exists():
            for line in map(json.loads, journal.read_text().splitlines()):
                self._known[line["job"]] = future = Future()
                future.set_result(_score(line["score"]))
        self._logs = TemporaryDirectory(prefix="large-batch-")
        command = [sys.executable, "-m", "large_batch.jobs", self._logs.name]
        folder = Path(__file__).parents[1]
        self._processes = [
            subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(at_once)
        ]
        self._free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for process in self._processes:
            self._free.put(process)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()
        self._logs.cleanup()

    def __call__(self, job: Job) -> Score | None:
        key = json.dumps(asdict(job.of_the_base()))
        with self._lock:
            future, mine = self._known.get(key), key not in self._known
            if future is None:
                self._known[key] = future = Future()
        if mine:
            try:
                future.set_result(self._computed(key))
            except BaseException as error:  # others may wait for the same
                future.set_exception(error)
        return future.result()

    def _computed(self, key: str) -> Score | None:
        process = self._free.get()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(key + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process ended at {key}; its traceback is above")
        self._free.put(process)
        score = _score(json.loads(answer))
        if self._journal is not None:
            with self._lock, self._journal.open("a") as file:
                file.write(json.dumps({"job": key, "score": score and asdict(score)}) + "\n")
        return score


def _score(line: dict[str, float] | None) -> Score | None:
    return None if line is None else Score(**line)  # type: ignore[arg-type]


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        score = run(Job.from_json(json.loads(line)))
        print(json.dumps(score and asdict(score)), flush=True)


if __name__ == "__main__":
    main()
