"""r for embedding rows, over the pushes of one step. The paper (VRGD) does not cover rows; there are two variants.

    touched    per element, over all pushes: a push without the id has a zero gradient there. An id in 1 of k pushes has
               r = 1/(k-1) before normalisation, whatever its gradient: r mostly reflects frequency.
    row_wise   one r per row: |mean|^2 / (sum of variances) over the pushes with the id. For pure noise it is
               1/(j-1) with j pushes. A row in fewer than `min_pushes` effective ones keeps r = 1, out of the mean.

The touched rows of one part (the embedding, the linear term) of one store on one shard form a layer: r is divided by
its mean over them. r therefore depends on the number of shards and on which fields share a width, especially if few
rows are touched; a global mean would need a message between shards in every step. Floor, control and statistics are
those of `GSNR`. `dense_only` uses neither variant. Squares are summed around the mean, because plain float32 sums of
squares would lose the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gearshift import _core
from gearshift.optim.gsnr import GSNR, Ratios
from gearshift.optim.layout import Layout
from gearshift.optim.spread import Spread, effective_number


@dataclass(frozen=True)
class PushedRows:
    """The rows of one push: gradients of the summed loss, each id once; the push's weight in the step; its examples."""

    ids_U: NDArray[np.int64]
    sums_UW: NDArray[np.float32]
    weight: float
    examples: float


@dataclass(frozen=True)
class RowRatios:
    ids_U: NDArray[np.int64]  # in the order of first occurrence, as the server merges rows
    values_UW: NDArray[np.float32] | None  # None: r is 1
    parts: tuple[Ratios, ...]  # in the order of `parts`, for statistics and the reason


@dataclass(frozen=True)
class RowPartColumns:
    name: str
    begin: int
    end: int


def touched(pushes: Sequence[PushedRows], gsnr: GSNR, parts: Sequence[RowPartColumns]) -> RowRatios:
    rows = _Merged(pushes)
    mean_UW = rows.sums().div_(rows.weight)
    absent_U1 = (rows.weight - rows.weights_U1).clamp_(min=0)
    variance_UW = rows.squares_around(mean_UW).addcmul_(absent_U1, mean_UW**2).div_(rows.weight)
    return _per_part(rows, gsnr, parts, lambda part: (mean_UW[:, part], variance_UW[:, part]))


def row_wise(
    pushes: Sequence[PushedRows], gsnr: GSNR, parts: Sequence[RowPartColumns], *, min_pushes: float = 2.0
) -> RowRatios:
    rows = _Merged(pushes)
    mean_UW = rows.sums().div_(rows.weights_U1)
    variance_UW = rows.squares_around(mean_UW).div_(rows.weights_U1)
    enough_U1 = (rows.effective_U1 >= min_pushes * (1 - 1e-6)).float()

    def of_rows(part: slice) -> tuple[Tensor, Tensor]:
        length_U1 = mean_UW[:, part].norm(dim=1, keepdim=True)
        return length_U1 * enough_U1, variance_UW[:, part].sum(1, keepdim=True) * enough_U1

    return _per_part(rows, gsnr, parts, of_rows)


class _Merged:
    """The concatenated rows of all pushes that count (N), and the distinct ids among them (U)."""

    def __init__(self, pushes: Sequence[PushedRows]) -> None:
        kept = [push for push in pushes if push.weight > 0 and push.examples > 0]
        if not kept:
            raise ValueError("there is no push with a weight above 0, so there is no mean")
        self._index = _core.Occurrences(np.concatenate([push.ids_U for push in kept]))
        self.ids_U = self._index.unique_U
        a_M = np.array([push.weight * push.examples for push in kept])
        self.weight, self.pushes = float(a_M.sum()), len(kept)
        self.effective = effective_number(a_M.tolist())
        self.shares = sum(push.weight for push in kept), sum(push.weight**2 * push.examples for push in kept)
        self._a_N1 = a_M.astype(np.float32).repeat([len(push.ids_U) for push in kept])[:, None]
        self._g_NW = np.concatenate([push.sums_UW / np.float32(push.examples) for push in kept])
        self.weights_U1 = self._sum(self._a_N1)
        self.effective_U1 = self.weights_U1**2 / self._sum(self._a_N1**2)

    def sums(self) -> Tensor:
        """The weighted sums of the gradients."""
        return self._sum(self._a_N1 * self._g_NW)

    def squares_around(self, mean_UW: Tensor) -> Tensor:
        d_NW = np.empty_like(self._g_NW)
        self._index.expand(mean_UW.numpy(), 0, d_NW.shape[1], d_NW)
        d_NW -= self._g_NW
        d_NW *= d_NW
        d_NW *= self._a_N1
        return self._sum(d_NW)

    def _sum(self, values_NW: NDArray[np.float32]) -> Tensor:
        out_UW = np.empty((len(self.ids_U), values_NW.shape[1]), np.float32)
        self._index.sum(values_NW, 0, values_NW.shape[1], out_UW)
        return torch.from_numpy(out_UW)


def _per_part(
    rows: _Merged,
    gsnr: GSNR,
    parts: Sequence[RowPartColumns],
    moments: Callable[[slice], tuple[Tensor, Tensor]],
) -> RowRatios:
    ratios_of_parts, columns = [], []
    for part in parts:
        mean, variance = moments(slice(part.begin, part.end))
        spread = Spread(mean, variance, rows.weight, rows.effective, rows.pushes, shares=rows.shares)
        ratios = gsnr.ratios(spread, Layout.whole(part.name, mean.shape))
        ratios_of_parts.append(ratios)
        if ratios.values is not None:
            columns.append(ratios.values.expand(-1, part.end - part.begin))
    values_UW = torch.cat(columns, 1).numpy() if columns else None
    return RowRatios(rows.ids_U, values_UW, tuple(ratios_of_parts))
