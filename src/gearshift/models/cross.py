"""DCN and DCN-V2: layers that multiply the input x0 by a projection of the previous output, and an MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gearshift.data.schema import Schema
from gearshift.errors import unknown_name
from gearshift.models import checks
from gearshift.models.inputs import Inputs, aligned, join
from gearshift.models.layers import MLP, flat_width, logits, output_linear
from gearshift.models.model import Model
from gearshift.models.settings import CrossSettings, MatrixCrossSettings, Structure


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
    """Deep & Cross Network (Wang et al. 2017): vector crosses and an MLP in parallel, with a linear output layer."""

    def __init__(
        self,
        schema: Schema,
        dim: int = CrossSettings.dim,
        hidden: Sequence[int] = CrossSettings.hidden,
        *,
        cross_layers: int = CrossSettings.cross_layers,
        activation: str = CrossSettings.activation,
        batch_norm: bool = CrossSettings.batch_norm,
        dropout: float = CrossSettings.dropout,
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
    """DCN-V2 (Wang et al. 2021): matrix crosses with an MLP in parallel (`parallel`) or after them (`stacked`)."""

    def __init__(
        self,
        schema: Schema,
        dim: int = MatrixCrossSettings.dim,
        hidden: Sequence[int] = MatrixCrossSettings.hidden,
        *,
        cross_layers: int = MatrixCrossSettings.cross_layers,
        rank: int | None = None,
        structure: Structure = MatrixCrossSettings.structure,
        activation: str = MatrixCrossSettings.activation,
        batch_norm: bool = MatrixCrossSettings.batch_norm,
        dropout: float = MatrixCrossSettings.dropout,
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
