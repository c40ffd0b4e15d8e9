"""DCN and DCN-V2: layers that multiply the input x0 with a projection of what came so far, and an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from gearshift.data.schema import Schema
from gearshift.errors import unknown_name
from gearshift.models import checks
from gearshift.models.inputs import Inputs, aligned, join
from gearshift.models.layers import MLP, flat_width, logits, output_linear
from gearshift.models.model import Model


class VectorCross(nn.Module):
    """x_{l+1} = x0 (x_l . w) + b + x_l (Wang et al. 2017, equation 3)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(width, 1)) for _ in range(layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(layers))
        for weight in self.weights:
            nn.init.xavier_uniform_(weight)

    def forward(self, x0_BW: Tensor) -> Tensor:
        x_BW = x0_BW
        for weight_W1, bias_W in zip(self.weights, self.biases, strict=True):
            x_BW = torch.addcmul(x_BW + bias_W, x0_BW, x_BW @ weight_W1)
        return x_BW


class MatrixCross(nn.Module):
    """x_{l+1} = x0 * (W x_l + b) + x_l (Wang et al. 2021, equation 1); with a `rank`, W = U V^T (eq. 2)."""

    def __init__(self, width: int, layers: int, rank: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self._projection(width, rank) for _ in range(layers))

    @staticmethod
    def _projection(width: int, rank: int | None) -> nn.Module:
        if rank is None:
            return output_linear(width, width)
        down = nn.Linear(width, rank, bias=False)
        nn.init.xavier_uniform_(down.weight)
        return nn.Sequential(down, output_linear(rank, width))

    def forward(self, x0_BW: Tensor) -> Tensor:
        x_BW = x0_BW
        for projection in self.layers:
            x_BW = torch.addcmul(x_BW, x0_BW, projection(x_BW))
        return x_BW


class DCN(Model):
    """Deep & Cross Network (Wang et al. 2017): vector crosses beside an MLP, a linear layer on top."""

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        *,
        cross_layers: int = 3,
        activation: str = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        checks.some_feature("dcn", schema, dim)
        self.dim = dim
        width = aligned(flat_width(schema, dim))
        self.cross = VectorCross(width, cross_layers)
        self.deep = MLP(width, hidden, activation=activation, batch_norm=batch_norm, dropout=dropout)
        self.top = output_linear(width + self.deep.width, len(schema.labels))

    def forward(self, x: Inputs) -> Tensor:
        x0_BW = join([x.numeric, *x.fields.flat_parts()])
        return logits(self.top(torch.cat([self.cross(x0_BW), self.deep(x0_BW)], 1)))  # equation 4


class DCNv2(Model):
    """DCN-V2 (Wang et al. 2021): matrix crosses, the MLP beside them (`parallel`) or on top (`stacked`)."""

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400),
        *,
        cross_layers: int = 3,
        rank: int | None = None,
        structure: Literal["parallel", "stacked"] = "parallel",
        activation: str = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        checks.some_feature("dcnv2", schema, dim)
        if structure not in ("parallel", "stacked"):
            raise unknown_name("structure of dcnv2:", structure, ("parallel", "stacked"))
        self.dim = dim
        self.parallel = structure == "parallel"
        width = aligned(flat_width(schema, dim))
        self.cross = MatrixCross(width, cross_layers, rank)
        self.deep = MLP(width, hidden, activation=activation, batch_norm=batch_norm, dropout=dropout)
        self.top = output_linear(self.deep.width + (width if self.parallel else 0), len(schema.labels))

    def forward(self, x: Inputs) -> Tensor:
        x0_BW = join([x.numeric, *x.fields.flat_parts()])
        crossed_BW = self.cross(x0_BW)
        if self.parallel:
            return logits(self.top(torch.cat([crossed_BW, self.deep(x0_BW)], 1)))
        return logits(self.top(self.deep(crossed_BW)))
