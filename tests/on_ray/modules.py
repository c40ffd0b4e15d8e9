"""Models of one's own that the processes of a cluster can import."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import nn

import gearshift as gs
from gearshift.models.layers import BatchNorm, Dropout


class Normed(nn.Module):
    """With running statistics and dropout: what differs between processes if they are not told."""

    dim = 4

    def __init__(self, schema: gs.Schema) -> None:
        super().__init__()
        width = sum(schema.row_width(f, self.dim) for f in schema.fields) + schema.numeric_width
        self.net = nn.Sequential(
            nn.Linear(width, 16), BatchNorm(16), nn.ReLU(), Dropout(0.2), nn.Linear(16, 1)
        )

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        return self.net(torch.cat([x.numeric, x.fields.flatten(1)], 1)).squeeze(1)


class Slow(Normed):
    """A step takes its time: whoever watches can ask something of a live run."""

    pause = 0.05  # seconds

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        if self.training:
            time.sleep(self.pause)
        return super().forward(x)


class Smooth(Slow):
    """No gradient of it is rounding alone, as that of a bias before a norm. So slow that all workers come in time."""

    pause = 0.4

    def __init__(self, schema: gs.Schema) -> None:
        super().__init__(schema)
        first, *_ = self.net
        self.net = nn.Sequential(first, nn.Tanh(), nn.Linear(16, 1))


class Broken(Normed):
    def forward(self, x: gs.Inputs) -> torch.Tensor:
        raise ArithmeticError("no two of these numbers go together")


class Killed(Normed):
    """As by a kernel without memory: no word, no error."""

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
