"""The gradient signal-to-noise ratio (GSNR): a factor for each element's step, by how reliable its gradient is.

    r = mean^2 / variance over the step's gradients; r / (its mean over the layer); clipped to [floor, 1]

(Jiang et al. 2023, VRGD.) An element without gradient and without noise gets r = 1 and is excluded from the layer's
mean. With fewer than `min_gradients` effective gradients the variance is unreliable: r is 1 and `reason` explains it.

`control` replaces r in benchmarks, to distinguish a real gain from the effect of a smaller rate: `norm_matched`
scales a layer by |r g| / |g|, `layer_mean` by the mean of r, and `permuted` gives each element the r of another
element of its layer (always the same one, so that r changes over time as before).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import get_args

import torch
from torch import Tensor

from gearshift.errors import UserError, unknown_name
from gearshift.optim.layout import Layout
from gearshift.optim.rule_settings import Control, TrustSettings
from gearshift.optim.spread import Spread

SMALLEST_NOISE = 1e-6  # relative to the mean square; smaller values are rounding errors


@dataclass(frozen=True)
class LayerStatistics:
    layer: str
    size: int  # elements
    mean_ratio: float  # over the elements with a gradient or noise; 1 if there are none
    at_floor: float  # the share of them at the floor
    noise: float = math.nan  # these two are additive over layers, see `noise_and_signal`; nan if unknown
    signal: float = math.nan

    @property
    def noise_scale(self) -> float | None:
        """The batch size (in examples) at which a layer's noise is as large as its gradient.

        McCandlish et al. 2018. None if it cannot be estimated because the noise hides the gradient.
        """
        return self.noise / self.signal if self.signal > 0 else None


@dataclass(frozen=True)
class Ratios:
    """The ratios r of one step; `values` is None if all are 1. Keeps its inputs for `statistics`.

    `values` are in the spare buffers of the spread, if it has any.
    """

    values: Tensor | None
    reason: str | None  # why r is 1 everywhere
    spread: Spread
    layout: Layout
    floor: float

    def statistics(self) -> tuple[LayerStatistics, ...]:
        views = [self.layout.views(t) for t in (self.spread.mean, self.spread.variance)]
        ratios: tuple[Tensor | None, ...] = (None,) * len(self.layout.layers)
        if self.values is not None:
            ratios = self.layout.views(self.values)
        return tuple(
            _statistics(layer.name, mean, variance, ratio, self)
            for layer, mean, variance, ratio in zip(self.layout.layers, *views, ratios, strict=True)
        )


@dataclass(frozen=True)
class GSNR(TrustSettings):
    """Makes the factors of a step's gradients."""

    def __post_init__(self) -> None:
        if not (isinstance(self.floor, Real) and 0.0 <= self.floor <= 1.0):
            raise UserError(
                f"floor is the smallest factor of a step and must be from 0 to 1, not {self.floor!r}"
            )
        if not (isinstance(self.min_gradients, Real) and self.min_gradients >= 0):
            raise UserError(
                "min_gradients is the number of gradients for a variance and must be 0 or more, not "
                f"{self.min_gradients!r}"
            )
        if self.control not in get_args(Control):
            raise unknown_name("control", self.control, get_args(Control))

    def too_few(self, effective: float) -> str | None:
        """Why r is 1 in a step with this effective number of gradients; None if they are enough.

        Half a gradient is tolerated: the last part of a batch is often smaller, and late gradients are decayed.
        """
        if effective >= self.min_gradients - 0.5 - 1e-6:
            return None
        return (
            f"{effective:.1f} effective gradients in this step, fewer than min_gradients = "
            f"{self.min_gradients:g}: r = 1"
        )

    @torch.no_grad()
    def ratios(self, spread: Spread, layout: Layout) -> Ratios:
        if reason := self.too_few(spread.effective):
            return Ratios(None, reason, spread, layout, self.floor)
        signal, noise = _signal_and_noise(spread.mean, spread.variance, spread.spare)
        for r, s in zip(layout.views(signal), layout.views(noise), strict=True):
            self._in_layer(r, s)
        for gap in layout.gaps(signal):
            gap.fill_(1.0)
        if self.control != "none":
            known = (noise > 0) & noise.isfinite()  # all other elements have r = 1
            self._replace(signal, known, spread.mean, layout)
        return Ratios(signal, None, spread, layout, self.floor)

    def _in_layer(self, r: Tensor, noise: Tensor) -> None:
        """Compute r from the signal, in place. Masked fill is slow and rarely needed."""
        live, silent = int(torch.count_nonzero(noise)), None
        r.div_(noise)
        if live < r.numel():
            silent = noise == 0
            r.masked_fill_(silent, 0.0)
        average = float(r.sum()) / live if live else 0.0
        if not math.isfinite(average):  # unknown: too large to square, or not finite
            unknown = r.isfinite().logical_not_()
            r.masked_fill_(unknown, 0.0)
            live -= int(unknown.sum())
            silent = unknown if silent is None else silent | unknown
            average = float(r.sum(dtype=torch.float64)) / live if live else 0.0
        if average > 0:
            r.div_(average)
        r.clamp_(self.floor, 1.0)
        if silent is not None:
            r.masked_fill_(silent, 1.0)

    def _replace(self, ratio: Tensor, known: Tensor, mean: Tensor, layout: Layout) -> None:
        for r, live, g in zip(*map(layout.views, (ratio, known, mean)), strict=True):
            if not live.any():
                continue
            match self.control:
                case "norm_matched":
                    length = float(torch.linalg.vector_norm(g[live]))
                    matched = float(torch.linalg.vector_norm(r[live] * g[live]))
                    r.masked_fill_(live, matched / length if length > 0 else 1.0)
                case "layer_mean":
                    r.masked_fill_(live, float(r[live].mean(dtype=torch.float64)))
                case "permuted":
                    generator = torch.Generator().manual_seed(r.numel())
                    keys = torch.rand(r.shape, generator=generator).to(r.device)
                    r[live] = r[live][keys[live].argsort()]


def _signal_and_noise(
    mean: Tensor, variance: Tensor, spare: tuple[Tensor, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Squared mean and variance. The noise is 0 for an element with neither gradient nor noise.

    Uses the spare buffers if there are any: allocating new ones took most of the time.
    """
    signal, noise = spare or (torch.empty_like(mean), torch.empty_like(mean))
    torch.mul(mean, mean, out=signal)
    torch.add(variance, signal, out=noise).mul_(SMALLEST_NOISE)
    return signal, torch.maximum(variance, noise, out=noise)


def _statistics(
    name: str, mean: Tensor, variance: Tensor, ratio: Tensor | None, of: Ratios
) -> LayerStatistics:
    noise = noise_and_signal(mean, variance, of.spread)
    live = _signal_and_noise(mean, variance)[1] != 0
    if ratio is None or not live.any():
        return LayerStatistics(name, mean.numel(), 1.0, 0.0, *noise)
    values = ratio[live].double()
    low = float((values <= of.floor * (1 + 1e-6)).double().mean()) if of.floor < 1 else 0.0
    return LayerStatistics(name, mean.numel(), float(values.mean()), low, *noise)


def noise_and_signal(mean: Tensor, variance: Tensor, spread: Spread) -> tuple[float, float]:
    """Unbiased estimates of tr(Sigma) of one example and |G|^2, from k gradients (McCandlish et al. 2018, appendix A).

    A gradient of n examples has the variance Sigma / n. With weights w, E[sum(w n (g - mean)^2)] is therefore Sigma
    times sum(w) - sum(w^2 n) / sum(w n), which is k - 1 if every w is 1, and the variance of the mean is
    Sigma sum(w^2 n) / sum(w n)^2.
    """
    if spread.gradients < 2:
        return math.nan, math.nan
    shares, squares = spread.shares or (spread.gradients, spread.weight)
    freedom = shares - squares / spread.weight
    noise = float(variance.sum(dtype=torch.float64)) * spread.weight / freedom
    return noise, float((mean.double() ** 2).sum()) - noise * squares / spread.weight**2
