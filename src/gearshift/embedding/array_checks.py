"""Clear errors for arrays that the core would refuse or silently copy."""

from __future__ import annotations

import numpy as np

from gearshift.embedding.store import Ids, Tables


def check(name: str, array: object, dtype: type[np.generic], shape: tuple[int | None, ...]) -> None:
    """Raise a clear error for an array that the core would refuse."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, not {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {np.dtype(dtype)}, not {array.dtype}: use {name}.astype first")
    if array.ndim != len(shape) or any(
        w is not None and w != g for w, g in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join("n" if w is None else str(w) for w in shape)
        raise ValueError(f"{name} must have shape ({wanted}), not {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous: use np.ascontiguousarray({name})")


def check_tables(tables_U: Tables | None, rows: int) -> None:
    if tables_U is not None:
        check("tables", tables_U, np.uint16, (rows,))


def check_ids(ids_U: Ids) -> None:
    check("ids", ids_U, np.int64, (None,))
