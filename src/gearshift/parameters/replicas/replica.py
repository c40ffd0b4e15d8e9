"""One trainer's dense weights: updated by its workers without locks, copied and merged by its exchanges."""

from __future__ import annotations

import torch
from torch import Tensor

from gearshift.optim.first_order import DenseOptimizer, State
from gearshift.parameters.replicas.arithmetic import merge
from gearshift.parameters.replicas.figures import Counts
from gearshift.parameters.replicas.moments import FrozenAdam
from gearshift.sync.exchange import Choices, EverySteps


class DenseReplica:
    def __init__(
        self, flat: Tensor, state: State, rule: DenseOptimizer, choices: Choices, counts: Counts
    ) -> None:
        self.flat, self.state, self.rule, self.choices, self.counts = flat, state, rule, choices, counts
        self.steps = 0  # steps since the fork, or since its choices changed
        self.finished = False  # its workers have no work left
        self._exchanged_steps = 0  # steps made before its last exchange
        self.sent: Tensor | None = None  # the copy sent in the current exchange
        self._unfinished: float | None = None  # the rate scale of a step that the next merge completes

    def step(self, gradient: Tensor, *, lr_scale: float) -> None:
        """One local step. Several workers may call it at once; `FrozenAdam` then makes no half steps."""
        self.finish_step()
        self.steps += 1
        self.counts.stepped(self.sent is not None)
        if isinstance(self.rule, FrozenAdam) and self._merge_follows():
            self.rule.gather(self.flat, gradient, self.state)
            self._unfinished = lr_scale
        else:
            self.rule.step(self.flat, gradient, self.state, lr_scale=lr_scale)

    def finish_step(self) -> None:
        """Complete a step that was waiting for a merge."""
        if self._unfinished is not None:
            assert isinstance(self.rule, FrozenAdam)
            scale, self._unfinished = self._unfinished, None
            self.rule.finish(self.flat, self.state, lr_scale=scale)

    @property
    def unexchanged(self) -> int:
        """The number of steps since its last exchange."""
        return self.steps - self._exchanged_steps

    @property
    def weight(self) -> float:
        """The weight in an exchange. 0 if the replica is finished and has no new updates."""
        return 0.0 if self.finished and not self.unexchanged else 1.0

    @torch.no_grad()
    def send(self) -> Tensor:
        """Copy the live weights. The exchange is in flight from here to `receive`."""
        self.sent = self.flat.clone()
        return self.sent

    def receive(self, target: Tensor, moved: float) -> None:
        """Merge with the answer; `moved` is the number of bytes transferred."""
        assert self.sent is not None
        sent, self.sent = self.sent, None
        self.take(sent, target, moved)

    def take(self, sent: Tensor, target: Tensor, moved: float, *, counts: bool = True) -> None:
        merge(self.flat, sent, target, self.choices)
        self.counts.exchanged(moved, counts=counts and self.weight > 0)
        self._exchanged_steps = self.steps

    def _merge_follows(self) -> bool:
        trigger = self.choices.trigger
        alone = self.choices.workers_per_replica == 1
        return alone and isinstance(trigger, EverySteps) and trigger.ends_at(self.steps)
