from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from gearshift.errors import UserError
from gearshift.parameters.dense import DenseParameters


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


def test_moving_in_changes_no_output_and_the_module_sees_the_buffer() -> None:
    module, x = net(), torch.randn(4, 3)
    before = module(x)
    dense = DenseParameters(module)
    assert torch.equal(module(x), before)
    dense.flat.zero_()
    assert all((p == 0).all() for p in module.parameters())


def test_layout_is_aligned_and_covers_each_weight_once() -> None:
    dense = DenseParameters(net())
    assert dense.names == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    assert dense.count == 3 * 5 + 5 + 5 + 5 + 5 + 1
    assert all(offset % 16 == 0 for offset in dense.offsets) and len(dense) % 16 == 0
    marks = torch.zeros(len(dense))
    for view in dense.views(marks).values():
        view += 1
    assert marks.max() == 1 and marks.sum() == dense.count


def test_gradients_arrive_in_the_flat_buffer_and_gaps_stay_zero() -> None:
    module, x = net(), torch.randn(4, 3)
    twin = copy.deepcopy(module)
    dense = DenseParameters(module)
    for _ in range(2):  # the second time into buffers that were used
        dense.zero_grad()
        module(x).sum().backward()
    twin(x).sum().backward()
    wanted = {name: p.grad for name, p in twin.named_parameters()}
    for name, view in dense.views(dense.grad).items():
        assert torch.equal(view, wanted[name])
    for view in dense.views(dense.grad).values():
        view.zero_()
    assert not dense.grad.any()


def test_zero_grad_of_the_module_does_not_cut_the_views_for_good() -> None:
    module = net()
    dense = DenseParameters(module)
    module.zero_grad(set_to_none=True)
    dense.zero_grad()
    module(torch.randn(4, 3)).sum().backward()
    assert dense.views(dense.grad)["3.bias"].item() == 4.0


def test_a_shared_parameter_lies_there_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    module[2].weight = module[0].weight
    dense = DenseParameters(module)
    assert dense.names == ("0.weight",)
    dense.zero_grad()
    module(torch.ones(1, 4)).sum().backward()
    assert module[2].weight is module[0].weight and dense.grad.any()


def test_buffers_and_frozen_parameters_stand_apart() -> None:
    module = net()
    module[0].weight.requires_grad_(False)
    dense = DenseParameters(module)
    assert "0.weight" not in dense.names
    assert set(dense.fixed) == {"0.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_copy_from_makes_a_copy() -> None:
    server = DenseParameters(net())
    replica = copy.deepcopy(server.module)
    worker = DenseParameters(replica)
    assert worker.flat.data_ptr() != server.flat.data_ptr()
    server.flat.add_(1.0)
    assert not torch.equal(replica[0].weight, server.module[0].weight)
    worker.copy_from(server.flat)
    assert torch.equal(replica[0].weight, server.module[0].weight)


def test_state_goes_through_safetensors_and_back() -> None:
    dense = DenseParameters(net())
    dense.module(torch.randn(8, 3))  # moves the running statistics
    saved = save(dense.state())
    other = DenseParameters(net())
    for view in other.views(other.flat).values():
        view += 1
    other.load(load(saved))
    assert torch.equal(other.flat, dense.flat)
    assert torch.equal(other.module[1].running_var, dense.module[1].running_var)
    assert int(other.module[1].num_batches_tracked) == 1


def test_state_is_a_copy() -> None:
    dense = DenseParameters(net())
    state = dense.state()
    dense.flat.zero_()
    assert state["0.weight"].any()


def test_state_of_another_model_is_refused_and_nothing_changes() -> None:
    dense = DenseParameters(net())
    before = dense.flat.clone()
    good = {name: t + 1 for name, t in dense.state().items()}
    with pytest.raises(UserError, match=r"Sequential has `3\.bias`"):
        dense.load({n: t for n, t in good.items() if n != "3.bias"})
    with pytest.raises(UserError, match="it has `extra`"):
        dense.load(good | {"extra": torch.zeros(1)})
    with pytest.raises(UserError, match=r"`3\.bias` is \[2\] there and \[1\]"):
        dense.load(good | {"3.bias": torch.zeros(2)})
    assert torch.equal(dense.flat, before)


def test_other_types_and_lazy_parameters_are_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"`0.weight` of Sequential is float64; .* call .float\(\)"):
        DenseParameters(nn.Sequential(nn.Linear(2, 2).double()))
    with pytest.raises(UserError, match="has no size yet"):
        DenseParameters(nn.Sequential(nn.LazyLinear(2)))


def test_a_module_without_parameters() -> None:
    dense = DenseParameters(nn.Sequential(nn.ReLU()))
    dense.zero_grad()
    assert len(dense) == 0 and dense.state() == {}
