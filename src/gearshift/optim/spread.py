"""Mean and variance, per element, of the gradients of one step: the k pushes of a group, or k micro-batches.

With weights a (of a push: its weight times its number of examples):

    mean = sum(a g) / sum(a)      variance = sum(a (g - mean)^2) / sum(a)      effective = sum(a)^2 / sum(a^2)

One-pass float32 sums of g and g^2 lose the variance to rounding (it was negative in half of the elements). The sums
therefore use g - shift, with a common shift near the mean: one of the gradients if all are available
(`ShiftedSums`), or the mean of the previous step if several processes add up their sums (`SharedSums`). A gradient of
weight 0 is excluded: as a zero it would look like noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Spread:
    mean: Tensor
    variance: Tensor
    weight: float  # sum of a
    effective: float  # the equivalent number of gradients with equal weights
    gradients: int
    spare: tuple[Tensor, ...] = ()  # buffers like `mean`, free for further computation until `restart`
    shares: tuple[float, float] | None = None  # sum(w) and sum(w^2 n); None: every weight w is 1


class ShiftedSums:
    """Sums that can be accumulated over gradients, in any order.

    If it is kept between steps with `restart`, its buffers are allocated only once, which saves most of the time.
    """

    def __init__(self, shift: Tensor) -> None:
        dtype = torch.promote_types(shift.dtype, torch.float32)
        self._minus_shift, self._difference, self.first, self.second = (
            torch.empty(shift.shape, dtype=dtype, device=shift.device) for _ in range(4)
        )
        self.restart(shift)

    @torch.no_grad()
    def restart(self, shift: Tensor, *, scale: float = 1.0) -> None:
        """Reset the sums, with `scale * shift` as the new shift."""
        torch.mul(shift, -scale, out=self._minus_shift)
        self.first.zero_()
        self.second.zero_()
        self.weight = self.squared_weight = self._shares = self._squares = 0.0
        self.gradients = 0

    @torch.no_grad()
    def add(
        self, gradient: Tensor, examples: float = 1.0, *, weight: float = 1.0, scale: float = 1.0
    ) -> None:
        """Add `scale * gradient`. For a push's sum over n examples, scale is 1/n."""
        a = weight * examples
        if a <= 0:
            return
        d = torch.add(self._minus_shift, gradient, alpha=scale, out=self._difference)
        self.first.add_(d, alpha=a)
        self.second.addcmul_(d, d, value=a)
        self.weight += a
        self.squared_weight += a * a
        self._shares, self._squares = self._shares + weight, self._squares + weight * a
        self.gradients += 1

    def spread(self) -> Spread:
        """Finish the sums. The result uses their buffers, so it is valid until `restart`."""
        if self.weight == 0:
            raise ValueError("there is no gradient with a weight above 0, so there is no mean")
        offset = self.first.div_(self.weight)
        variance = self.second.div_(self.weight).addcmul_(offset, offset, value=-1).clamp_(min=0)
        effective = self.weight**2 / self.squared_weight
        mean, spare = offset.sub_(self._minus_shift), (self._minus_shift, self._difference)
        shares = self._shares, self._squares
        return Spread(mean, variance, self.weight, effective, self.gradients, spare, shares)

    @torch.no_grad()
    def of_total(
        self, total: Tensor, variance: Tensor, weight: float, effective: float, gradients: int
    ) -> Spread:
        """The spread of gradients that were added up by `SharedSums`, in the buffers of these sums."""
        mean = torch.mul(total, 1 / weight, out=self.first)
        spare = self._minus_shift, self._difference
        return Spread(mean, variance, weight, effective, gradients, spare)


class SharedSums:
    """Sum and variance of the gradients of several processes, from one all-reduced vector.

    The vector holds the sum of g, the sum of squares about a shift, and the number of examples. All processes must use
    the same shift. It is the mean of the previous sum, which all have with the same bits. It differs from the new mean
    by about the noise, so the variance

        sum(n (g/n - shift)^2) / sum(n)  -  (mean - shift)^2

    is not a small difference of large numbers. Before the first sum, all take the mean gradient of one process
    (`propose`); zeros would give the one-pass sums that fail. The sum of g itself is not shifted: it is the same as
    without variance, and an element without any gradient is exactly 0 and can be recognised.
    """

    def __init__(self, size: int) -> None:
        self.packed = torch.zeros(2 * size + 1)
        self.total, self.variance = self.packed[:size], self.packed[size:-1]  # squares until `settle`
        self._minus_shift, self._spare = torch.zeros(size), torch.empty(size)

    @torch.no_grad()
    def propose(self, gradient: Tensor, examples: float) -> Tensor:
        """The vector to sum up before the first sum. All processes but one pass 0 examples."""
        if examples > 0:
            return torch.mul(gradient, -1 / examples, out=self._minus_shift)
        return self._minus_shift.zero_()

    def restart(self) -> None:
        self.packed.zero_()

    @torch.no_grad()
    def add(self, gradient: Tensor, examples: float) -> None:
        """Add a gradient of the summed loss over this many examples."""
        d = torch.add(self._minus_shift, gradient, alpha=1 / examples, out=self._spare)
        self.total.add_(gradient)
        self.variance.addcmul_(d, d, value=examples)
        self.packed[-1] += examples

    @torch.no_grad()
    def settle(self, gradients: int) -> None:
        """Turn the squares in `packed`, the sum over this many gradients, into the variance.

        A variance below the rounding error of the sums is unknown, and too small a value would give a large ratio. It
        is replaced by the rounding error. If the sum of g is 0 too, there was no gradient and no noise.
        """
        weight = float(self.packed[-1])
        mean = torch.div(self.total, weight, out=self._spare)
        offset = self._minus_shift.add_(mean)
        self.variance.div_(weight).addcmul_(offset, offset, value=-1)
        offset.abs_()
        rounding = mean.abs_().add_(offset).mul_(offset).mul_(EPSILON * (gradients + 8))
        torch.maximum(self.variance, rounding, out=self.variance)
        if int(torch.count_nonzero(self.total)) < len(self.total):
            silent = (self.total == 0) & (self.variance <= rounding)
            self.variance.masked_fill_(silent, 0.0)
        torch.mul(self.total, -1 / weight, out=self._minus_shift)


def effective_number(weights: Sequence[float]) -> float:
    """The equivalent number of equally weighted gradients."""
    total = sum(weights)
    return total**2 / sum(weight**2 for weight in weights) if total else 0.0


def spread_of(pushes: Iterable[tuple[Tensor, float, float]], sums: ShiftedSums | None = None) -> Spread:
    """The spread of a group's pushes, each (gradient of the summed loss, examples, weight). The heaviest is the shift.

    The buffers of `sums` from an earlier step are reused, which invalidates the spread of that step.
    """
    kept = [push for push in pushes if push[1] > 0 and push[2] > 0]
    if not kept:
        raise ValueError("there is no push with a weight above 0, so there is no mean")
    heaviest, examples, _ = max(kept, key=lambda push: push[1] * push[2])
    sums = sums or ShiftedSums(heaviest)
    sums.restart(heaviest, scale=1 / examples)
    for gradient, examples, weight in kept:
        sums.add(gradient, examples, weight=weight, scale=1 / examples)
    return sums.spread()
