from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gearshift.data.schema import Bag, Bucketized, Categorical, Numeric, Schema, Sequence, Vector
from gearshift.errors import UserError
from gearshift.models import Fields, Inputs, Needs, SequenceRows, input_fields, pad_rows, pool_rows, row_width
from gearshift.models.inputs import aligned, join

NAMES = ("user", "item", "os")


def both_ways() -> list[Fields]:
    rows = torch.randn(4, 3, 2)
    return [Fields(NAMES, rows), Fields(NAMES, list(rows.unbind(1)))]


def test_fields_behave_like_a_tensor_either_way() -> None:
    for fields in both_ways():
        rows = fields.tensor
        assert fields.shape == (4, 3, 2) and len(fields) == 4 and fields.size(1) == 3
        assert torch.equal(fields["item"], rows[:, 1]) and torch.equal(fields[:, 0], rows[:, 0])
        assert torch.equal(fields.flatten(1), rows.reshape(4, 6)) and torch.equal(fields.sum(1), rows.sum(1))
        assert torch.equal(fields.flatten(), rows.flatten())
        assert torch.equal(fields + 1, rows + 1) and torch.equal(1 + fields, rows + 1)
        assert torch.equal(2 * fields, rows * 2) and torch.equal(fields * fields, rows * rows)
        assert torch.equal(rows * fields, rows * rows) and torch.equal(fields - 1, rows - 1)
        assert torch.equal(fields / 2, rows / 2)
        assert torch.equal(fields @ torch.ones(2, 1), rows @ torch.ones(2, 1))


def test_fields_inside_torch_functions() -> None:
    for fields in both_ways():
        rows = fields.tensor
        assert torch.equal(torch.cat([fields, rows], 1), torch.cat([rows, rows], 1))
        assert torch.equal(torch.sum(input=fields, dim=1), rows.sum(1))
        layer = nn.Linear(2, 5)
        assert torch.equal(layer(fields), layer(rows))


def test_one_tensor_is_not_copied() -> None:
    rows = torch.randn(4, 3, 2)
    fields = Fields(NAMES, rows)
    assert fields.tensor is rows and fields.flatten(1).data_ptr() == rows.data_ptr()
    assert fields["user"].data_ptr() == rows.data_ptr()


def test_fields_of_different_width() -> None:
    fields = Fields(("user", "os"), [torch.ones(4, 3), torch.zeros(4, 1)])
    assert fields.flatten(1).shape == (4, 4) and fields["os"].shape == (4, 1) and len(fields) == 4
    with pytest.raises(UserError, match=r"different width .*'user': 3, 'os': 1.*flatten\(1\)"):
        _ = fields.tensor


def test_names_are_checked() -> None:
    with pytest.raises(UserError, match=r"no field `country`.* user, item, os"):
        both_ways()[0]["country"]
    with pytest.raises(AssertionError, match="3 names for 2 fields"):
        Fields(NAMES, torch.zeros(1, 2, 2))
    with pytest.raises(UserError, match=r"x.fields is empty"):
        _ = Fields((), []).tensor


def test_flat_is_numbers_then_rows() -> None:
    numeric, rows = torch.randn(4, 2), torch.randn(4, 3, 2)
    joined = torch.cat([numeric, rows.flatten(1)], 1)
    for fields in (Fields(NAMES, rows), Fields(NAMES, list(rows.unbind(1)))):
        assert torch.equal(Inputs(numeric, fields).flat(), joined)
    assert Inputs(torch.empty(4, 0), Fields(NAMES, rows)).flat().data_ptr() == rows.data_ptr()
    assert Inputs(numeric, Fields((), torch.empty(4, 0, 2))).flat() is numeric
    assert Inputs(numeric, Fields((), [])).flat() is numeric


def test_needs_are_read_from_attributes() -> None:
    class Mine(nn.Module):
        dim = 8
        sequences = True

    assert Needs.of(nn.Linear(1, 1)) == Needs(16, True, False, False)
    assert Needs.of(Mine()) == Needs(8, True, False, True)


def test_which_fields_arrive_and_how_wide() -> None:
    item, recent = Categorical("item", dim=8), Sequence("recent", share_embedding="item")
    schema = Schema((Numeric("a"), Bucketized("age"), item, Bag("tags", dim=4), recent, Vector("v", 3)))
    assert [f.name for f in input_fields(schema)] == ["age", "item", "tags", "recent"]
    assert [f.name for f in input_fields(schema, sequences=True)] == ["age", "item", "tags"]
    assert [row_width(schema, f, 16) for f in schema.fields] == [16, 8, 4, 8]


def test_join_fills_up_with_zeros() -> None:
    a, b = torch.randn(3, 5), torch.randn(3, 12)
    got = join([a, b])
    assert got.shape == (3, 32) and torch.equal(got[:, :17], torch.cat([a, b], 1)) and not got[:, 17:].any()
    assert [aligned(n) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]


RAGGED = st.lists(st.integers(0, 6), max_size=8)


def ragged(lengths: list[int]) -> tuple[Tensor, Tensor]:
    rows = torch.randn(sum(lengths), 3, dtype=torch.float64, requires_grad=True)
    return rows, torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()] if lengths else [0])


@settings(deadline=None)
@given(RAGGED, st.sampled_from(["mean", "sum"]))
def test_pool_rows_against_a_loop(lengths: list[int], mode: str) -> None:
    rows, offsets = ragged(lengths)
    got = pool_rows(rows, offsets, mode)
    assert got.shape == (len(lengths), 3)
    for i, own in enumerate(rows.split(lengths) if lengths else []):
        want = own.sum(0) / (max(1, len(own)) if mode == "mean" else 1)
        torch.testing.assert_close(got[i], want)


@settings(max_examples=10, deadline=None)
@given(RAGGED, st.sampled_from(["mean", "sum"]))
def test_pool_rows_gradient(lengths: list[int], mode: str) -> None:
    rows, offsets = ragged([*lengths, 2])
    assert torch.autograd.gradcheck(lambda r: pool_rows(r, offsets, mode), (rows,), fast_mode=True)


@settings(deadline=None)
@given(RAGGED, st.integers(1, 7))
def test_pad_rows_against_a_loop(lengths: list[int], max_len: int) -> None:
    rows, offsets = ragged(lengths)
    got = pad_rows(rows, offsets, max_len)
    length = max(1, min(max_len, max(lengths, default=0)))
    assert got.rows.shape == (len(lengths), length, 3) and got.mask.shape == (len(lengths), length)
    for i, own in enumerate(rows.split(lengths) if lengths else []):
        kept = min(max_len, len(own))
        assert torch.equal(got.rows[i, :kept], own[:kept]) and not got.rows[i, kept:].any()
        assert got.mask[i].tolist() == [True] * kept + [False] * (length - kept)


@settings(max_examples=10, deadline=None)
@given(RAGGED, st.integers(1, 7))
def test_pad_rows_gradient(lengths: list[int], max_len: int) -> None:
    rows, offsets = ragged([*lengths, 2])
    assert torch.autograd.gradcheck(lambda r: pad_rows(r, offsets, max_len).rows, (rows,), fast_mode=True)


@settings(deadline=None)
@given(RAGGED.filter(lambda lengths: len(lengths) > 0))
def test_mean_of_padded_is_the_pooled_mean(lengths: list[int]) -> None:
    rows, offsets = ragged(lengths)
    torch.testing.assert_close(pad_rows(rows, offsets, 9).mean(), pool_rows(rows, offsets, "mean"))


def test_own_module_as_documented() -> None:
    class MyNet(nn.Module):
        sequences = True

        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(2 + 3 * 4 + 4, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, x: Inputs) -> Tensor:
            recent = x.sequences["recent_items"]
            last = (recent.rows * recent.mask.unsqueeze(2)).sum(1)
            assert x.fields["item"].shape == (5, 4)
            return self.mlp(torch.cat([x.numeric, x.fields.flatten(1), last], 1)).squeeze(1)

    rows = torch.randn(5, 3, 4, requires_grad=True)
    recent = SequenceRows(torch.randn(5, 6, 4, requires_grad=True), torch.ones(5, 6, dtype=torch.bool))
    out = MyNet()(Inputs(torch.randn(5, 2), Fields(NAMES, rows), {"recent_items": recent}))
    out.sum().backward()
    assert out.shape == (5,) and rows.grad is not None and recent.rows.grad is not None
