"""r for embedding rows, over the pushes of one step: two readings, where the paper (VRGD) is silent.

    touched    per element, over all pushes: one that lacks the id has a gradient of zero there. An id that is in 1 of k
               pushes has r = 1/(k-1) before normalisation, whatever its gradient: r is largely a matter of frequency.
    row_wise   one r per row: |mean|^2 / (sum of variances) over the pushes that have the id. Of pure noise it is
               1/(j-1) from j pushes. A row in fewer than `min_pushes` effective ones keeps r = 1, out of the mean.

The touched rows of one part (the embedding, the linear term) are a layer: r is divided by its mean over them. Floor,
control and statistics are those of `GSNR`. `dense_only` is to use neither. Sums are float64, around the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gearshift.optim.gsnr import GSNR, Ratios
from gearshift.optim.layout import Layout
from gearshift.optim.spread import Spread


@dataclass(frozen=True)
class PushedRows:
    """Of one push: gradients of its summed loss, each id once; its weight in the step, and its examples."""

    ids_U: NDArray[np.int64]
    sums_UW: NDArray[np.float32]
    weight: float
    examples: float


@dataclass(frozen=True)
class RowRatios:
    ids_U: NDArray[np.int64]  # in the order of their first occurrence, as the server merges rows
    values_UW: NDArray[np.float32] | None  # None: r is 1
    parts: tuple[Ratios, ...]  # in the order of `parts`, for statistics and the reason


@dataclass(frozen=True)
class RowPartColumns:
    name: str
    begin: int
    end: int


def touched(pushes: Sequence[PushedRows], gsnr: GSNR, parts: Sequence[RowPartColumns]) -> RowRatios:
    rows = _Merged(pushes)
    mean_UW = rows.sum(rows.gradients_NW) / rows.weight
    absent_U1 = (rows.weight - rows.weights_U)[:, None]
    variance_UW = (rows.squares_around(mean_UW) + absent_U1 * mean_UW**2) / rows.weight
    return _per_part(rows, gsnr, parts, lambda part: (mean_UW[:, part], variance_UW[:, part]))


def row_wise(
    pushes: Sequence[PushedRows], gsnr: GSNR, parts: Sequence[RowPartColumns], *, min_pushes: float = 2.0
) -> RowRatios:
    rows = _Merged(pushes)
    mean_UW = rows.sum(rows.gradients_NW) / rows.weights_U[:, None]
    variance_UW = rows.squares_around(mean_UW) / rows.weights_U[:, None]
    enough_U1 = (rows.effective_U >= min_pushes * (1 - 1e-6)).double()[:, None]

    def of_rows(part: slice) -> tuple[Tensor, Tensor]:
        length_U1 = mean_UW[:, part].norm(dim=1, keepdim=True)
        return length_U1 * enough_U1, variance_UW[:, part].sum(1, keepdim=True) * enough_U1

    return _per_part(rows, gsnr, parts, of_rows)


class _Merged:
    """The rows of all pushes that count, one after another (N), and where each belongs among the distinct ids (U)."""

    def __init__(self, pushes: Sequence[PushedRows]) -> None:
        kept = [push for push in pushes if push.weight > 0 and push.examples > 0]
        if not kept:
            raise ValueError("no push of weight above 0: there is nothing to take a mean of")
        ids_N = np.concatenate([push.ids_U for push in kept])
        sorted_U, first_U, place_N = np.unique(ids_N, return_index=True, return_inverse=True)
        order_U = np.argsort(first_U)
        self.ids_U = sorted_U[order_U]
        self._place_N = torch.from_numpy(np.argsort(order_U)[place_N.reshape(-1)])
        a_M = torch.tensor([push.weight * push.examples for push in kept], dtype=torch.float64)
        lengths_M = torch.tensor([len(push.ids_U) for push in kept])
        self._a_N1 = a_M.repeat_interleave(lengths_M)[:, None]
        self._g_NW = torch.cat([torch.from_numpy(p.sums_UW).double() / p.examples for p in kept])
        self.gradients_NW = self._a_N1 * self._g_NW
        self.weight, self.pushes = float(a_M.sum()), len(kept)
        self.effective = self.weight**2 / float((a_M**2).sum())
        self.weights_U = self.sum(self._a_N1)[:, 0]
        self.effective_U = self.weights_U**2 / self.sum(self._a_N1**2)[:, 0]

    def sum(self, values_NW: Tensor) -> Tensor:
        out_UW = torch.zeros(len(self.ids_U), values_NW.shape[1], dtype=torch.float64)
        return out_UW.index_add_(0, self._place_N, values_NW)

    def squares_around(self, mean_UW: Tensor) -> Tensor:
        return self.sum(self._a_N1 * (self._g_NW - mean_UW[self._place_N]) ** 2)


def _per_part(
    rows: _Merged,
    gsnr: GSNR,
    parts: Sequence[RowPartColumns],
    moments: Callable[[slice], tuple[Tensor, Tensor]],
) -> RowRatios:
    found, columns = [], []
    for part in parts:
        mean, variance = moments(slice(part.begin, part.end))
        spread = Spread(mean, variance, rows.weight, rows.effective, rows.pushes)
        ratios = gsnr.ratios(spread, Layout.whole(part.name, mean.shape))
        found.append(ratios)
        if ratios.values is not None:
            columns.append(ratios.values.expand(-1, part.end - part.begin))
    values_UW = torch.cat(columns, 1).float().numpy() if columns else None
    return RowRatios(rows.ids_U, values_UW, tuple(found))
