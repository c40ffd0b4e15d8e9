"""DNN, and two models that add a shallow part: Wide & Deep and DeepFM."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gearshift.data.schema import Schema
from gearshift.models import checks
from gearshift.models.inputs import Inputs
from gearshift.models.layers import MLP, InputMLP, LinearTerm, PairwiseTerm, flat_width, logits
from gearshift.models.model import Model
from gearshift.models.settings import DeepSettings


class DNN(Model):
    """An MLP over concatenated numbers and rows: the deep part of Wide & Deep."""

    def __init__(
        self,
        schema: Schema,
        dim: int = DeepSettings.dim,
        hidden: Sequence[int] = DeepSettings.hidden,
        *,
        activation: str = DeepSettings.activation,
        batch_norm: bool = DeepSettings.batch_norm,
        dropout: float = DeepSettings.dropout,
    ) -> None:
        super().__init__()
        checks.some_feature("dnn", schema, dim)
        self.dim = dim
        mlp = MLP(
            flat_width(schema, dim),
            hidden,
            len(schema.labels),
            activation=activation,
            batch_norm=batch_norm,
            dropout=dropout,
        )
        self.mlp = InputMLP(schema, mlp)

    def forward(self, x: Inputs) -> Tensor:
        return logits(self.mlp(x))


class WideDeep(Model):
    """Linear term + DNN (Cheng et al. 2016, equation 3). Crossed columns must be features of the data."""

    linear = True

    def __init__(
        self,
        schema: Schema,
        dim: int = DeepSettings.dim,
        hidden: Sequence[int] = DeepSettings.hidden,
        *,
        activation: str = DeepSettings.activation,
        batch_norm: bool = DeepSettings.batch_norm,
        dropout: float = DeepSettings.dropout,
    ) -> None:
        super().__init__()
        checks.some_feature("wide_deep", schema, dim)
        self.dim = dim
        self.wide = LinearTerm(schema)
        mlp = MLP(
            flat_width(schema, dim),
            hidden,
            len(schema.labels),
            activation=activation,
            batch_norm=batch_norm,
            dropout=dropout,
        )
        self.deep = InputMLP(schema, mlp)

    def forward(self, x: Inputs) -> Tensor:
        return logits(self.wide(x) + self.deep(x))


class DeepFM(Model):
    """FM + DNN over the same rows (Guo et al. 2017, equation 1)."""

    linear = True

    def __init__(
        self,
        schema: Schema,
        dim: int = DeepSettings.dim,
        hidden: Sequence[int] = DeepSettings.hidden,
        *,
        activation: str = DeepSettings.activation,
        batch_norm: bool = DeepSettings.batch_norm,
        dropout: float = DeepSettings.dropout,
    ) -> None:
        super().__init__()
        checks.some_feature("deepfm", schema, dim)
        checks.one_width("deepfm", schema, dim)
        self.dim = dim
        self.first_order = LinearTerm(schema)
        self.second_order = PairwiseTerm(schema, dim)
        mlp = MLP(
            flat_width(schema, dim),
            hidden,
            len(schema.labels),
            activation=activation,
            batch_norm=batch_norm,
            dropout=dropout,
        )
        self.deep = InputMLP(schema, mlp)

    def forward(self, x: Inputs) -> Tensor:
        return logits(self.first_order(x) + self.second_order(x) + self.deep(x))
