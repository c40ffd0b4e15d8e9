"""Gearshift's training step, fed as training/training.py feeds it: ids deduplicated ahead, in a thread of their own.

The thread starts and ends within the measured time, so nothing is prepared for free between two turns.
"""

from __future__ import annotations

import numpy as np
import torch
from networks import SCHEMA, network
from numpy.typing import NDArray
from protocol import DENSE_LR, FIELDS, ROW_INIT, ROW_LR, Examples, Task, serve

from gearshift.data.batch import Batch
from gearshift.data.prefetch import prefetched
from gearshift.embedding.store import RowAdagrad, RowStore
from gearshift.optim.first_order import Adam
from gearshift.parameters.server import RowSettings
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker


class Gearshift:
    """`stores`: rows to share with another caller, instead of its own."""

    def __init__(self, task: Task, stores: tuple[RowStore, ...] | None = None) -> None:
        self.learner = Learner(
            Worker(network(task.model), SCHEMA, threads=torch.get_num_threads()),
            rows=RowSettings(RowAdagrad(lr=ROW_LR), init=ROW_INIT),
            optimizer=Adam(lr=DENSE_LR),
        )
        if stores:
            self.learner.server.stores = stores
        elif task.full:
            fill(self.learner.server.stores[0], task.sizes)
        self.batches, self.held_out = batches(task.train), batches(task.valid)

    def train(self, numbers: list[int]) -> float:
        chosen = map(self.batches.__getitem__, numbers)
        total = 0.0
        for found in prefetched(map(self.learner.find, chosen), depth=2):
            push = self.learner.step(found)
            total += push.loss / push.examples
        return total / len(numbers)

    def predict(self, number: int) -> NDArray[np.float32]:
        return self.learner.predict(self.learner.find(self.held_out[number]))


def hashed(fields: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """63-bit ids, as spread as the hash of a reader makes them (splitmix64)."""
    x = (fields.astype(np.uint64) << np.uint64(40)) + ids.astype(np.uint64)
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def batches(examples: Examples) -> list[Batch]:
    ids_SBF = hashed(np.arange(FIELDS), examples.ids_SBF)
    return [
        Batch(0, labels_B[:, None], numeric_BN, ids_BF)
        for labels_B, numeric_BN, ids_BF in zip(
            examples.labels_SB, examples.numeric_SBN, ids_SBF, strict=True
        )
    ]


def fill(store: RowStore, sizes: tuple[int, ...]) -> None:
    for field, size in enumerate(sizes):
        store.pull(hashed(np.full(size, field), np.arange(size)))


if __name__ == "__main__":
    serve(Gearshift)
