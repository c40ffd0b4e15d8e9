"""A lease that has ended, and the measurements of its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gearshift.data.batch import Batch, Floats
from gearshift.parameters.push import LocalPush
from gearshift.sync.events import Lease, Part

R = TypeVar("R")


@dataclass(frozen=True)
class Ended(Generic[R]):
    """A lease that was applied, or discarded for a reason. `part` has its staleness and lag if it formed a step."""

    worker: int
    lease: Lease
    report: R | None  # None if the worker produced no gradient
    part: Part


@dataclass(frozen=True, slots=True)
class BatchMeasures:
    """What the coordinator's host needs for its metrics; it does not have the batch itself."""

    loss: float  # summed
    examples: float  # the sum of their weights
    labels_BT: Floats
    probabilities_BT: Floats  # before the gradient was applied
    weights_B: Floats | None = None
    times_B: NDArray[np.int64] | None = None  # epoch seconds


def measured_of(batch: Batch, push: LocalPush) -> BatchMeasures:
    return BatchMeasures(
        push.loss, push.examples, batch.labels_BT, push.probabilities_BT, batch.weights_B, batch.times_B
    )
