"""Where embedding rows live: the interface every store has, and its plain values.

A store maps a 63-bit id to one row of `width` floats, cut into named parts (a width-1 linear term beside the
embedding), each with its own optimizer, whose state lies beside the weights. Rows are born on the first
`pull`, with values that depend on (seed, id) alone. A store knows no feature, no model and no worker; ids in
one call are unique, and calls may come from many threads at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gearshift.errors import UserError

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class RowSGD:
    """Plain gradient descent on the rows of a batch."""

    lr: float = 0.05
    l2: float = 0.0


@dataclass(frozen=True)
class RowMomentum:
    """Gradient descent with momentum; a row's velocity moves only when the row is in a batch."""

    lr: float = 0.05
    momentum: float = 0.9
    l2: float = 0.0


@dataclass(frozen=True)
class RowAdagrad:
    """Adagrad with an accumulator for each weight: the default for rows."""

    lr: float = 0.05
    eps: float = 1e-8
    initial: float = 0.0  # first value of the accumulator
    l2: float = 0.0


@dataclass(frozen=True)
class RowwiseAdagrad:
    """One accumulator per row: the mean of its squared gradient."""

    lr: float = 0.05
    eps: float = 1e-8
    initial: float = 0.0
    l2: float = 0.0


@dataclass(frozen=True)
class RowAdam:
    """Lazy: a row's moments move only when it is touched, and its bias correction counts its own updates."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    l2: float = 0.0


@dataclass(frozen=True)
class RowFTRL:
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1); a row is born with zero weights.

    Its rate falls by itself with the gradients seen. A schedule's factor does not apply to it, but for 0, at
    which nothing moves.
    """

    lr: float = 0.05
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


RowOptimizer = RowSGD | RowMomentum | RowAdagrad | RowwiseAdagrad | RowAdam | RowFTRL

ROW_OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    "sgd": RowSGD,
    "momentum": RowMomentum,
    "adagrad": RowAdagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": RowAdam,
    "ftrl": RowFTRL,
}


@dataclass(frozen=True)
class CowClip:
    """Clips a row's gradient, before L2 and the optimizer, by the row's own length and how often the id occurred:

    `g *= min(1, c / |g|)`, `c = ratio * count * max(|w|, ratio * sqrt(width) * zeta)` (Zheng et al. 2022). The
    gradient must be the mean over the step's examples (`embedding_reduce: mean`). Their L2 regularises the whole table
    on every step; ours the rows touched.
    """

    ratio: float = 1.0
    zeta: float = 1e-5

    def __post_init__(self) -> None:
        if not (0 < self.ratio < math.inf and 0 <= self.zeta < math.inf):
            raise UserError(
                f"CowClip needs a ratio above 0 and a zeta of 0 or more, not {self.ratio} and {self.zeta}"
            )


@dataclass(frozen=True)
class RowPart:
    """Columns of a row: `width` floats, born uniform in [-init, init], moved by `optimizer`."""

    name: str
    width: int
    optimizer: RowOptimizer
    init: float = 0.01
    clip: CowClip | None = None


@dataclass(frozen=True)
class RowBlock:
    """Whole rows as they go to and come from a file; `state_US` is the optimizer state of all parts."""

    ids_U: Ids
    weights_UW: Floats
    state_US: Floats
    touches_U: NDArray[np.uint32]  # occurrences in the data, over all pushes
    last_step_U: NDArray[np.uint32]  # the step of the last push
    updates_U: NDArray[np.uint32]  # pushes that moved the row (Adam's bias correction)


class StoreSnapshot(Protocol):
    """The store as it was when `cut()` returned, while training goes on. Read once, then closed."""

    def __len__(self) -> int: ...  # rows in the cut
    def __iter__(self) -> Iterator[RowBlock]: ...  # one block per non-empty partition, each sorted by id
    def close(self) -> None: ...


class RowStore(Protocol):
    """Ids are unique within a call. A store must stay safe if they are not: `pull` then gives the row again,
    `push` moves it once per mention, in order, and `load` keeps the last. Results never depend on `threads`,
    the number of cores one call may use."""

    parts: tuple[RowPart, ...]
    width: int  # the parts' widths, summed
    state_width: int

    def __len__(self) -> int: ...

    def pull(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        """The rows of these ids; rows not seen before are born."""

    def peek(self, ids_U: Ids, out_UW: Floats | None = None, *, threads: int = 1) -> Floats:
        """Like `pull`, but creates nothing: an unknown row shows the values it would be born with."""

    def push(
        self,
        ids_U: Ids,
        sums_UW: Floats,
        counts_U: NDArray[np.uint32],
        *,
        examples: float,
        step: int,
        lr_scale: float = 1.0,
        threads: int = 1,
    ) -> None:
        """One update per row with the gradient `sums / examples`; `lr_scale` is the schedule's factor.

        A gradient that is not finite is a ValueError that names its id, and nothing has changed. A row not
        seen before is born first.
        """

    def contains(self, ids_U: Ids) -> NDArray[np.bool_]: ...
    def erase(self, ids_U: Ids) -> int: ...  # how many were there
    def blocks(self) -> Iterator[RowBlock]: ...  # as they are when read; `cut` for one moment in time
    def load(self, block: RowBlock) -> None: ...  # whole rows, new or in place of those with these ids
    def cut(self) -> StoreSnapshot: ...  # falls between two pushes, never inside one; one cut at a time
    def memory_bytes(self) -> int: ...
