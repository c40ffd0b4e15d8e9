from __future__ import annotations

import pytest
import torch

from gearshift.data.schema import Categorical, Numeric, Schema
from gearshift.models import DLRM
from gearshift.models.dlrm import PairProducts
from gearshift.models.inputs import join

from .feed import random_inputs


@pytest.mark.parametrize("first", [0, 3])
def test_pair_products_against_a_loop(first: int) -> None:
    rows = torch.randn(4, 5, 3)
    got = PairProducts(5, first)(rows)
    for b in range(4):
        pairs = [torch.dot(rows[b, i], rows[b, j]) for i in range(5) for j in range(i)]
        torch.testing.assert_close(got[b, : first + 10], torch.cat([rows[b, 0, :first], torch.stack(pairs)]))
    assert got.shape == (4, 16) and not got[:, first + 10 :].any()


@pytest.mark.parametrize("first", [0, 3])
def test_pair_products_gradient(first: int) -> None:
    rows = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(PairProducts(4, first), (rows,))


def test_dlrm_against_its_formula() -> None:
    schema = Schema((Numeric("a"), Categorical("user"), Numeric("b"), Categorical("item")))
    model = DLRM(schema, dim=3, bottom=[5], hidden=[7])
    x = random_inputs(schema, model)
    z = model.bottom(x.numeric)
    u, v = x.fields["user"], x.fields["item"]
    pairs = [(z * u).sum(1), (z * v).sum(1), (u * v).sum(1)]
    want = model.top(join([z, torch.stack(pairs, 1)]))
    torch.testing.assert_close(model(x), want[:, 0])
    assert z.shape == (5, 3) and (z >= 0).all()


def test_without_numbers_the_products_are_all() -> None:
    schema = Schema((Categorical("user"), Categorical("item"), Categorical("os")))
    model = DLRM(schema, dim=3, hidden=[7])
    x = random_inputs(schema, model)
    rows = x.fields.tensor
    pairs = torch.stack(
        [(rows[:, 1] * rows[:, 0]).sum(1), *((rows[:, 2] * rows[:, j]).sum(1) for j in (0, 1))], 1
    )
    assert model.bottom is None
    torch.testing.assert_close(model(x), model.top(join([pairs]))[:, 0])


def test_the_index_tables_are_not_part_of_the_saved_state() -> None:
    model = DLRM(Schema((Numeric("a"), Categorical("user"))), dim=3)
    assert not [name for name in model.state_dict() if "lower" in name or "mirror" in name]
