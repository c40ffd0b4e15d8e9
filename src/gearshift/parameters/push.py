"""What a worker sends after a batch: gradients of the summed loss for the dense parameters and for each row it used."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gearshift.data.batch import Floats, Ids

NO_VALUES = torch.empty(0)


@dataclass(frozen=True)
class RowPush:
    """Gradients for one store: one line per distinct id of the batch; valid until the worker's next step."""

    ids_U: Ids
    sums_UW: Floats
    counts_U: NDArray[np.uint32]
    finite: bool = True  # whether all sums are, also squared, as optimizers do


@dataclass(frozen=True)
class Push:
    """What a worker sends: gradients of the summed loss, and over how many examples it was summed."""

    rows: tuple[RowPush, ...]
    dense: Tensor  # [P], valid until the worker's next step
    examples: float  # the sum of example weights; the number of examples where there are none
    loss: float  # summed
    probabilities_BT: Floats  # before this push is applied: what progressive measures count
    # By how much it moved the running statistics of a replica's module.
    buffer_changes: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    applied: bool = False  # its worker has made the step on a replica of its own; only the accounts are left
    ring: int = (
        0  # its dense gradient is in the sum of this ring, which one push of it carries; the others have none
    )
    variance: Tensor = NO_VALUES  # [P], of the gradients in that sum, if it is wanted

    def kept(self) -> Push:
        """A copy of its own, for as long as it waits."""
        rows = tuple(RowPush(r.ids_U, r.sums_UW.copy(), r.counts_U) for r in self.rows)
        return replace(self, rows=rows, dense=self.dense.clone(), variance=self.variance.clone())
