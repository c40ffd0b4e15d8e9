"""The coordinator's view of parameters that it does not hold: rows and dense values are read from the shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gearshift.data.batch import Floats, Ids
from gearshift.embedding.row_optimizers import may_zero_weights
from gearshift.embedding.row_rules import COUNTS, RowRule
from gearshift.embedding.sharded import IdPlacement
from gearshift.embedding.store import RowStore
from gearshift.engine.protocol.messages import Seen
from gearshift.engine.ray.shard_questions import ShardQuestions
from gearshift.engine.ray.snapshots import Size
from gearshift.parameters.average import shown
from gearshift.parameters.shard import ShardLayout
from gearshift.training.learner import Learner


class RemoteParameters:
    """The learner's parameters as the shards have them."""

    def __init__(self, learner: Learner, layout: ShardLayout, shards: ShardQuestions) -> None:
        self._learner, self._layout, self._shards = learner, layout, shards
        self.stores = tuple(RemoteRows(store, i, self) for i, store in enumerate(learner.server.stores))

    @property
    def most_ids(self) -> int:
        """The most ids that can be read at once."""
        return self._shards.most_ids

    def learn_sizes(self, sizes: Sequence[Size]) -> None:
        """Sets the sizes of the stores on the shards, for the report."""
        for store, size in zip(self.stores, sizes, strict=True):
            store.size = size

    def refresh(self) -> None:
        """Copies the dense parameters and running statistics that evaluations use from the shards into the learner."""
        self.peek(tuple(np.empty(0, np.int64) for _ in self.stores))

    def peek(self, ids: tuple[Ids, ...]) -> tuple[Floats, ...]:
        """Reads rows of each store; also updates the learner's dense values."""
        shards = self._layout.shards
        places = [IdPlacement(ids_U, shards) for ids_U in ids]
        answers = self._shards.peek(
            [
                tuple(store[place.groups[shard]] for store, place in zip(ids, places, strict=True))
                for shard in range(shards)
            ]
        )
        self._take_dense(answers)
        return tuple(self._gathered(i, ids[i], places[i], answers) for i in range(len(ids)))

    def _take_dense(self, answers: dict[int, Seen]) -> None:
        with torch.no_grad():
            flat, statistics = shown(self._learner.server)
            for shard, part in enumerate(self._layout.dense):
                flat[part].copy_(answers[shard].dense)
            for name, values in statistics.items():
                values.copy_(answers[0].statistics[name])

    def _gathered(self, i: int, ids_U: Ids, place: IdPlacement, answers: dict[int, Seen]) -> Floats:
        rows_UW: Floats = np.empty((len(ids_U), self.stores[i].width), np.float32)
        for shard, at in enumerate(place.groups):
            rows_UW[at] = answers[shard].rows[i]
        return rows_UW


@dataclass(frozen=True)
class RemoteLifetimes:
    """The rules are applied on the shards, which report their counts among their metrics."""

    rules: tuple[RowRule, ...]

    def counts(self) -> NDArray[np.uint64]:
        return np.zeros((len(self.rules), len(COUNTS)), np.uint64)


class RemoteRows:
    """A read-only store whose rows are on the shards."""

    def __init__(self, store: RowStore, number: int, parameters: RemoteParameters) -> None:
        self.parts, self.width, self.state_width = store.parts, store.width, store.state_width
        self.tier = None  # the tiers are on the shards, which report their own failures among their metrics
        self.lifetimes = RemoteLifetimes(store.lifetimes.rules)
        self._number, self._parameters, self._unmoved = number, parameters, store
        self.size: Size = 0, 0  # rows and bytes in the newest checkpoint

    def __len__(self) -> int:
        return self.size[0]

    def memory_bytes(self) -> int:
        return self.size[1]

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]:
        """Whether rows were trained: they differ from their first values.

        Columns whose trained weights may be zero, their first value, are ignored.
        """
        telling = [not may_zero_weights(part.optimizer) for part in self.parts]
        columns = np.repeat(telling, [part.width for part in self.parts])
        if not columns.any():
            return np.ones(len(ids_U), np.bool_)
        moved_U = (self.peek(ids_U) != self._unmoved.peek(ids_U))[:, columns].any(1)
        known_U: NDArray[np.bool_] = moved_U | self._unmoved.contains(ids_U)  # or loaded from another run
        return known_U

    def peek(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        most = self._parameters.most_ids
        blocks = [self._ask(ids_U[at : at + most]) for at in range(0, len(ids_U), most)]
        rows_UW = np.concatenate(blocks) if blocks else np.empty((0, self.width), np.float32)
        if out_UW is None:
            return rows_UW
        out_UW[:] = rows_UW
        return out_UW

    def _ask(self, ids_U: Ids) -> Floats:
        nothing, stores = np.empty(0, np.int64), range(len(self._parameters.stores))
        rows = self._parameters.peek(tuple(ids_U if i == self._number else nothing for i in stores))
        return rows[self._number]
