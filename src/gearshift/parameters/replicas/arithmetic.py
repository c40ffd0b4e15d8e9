"""The vector operations of an exchange, in place, according to the choices of `gearshift.sync.exchange`.

    centre     c' = (1-a) c + a w, on each sync server for its part
    mean       of the snapshots, with weight 0 for finished replicas
    global     v' = mu v + eta (mean - start); g' = g + v'; the target of replicas is g', with Nesterov g' + mu v'
    merge      elastic: w = (1-a) w + a c; delta: w += a (c - sent); overwrite: w = c

`start` is the previous target of the replicas: g, or with Nesterov g + mu v (Chen and Huo 2016, eq. 6 and 8: the
update is counted from the broadcast model). The distance to a centre shrinks by (1-a)^2 per exchange, or by (1-2a) if
the merge uses the centre before the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gearshift.sync.exchange import Choices


@torch.no_grad()
def centre_step(centre: Tensor, sent: Tensor, choices: Choices) -> Tensor:
    """Move the centre towards the sent weights. Returns the values that the trainer merges with."""
    before = centre.clone() if choices.simultaneous else centre
    centre.lerp_(sent, choices.elasticity)
    return before if choices.simultaneous else centre.clone()


@torch.no_grad()
def mean_of(snapshots: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The mean over snapshots of positive weight, or over all if there are none. Sums in the given order."""
    counted = [
        w for w, weight in zip(snapshots, weights or [1.0] * len(snapshots), strict=True) if weight > 0
    ]
    counted = counted or list(snapshots)
    total = counted[0].clone()
    for other in counted[1:]:
        total.add_(other)
    return total.div_(len(counted))


class GlobalStep:
    """Computes the target of the replicas from their mean. Without block momentum the target is the mean."""

    def __init__(self, choices: Choices, start: Tensor) -> None:
        self.choices = choices
        self.position = start.clone()  # g
        self.velocity = torch.zeros_like(start)
        self.target = start.clone()

    @torch.no_grad()
    def step(self, mean: Tensor) -> Tensor:
        """A new target. The same mean gives the same target on every member, bit for bit."""
        if not self.choices.block_momentum:
            self.position.copy_(mean)
            self.target = mean
            return mean
        momentum = self.choices.momentum
        self.velocity.mul_(momentum).add_(mean - self.target, alpha=self.choices.outer_rate)
        self.position.add_(self.velocity)
        nesterov = self.choices.nesterov
        self.target = self.position.add(self.velocity, alpha=momentum) if nesterov else self.position.clone()
        return self.target

    @torch.no_grad()
    def shift(self, change: Tensor) -> None:
        """Shift everything by this change: the global model and the target."""
        self.position.add_(change)
        self.target = self.target + change


@torch.no_grad()
def merge(live: Tensor, sent: Tensor, target: Tensor, choices: Choices) -> None:
    """Merge into the live weights, which may have changed since `sent` was copied from them."""
    if choices.merge == "overwrite":
        live.copy_(target)
    elif choices.merge == "elastic":
        live.lerp_(target, choices.elasticity)
    else:
        live.add_(target - sent, alpha=choices.elasticity)
