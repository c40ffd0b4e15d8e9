"""What replicas exchange with and evaluations use: a centre, or a global model that all replicas update together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gearshift.parameters.replicas.arithmetic import GlobalStep, centre_step, mean_of
from gearshift.parameters.replicas.replica import DenseReplica
from gearshift.sync.exchange import Choices


class CommonModel:
    """Starts at `flat`; `choices` determines whether it is a centre or a global model."""

    def __init__(self, choices: Choices, flat: Tensor) -> None:
        self._choices = choices
        self.centre = flat.clone()
        self.global_step = GlobalStep(choices, flat)

    def meet_centre(self, sent: Tensor, weight: float) -> Tensor:
        """One trainer exchanges with the centre, which moves unless it has finished. Returns what it merges with."""
        return centre_step(self.centre, sent, self._choices) if weight else self.centre.clone()

    def meet_all(self, snapshots: list[Tensor], weights: list[float]) -> Tensor:
        """An exchange of all trainers with each other. Returns what they merge with."""
        return self.global_step.step(mean_of(snapshots, weights))

    @torch.no_grad()
    def shift(self, change: Tensor) -> None:
        """The server's weights were moved by a gradient from before the switch."""
        self.centre.add_(change)
        self.global_step.shift(change)

    @property
    def values(self) -> Tensor:
        """What an exchange changes: the centre, or the global model; without momentum that is the newest mean."""
        return self.centre if self._choices.exchange == "centre" else self.global_step.position

    def velocity(self) -> Tensor | None:
        """A copy of the velocity of block momentum; None for a strategy without it."""
        return self.global_step.velocity.clone() if self._choices.block_momentum else None

    def take_velocity(self, velocity: Tensor | None) -> None:
        """Restores the velocity of a saved run. Replicas start at its global model."""
        if velocity is not None and self._choices.block_momentum:
            self.global_step.velocity.copy_(velocity)

    def seen(self, replicas: Iterable[DenseReplica]) -> Tensor:
        """The weights that an evaluation uses: the centre, the global model, or the mean of these replicas."""
        members = list(replicas)
        if self._choices.exchange == "centre" or self._choices.block_momentum or not members:
            return self.values
        return mean_of([one.flat for one in members])
