"""The row gradients of several pushes, summed into one for each id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data.batch import Floats, Ids
from gearshift.embedding.store import Tables
from gearshift.parameters.push import RowPush


@dataclass(frozen=True)
class MergedRows:
    """The row gradients of a group, each id once."""

    ids_U: Ids
    sums_UW: Floats
    counts_U: NDArray[np.uint32]
    examples_U: Floats  # of the pushes with the id
    tables_U: Tables


def merge_rows(parts: Sequence[tuple[RowPush, float, float]], threads: int) -> MergedRows:
    """Sum (rows, weight, examples) of the pushes, in this order. A single push at weight 1 is returned unchanged."""
    if len(parts) == 1 and parts[0][1] == 1.0:
        only, _, examples = parts[0]
        examples_U = np.full(len(only.ids_U), examples, np.float32)
        return MergedRows(only.ids_U, only.sums_UW, only.counts_U, examples_U, only.tables_U)
    index = _core.Occurrences(np.concatenate([rows.ids_U for rows, _, _ in parts]))
    sums_NW = np.concatenate(
        [rows.sums_UW if w == 1.0 else rows.sums_UW * np.float32(w) for rows, w, _ in parts]
    )
    both_N2 = np.concatenate([_counts_and_examples(rows, examples) for rows, _, examples in parts])
    width = sums_NW.shape[1]
    sums_UW = np.empty((len(index.unique_U), width), np.float32)
    both_U2 = np.empty((len(index.unique_U), 2), np.float32)
    index.sum(sums_NW, 0, width, sums_UW, threads)
    index.sum(both_N2, 0, 2, both_U2, threads)
    tables_U = np.concatenate([rows.tables_U for rows, _, _ in parts])[index.first_U]
    return MergedRows(
        index.unique_U, sums_UW, both_U2[:, 0].astype(np.uint32), both_U2[:, 1].copy(), tables_U
    )


def _counts_and_examples(rows: RowPush, examples: float) -> Floats:
    both_U2 = np.empty((len(rows.ids_U), 2), np.float32)
    both_U2[:, 0] = rows.counts_U
    both_U2[:, 1] = examples
    return both_U2
