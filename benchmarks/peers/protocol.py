"""What the sides of bench_step have in common: the examples they train on and the line they are driven by.

A *side* is one way to make a training step (ours, a peer's, the dense computation alone), in a process of its
own that reads commands from its standard input and computes only between a command and its answer:

    train 20 -> {"seconds": 1.41, "loss": 0.6903}     the next 20 batches, cycled; mean loss
    auc      -> {"auc": 0.7312}                       of the held-out batches, not timed

All sides read the same arrays, through the same file names. Numpy only: it runs in every peer's venv, so it
knows no torch, no Gearshift and no peer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FIELDS, NUMERICS, WIDTH, BATCH, ZIPF = 26, 13, 16, 4096, 1.05
HIDDEN = (400, 400)  # DNN
BOTTOM, TOP = (512, 256, WIDTH), (512, 256)  # DLRM
DENSE_LR, ROW_LR, ROW_INIT = 1e-3, 0.05, 0.01


@dataclass(frozen=True)
class Examples:
    """Batches in memory. Ids count from 0 within each field: what a table of `sizes[field]` rows takes."""

    ids_SBF: NDArray[np.int64]
    numeric_SBN: NDArray[np.float32]
    labels_SB: NDArray[np.float32]

    def save(self, folder: Path, name: str) -> None:
        for part, array in vars(self).items():
            np.save(folder / f"{name}.{part}.npy", array)

    @staticmethod
    def load(folder: Path, name: str) -> Examples:
        parts = Examples.__dataclass_fields__
        return Examples(**{part: np.load(folder / f"{name}.{part}.npy") for part in parts})

    @staticmethod
    def cut(ids: NDArray[np.int64], numeric: NDArray[np.float32], labels: NDArray[np.float32]) -> Examples:
        """Examples in order, cut into batches; what is left over is dropped."""
        count = len(labels) // BATCH
        shape = (count, BATCH, -1)
        end = count * BATCH
        return Examples(
            ids[:end].reshape(shape), numeric[:end].reshape(shape), labels[:end].reshape(count, BATCH)
        )

    def __getitem__(self, numbers: slice) -> Examples:
        return Examples(self.ids_SBF[numbers], self.numeric_SBN[numbers], self.labels_SB[numbers])

    def __len__(self) -> int:
        return len(self.labels_SB)


@dataclass(frozen=True)
class Task:
    """What a side is asked to train: `dnn` or `dlrm`, on tables of these sizes.

    `full`: a store that makes rows when they are first seen makes all of them before it trains.
    """

    model: str
    sizes: tuple[int, ...]
    full: bool
    train: Examples
    valid: Examples

    @staticmethod
    def load(folder: Path, model: str) -> Task:
        facts = json.loads((folder / "task.json").read_text())
        train, valid = Examples.load(folder, "train"), Examples.load(folder, "valid")
        return Task(model, tuple(facts["sizes"]), facts["full"], train, valid)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "task.json").write_text(json.dumps({"sizes": self.sizes, "full": self.full}))
        self.train.save(folder, "train")
        self.valid.save(folder, "valid")

    @property
    def first_rows_F(self) -> NDArray[np.int64]:
        """Where each field begins when all tables lie in one."""
        return np.concatenate([[0], np.cumsum(self.sizes[:-1])]).astype(np.int64)


def zipf_task(rows: int, batches: int, seed: int = 1) -> Task:
    """`rows` over all fields, hot rows anywhere in a table, a label that both inputs tell something about."""
    random = np.random.default_rng(seed)
    sizes = tuple(rows // FIELDS + (field < rows % FIELDS) for field in range(FIELDS))
    count = (batches + 2) * BATCH
    ids = np.empty((count, FIELDS), np.int64)
    logits = np.zeros(count)
    for field, size in enumerate(sizes):
        cumulative = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -ZIPF)
        ranks = np.searchsorted(cumulative, random.random(count) * cumulative[-1])
        ids[:, field] = random.permutation(size)[ranks]
        if field < 8:
            logits += random.normal(0, 0.5, size)[ids[:, field]]
    numeric = random.normal(0, 1, (count, NUMERICS)).astype(np.float32)
    logits += numeric @ random.normal(0, 0.2, NUMERICS)
    labels = (random.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    every = Examples.cut(ids, numeric, labels)
    return Task("", sizes, True, every[:batches], every[batches:])


def auc(labels: NDArray[np.float32], scores: NDArray[np.float32]) -> float:
    """Mann-Whitney, ties counted half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = labels > 0.5
    wins = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(wins / (positive.sum() * (~positive).sum()))


class Side(Protocol):
    def train(self, numbers: list[int]) -> float:
        """Steps on these training batches in order; their mean loss."""

    def predict(self, number: int) -> NDArray[np.float32]:
        """Scores [B] of one held-out batch; nothing changes."""


def serve(make: Callable[[Task], Side]) -> None:
    """The whole life of a side's process: `python side.py FOLDER MODEL`.

    Libraries print, too, so the answers have a pipe of their own where the parent gave one.
    """
    answers = os.fdopen(int(os.environ.get("ANSWERS", "1")), "w")
    task = Task.load(Path(sys.argv[1]), sys.argv[2])
    side = make(task)
    done = 0
    _answer(answers, ready=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "train":
            numbers = [(done + i) % len(task.train) for i in range(int(arguments[0]))]
            started = time.perf_counter()
            loss = side.train(numbers)
            _answer(answers, seconds=time.perf_counter() - started, loss=float(loss))
            done += len(numbers)
        else:
            scores = [np.asarray(side.predict(i)).reshape(-1) for i in range(len(task.valid))]
            _answer(answers, auc=auc(task.valid.labels_SB.reshape(-1), np.concatenate(scores)))


def _answer(stream: Any, **values: Any) -> None:
    stream.write(json.dumps(values) + "\n")
    stream.flush()
