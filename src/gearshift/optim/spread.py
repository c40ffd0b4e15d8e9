"""Mean and variance, per element, of the gradients that form one step: the k pushes of a group, or k micro-batches.

With weights a (a push: its weight times its examples):

    mean = sum(a g) / sum(a)      variance = sum(a (g - mean)^2) / sum(a)      effective = sum(a)^2 / sum(a^2)

One-pass float32 sums of g and g^2 lose the variance to rounding (it came out negative in half of the elements). So the
sums are of g - shift, for a shift near the mean that all agree on: one of the gradients where they are at hand; the
last step's mean where several processes add theirs up. A gradient of weight 0 is left out: as a zero it would
look like noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    mean: Tensor
    variance: Tensor
    weight: float  # sum of a
    effective: float  # the number of gradients, if they had equal weights
    gradients: int
    spare: tuple[Tensor, ...] = ()  # buffers like `mean`, free until `restart`: for whoever goes on from here


class ShiftedSums:
    """Sums that can be added up over gradients, and over processes that share `shift`, in any order.

    Kept from step to step with `restart`, its buffers are made once: fresh ones took most of the time.
    """

    def __init__(self, shift: Tensor) -> None:
        dtype, n = torch.promote_types(shift.dtype, torch.float32), shift.numel()
        self._minus_shift, self._difference = (
            torch.empty(shift.shape, dtype=dtype, device=shift.device) for _ in range(2)
        )
        self._packed = torch.empty(2 * n + 3, dtype=dtype, device=shift.device)  # one buffer, one all-reduce
        self.first, self.second = (self._packed[i * n : i * n + n].view(shift.shape) for i in range(2))
        self.restart(shift)

    @torch.no_grad()
    def restart(self, shift: Tensor, *, scale: float = 1.0) -> None:
        """Forgets all, with `scale * shift` as the new shift."""
        torch.mul(shift, -scale, out=self._minus_shift)
        self.first.zero_()
        self.second.zero_()
        self.weight = self.squared_weight = 0.0
        self.gradients = 0

    @torch.no_grad()
    def add(self, gradient: Tensor, weight: float = 1.0, *, scale: float = 1.0) -> None:
        """`scale * gradient`, so that a push's sum over n examples comes in with scale 1/n and weight w*n."""
        if weight <= 0:
            return
        d = torch.add(self._minus_shift, gradient, alpha=scale, out=self._difference)
        self.first.add_(d, alpha=weight)
        self.second.addcmul_(d, d, value=weight)
        self.weight += weight
        self.squared_weight += weight * weight
        self.gradients += 1

    def packed(self) -> Tensor:
        """Everything as one vector, the sums' own, for one all-reduce in place; all must have the same shift."""
        numbers = [self.weight, self.squared_weight, self.gradients]
        self._packed[-3:] = self._packed.new_tensor(numbers)
        return self._packed

    def unpack(self, packed: Tensor) -> None:
        """Takes the sums that `packed` vectors have added up to."""
        if packed is not self._packed:
            self._packed.copy_(packed)
        self.weight, self.squared_weight, gradients = packed[-3:].tolist()
        self.gradients = round(gradients)

    def spread(self) -> Spread:
        """The end of these sums: what it gives lies in their buffers, until `restart`."""
        if self.weight == 0:
            raise ValueError("no gradient of weight above 0: there is nothing to take a mean of")
        offset = self.first.div_(self.weight)
        variance = self.second.div_(self.weight).addcmul_(offset, offset, value=-1).clamp_(min=0)
        effective = self.weight**2 / self.squared_weight
        mean, spare = offset.sub_(self._minus_shift), (self._minus_shift, self._difference)
        return Spread(mean, variance, self.weight, effective, self.gradients, spare)


def spread_of(pushes: Iterable[tuple[Tensor, float, float]], sums: ShiftedSums | None = None) -> Spread:
    """Of a group's pushes: (gradient of the summed loss, examples, weight) each; the first is the shift.

    `sums` of an earlier step lend their buffers; what that step's spread holds is then gone.
    """
    kept = [push for push in pushes if push[1] > 0 and push[2] > 0]
    if not kept:
        raise ValueError("no push of weight above 0: there is nothing to take a mean of")
    first, examples, _ = kept[0]
    sums = sums or ShiftedSums(first)
    sums.restart(first, scale=1 / examples)
    for gradient, examples, weight in kept:
        sums.add(gradient, weight * examples, scale=1 / examples)
    return sums.spread()
