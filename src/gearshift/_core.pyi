"""The C++ core. Arrays are taken as they are: C-contiguous, of the dtype named; all else is a TypeError."""

import numpy as np
from numpy.typing import NDArray

# -- rows (csrc/bind_rows.cpp) --

_Floats = NDArray[np.float32]
_Ids = NDArray[np.int64]
_Counts = NDArray[np.uint32]
_Block = tuple[_Ids, _Floats, _Floats, _Counts, _Counts, _Counts]

class RowPartSpec:
    def __init__(
        self,
        *,
        kind: str,
        width: int,
        init: float,
        lr: float,
        l1: float = 0.0,
        l2: float = 0.0,
        eps: float = 0.0,
        initial: float = 0.0,
        beta1: float = 0.0,
        beta2: float = 0.0,
        beta: float = 0.0,
    ) -> None: ...

class RowTable:
    def __init__(self, parts: list[RowPartSpec], seed: int, portable: bool = False) -> None: ...
    @property
    def width(self) -> int: ...
    @property
    def state_width(self) -> int: ...
    def __len__(self) -> int: ...
    def memory_bytes(self) -> int: ...
    def pull(self, ids: _Ids, out: _Floats, threads: int) -> None: ...
    def peek(self, ids: _Ids, out: _Floats, threads: int) -> None: ...
    def push(
        self,
        ids: _Ids,
        sums: _Floats,
        counts: _Counts,
        examples: float,
        step: int,
        lr_scale: float,
        threads: int,
    ) -> None: ...
    def contains(self, ids: _Ids, out: NDArray[np.bool_]) -> None: ...
    def erase(self, ids: _Ids) -> int: ...
    def load(
        self,
        ids: _Ids,
        weights: _Floats,
        state: _Floats,
        touches: _Counts,
        last_step: _Counts,
        updates: _Counts,
    ) -> None: ...
    def read_partition(self, partition: int) -> _Block: ...
    def begin_cut(self) -> None: ...
    def cut_size(self) -> int: ...
    def read_cut_partition(self, partition: int) -> _Block: ...
    def end_cut(self) -> None: ...

class Occurrences:
    """The ids of a batch, each once (in order of first occurrence), and the way back to where they occur."""

    def __init__(self, ids: _Ids) -> None: ...
    def __len__(self) -> int: ...
    @property
    def unique_U(self) -> _Ids: ...
    @property
    def counts_U(self) -> _Counts: ...
    def expand(self, rows: _Floats, begin: int, end: int, out: _Floats, threads: int = 1) -> None: ...
    def sum(self, grads: _Floats, begin: int, end: int, out: _Floats, threads: int = 1) -> None: ...
