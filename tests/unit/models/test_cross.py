from __future__ import annotations

import pytest
import torch

from gearshift.data.schema import Categorical, Numeric, Schema
from gearshift.errors import UserError
from gearshift.models import DCN, DCNv2
from gearshift.models.cross import MatrixCross, VectorCross
from gearshift.models.inputs import join

from .feed import random_inputs

SCHEMA = Schema((Numeric("price"), Categorical("user"), Categorical("item", dim=2)))


def test_vector_cross_is_equation_3() -> None:
    cross, x0 = VectorCross(4, 3), torch.randn(6, 4)
    for bias in cross.biases:
        torch.nn.init.normal_(bias)
    for i in range(6):
        x = x0[i]
        for w, b in zip(cross.weights, cross.biases, strict=True):
            x = torch.outer(x0[i], x) @ w[:, 0] + b + x  # as the paper writes it: x0 x^T w + b + x
        torch.testing.assert_close(cross(x0)[i], x)


@pytest.mark.parametrize("rank", [None, 2])
def test_matrix_cross_is_equation_1_or_2(rank: int | None) -> None:
    cross, x0 = MatrixCross(4, 3, rank), torch.randn(6, 4)
    for i in range(6):
        x = x0[i]
        for layer in cross.layers:
            if rank is None:
                w, b = layer.weight, layer.bias
            else:
                w, b = layer[1].weight @ layer[0].weight, layer[1].bias
            torch.nn.init.normal_(b)
            x = x0[i] * (w @ x + b) + x
        torch.testing.assert_close(cross(x0)[i], x)
        cross = MatrixCross(4, 3, rank)


def test_dcn_joins_both_sides() -> None:
    model = DCN(SCHEMA, dim=4, hidden=[8], cross_layers=2)
    x = random_inputs(SCHEMA, model)
    x0 = torch.cat([x.numeric, x.fields["user"], x.fields["item"], torch.zeros(5, 9)], 1)
    want = torch.cat([model.cross(x0), model.deep(x0)], 1) @ model.top.weight[0] + model.top.bias
    torch.testing.assert_close(model(x), want)


def test_dcnv2_parallel_and_stacked() -> None:
    parallel = DCNv2(SCHEMA, dim=4, hidden=[8], cross_layers=2)
    stacked = DCNv2(SCHEMA, dim=4, hidden=[8], cross_layers=2, rank=3, structure="stacked")
    x = random_inputs(SCHEMA, parallel)
    x0 = join([x.flat()])
    both = torch.cat([parallel.cross(x0), parallel.deep(x0)], 1)
    torch.testing.assert_close(parallel(x), parallel.top(both)[:, 0])
    torch.testing.assert_close(stacked(x), stacked.top(stacked.deep(stacked.cross(x0)))[:, 0])


def test_an_unknown_structure_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean `stacked`"):
        DCNv2(SCHEMA, structure="stackd")
