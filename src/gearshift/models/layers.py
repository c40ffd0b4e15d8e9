"""Layers shared by several models: multilayer perceptron, linear term, pairwise products.

These are plain modules over plain tensors. Initial weights come from torch's generator (`torch.manual_seed`, or the
`seed` of `models.build`): He for layers before a rectifier, Xavier for others, zero biases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gearshift.data.schema import Schema
from gearshift.errors import UserError, unknown_name
from gearshift.models.inputs import Inputs, input_fields, row_width


class Dice(nn.Module):
    """p(s) s + (1 - p(s)) a s with p = sigmoid of the normalized s (DIN, Zhou et al. 2018, equation 9)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = BatchNorm(width, eps=1e-8, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x))
        return x * (p + self.alpha * (1 - p))


# relu in place saves an allocation: no layer before it needs its output in the backward pass.
ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda width: nn.ReLU(inplace=True),
    "prelu": lambda width: nn.PReLU(width),
    "dice": Dice,
    "gelu": lambda width: nn.GELU(),
    "silu": lambda width: nn.SiLU(),
    "sigmoid": lambda width: nn.Sigmoid(),
    "tanh": lambda width: nn.Tanh(),
}
RECTIFIERS = ("relu", "prelu", "dice", "gelu", "silu")


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization that uses running statistics for a batch of fewer than two examples, such as the last one."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) < 2:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class Dropout(nn.Module):
    """Dropout that can be seeded (`seed_dropout`), so that threads do not share a random stream."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.seed: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if self.seed is None:
            return F.dropout(x, self.p)
        generator = torch.Generator(x.device).manual_seed(self.seed)
        keep = torch.empty_like(x).bernoulli_(1 - self.p, generator=generator)
        return x * keep.div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def seed_dropout(module: nn.Module, seed: int) -> None:
    """Seed the dropout of the next forward pass: the same seed gives the same zeros, regardless of other threads."""
    layers = [m for m in module.modules() if isinstance(m, Dropout)]
    for number, layer in enumerate(layers):
        layer.seed = (seed * len(layers) + number) % 2**63


class MLP(nn.Sequential):
    """Linear, normalization, activation, dropout for each hidden width; then a linear layer if `outputs`."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int = 0,
        *,
        activation: str = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        _check_options(hidden, activation, dropout)
        layers: list[nn.Module] = []
        for width in hidden:
            layers.append(hidden_linear(inputs, width, activation))
            layers += [BatchNorm(width)] if batch_norm else []
            layers.append(ACTIVATIONS[activation](width))
            layers += [Dropout(dropout)] if dropout else []
            inputs = width
        if outputs:
            layers.append(output_linear(inputs, outputs))
        super().__init__(*layers)
        self.width = outputs or inputs


def _check_options(hidden: Sequence[int], activation: str, dropout: float) -> None:
    if activation not in ACTIVATIONS:
        raise unknown_name("activation", activation, ACTIVATIONS)
    if isinstance(hidden, str) or not all(isinstance(width, int) and width > 0 for width in hidden):
        raise UserError(f"hidden layers are a list of widths such as [400, 400], not {hidden!r}")
    if not 0.0 <= dropout < 1.0:
        raise UserError(f"dropout is the share of values set to zero, at least 0 and below 1, not {dropout}")


def hidden_linear(inputs: int, outputs: int, activation: str = "relu") -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    if activation in RECTIFIERS:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def output_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class InputLinear(nn.Module):
    """A linear layer over `Inputs.flat()` with separate weights for numbers and rows.

    This avoids joining the two, computing the unused gradient of the numbers, and copying the rows' gradient.
    """

    def __init__(self, whole: nn.Linear, numbers: int) -> None:
        super().__init__()
        weight = whole.weight.detach()
        self.numeric = nn.Parameter(weight[:, :numbers].clone()) if numbers else None
        self.rows = nn.Parameter(weight[:, numbers:].clone()) if numbers < whole.in_features else None
        self.bias = whole.bias

    def forward(self, x: Inputs) -> Tensor:
        if self.rows is None:
            assert self.numeric is not None
            return F.linear(x.numeric, self.numeric, self.bias)
        out = F.linear(x.fields.flatten(1), self.rows, self.bias)
        return out if self.numeric is None else out.addmm_(x.numeric, self.numeric.t())


class InputMLP(nn.Module):
    """An MLP over `Inputs.flat()` whose first layer is an `InputLinear`."""

    def __init__(self, schema: Schema, mlp: MLP) -> None:
        super().__init__()
        first = mlp[0]
        assert isinstance(first, nn.Linear)
        self.first = InputLinear(first, schema.numeric_width)
        self.rest = nn.Sequential(*list(mlp)[1:])

    def forward(self, x: Inputs) -> Tensor:
        scores: Tensor = self.rest(self.first(x))
        return scores


def flat_width(schema: Schema, dim: int, *, sequences: bool = False) -> int:
    """The width of `Inputs.flat()`."""
    rows = sum(row_width(schema, f, dim) for f in input_fields(schema, sequences=sequences))
    return schema.numeric_width + rows


def logits(scores_BT: Tensor) -> Tensor:
    """[B] for one task, [B, T] for several."""
    return scores_BT.squeeze(1) if scores_BT.shape[1] == 1 else scores_BT


class TaskSum(nn.Module):
    """[B, K] -> [B, T]: the plain sum for one task. For several tasks, each has learned weights, initially 1."""

    def __init__(self, width: int, tasks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, tasks)) if tasks > 1 else None

    def forward(self, x_BK: Tensor) -> Tensor:
        return x_BK.sum(1, keepdim=True) if self.weight is None else x_BK @ self.weight


class LinearTerm(nn.Module):
    """[B, T]: bias + weighted numbers + width-1 row parts of the fields. LR, and the first order of FM."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        tasks = len(schema.labels)
        self.numeric = nn.Linear(schema.numeric_width, tasks) if schema.numeric_width else None
        if self.numeric:  # zero, like the rows' linear parts; random values would first have to be unlearned
            nn.init.zeros_(self.numeric.weight)
            nn.init.zeros_(self.numeric.bias)
        self.bias = None if self.numeric else nn.Parameter(torch.zeros(tasks))
        self.fields = TaskSum(len(schema.fields), tasks) if schema.fields else None

    def forward(self, x: Inputs) -> Tensor:
        scores_BT = self.numeric(x.numeric) if self.numeric else self.bias
        if self.fields:
            assert x.linear is not None, (
                "the model requires the linear part (linear = True), but the inputs have none"
            )
            scores_BT = self.fields(x.linear) + scores_BT
        assert isinstance(scores_BT, Tensor)
        return scores_BT


class PairwiseTerm(nn.Module):
    """[B, T]: sum over pairs of <v_i, v_j> x_i x_j, numbers included (Rendle 2010, equation 1).

    In O(F D) by 1/2 sum_d ((sum_i v_id x_i)^2 - sum_i (v_id x_i)^2) (Rendle 2010, lemma 3.1).
    """

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        self.numeric = nn.Parameter(torch.empty(schema.numeric_width, dim)) if schema.numeric_width else None
        if self.numeric is not None:
            nn.init.normal_(self.numeric, std=0.01)
        self.has_fields = bool(schema.fields)
        self.total = TaskSum(dim, len(schema.labels))

    def forward(self, x: Inputs) -> Tensor:
        sums_BD, squares_BD = self._of_fields(x) if self.has_fields else self._of_numbers(x)
        if self.has_fields and self.numeric is not None:
            more_sums_BD, more_squares_BD = self._of_numbers(x)
            sums_BD, squares_BD = sums_BD + more_sums_BD, squares_BD + more_squares_BD
        scores_BT: Tensor = self.total((sums_BD.square() - squares_BD) * 0.5)
        return scores_BT

    def _of_fields(self, x: Inputs) -> tuple[Tensor, Tensor]:
        rows_BFD = x.fields.tensor
        return rows_BFD.sum(1), rows_BFD.square().sum(1)

    def _of_numbers(self, x: Inputs) -> tuple[Tensor, Tensor]:
        assert self.numeric is not None
        return x.numeric @ self.numeric, x.numeric.square() @ self.numeric.square()
