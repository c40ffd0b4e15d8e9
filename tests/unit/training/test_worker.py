"""Worker, server and learner: one step equals the oracle's; parts, widths, bags and sequences fall in their places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import WARM, Oracle, Rule
from torch import nn

import gearshift.models as models
from examples import PLAIN, RAGGED, Steep, make_batch
from gearshift.data.batch import Batch
from gearshift.embedding.store import RowAdagrad, RowSGD
from gearshift.models.inputs import Inputs
from gearshift.optim.first_order import SGD
from gearshift.parameters.server import RowSettings
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker


def make_learner(model: nn.Module, schema=PLAIN, rows=None, **more) -> Learner:
    return Learner(
        Worker(model, schema), rows=RowSettings(rows or RowSGD(lr=0.5)), optimizer=SGD(lr=0.1), **more
    )


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
@pytest.mark.parametrize("name", ["lr", "fm", "dnn", "deepfm", "dlrm"])
def test_steps_equal_the_oracle(name: str, rule: str) -> None:
    torch.manual_seed(3)
    model = models.build(name, PLAIN, **({} if name == "lr" else {"dim": 4}))
    rows = RowSGD(lr=0.5) if rule == "sgd" else RowAdagrad(lr=0.05, initial=WARM)
    learner = make_learner(model, rows=rows)
    store = learner.server.stores[0]
    oracle = Oracle.from_learner(learner, Rule("sgd", 0.1), Rule(rule, rows.lr))
    for step in range(5):
        batch = make_batch(PLAIN, 64, first=64 * step)
        expected = oracle.step(batch)
        push = learner.step(learner.find(batch))
        assert push.loss / push.examples == pytest.approx(expected, rel=1e-5)
    ids = np.array(sorted(oracle.rows), np.int64)
    expected_rows = torch.stack([oracle.rows[i] for i in ids.tolist()]).numpy()
    np.testing.assert_allclose(store.pull(ids), expected_rows, rtol=2e-4, atol=2e-6)
    for mine, theirs in zip(model.parameters(), oracle.model.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-6)


def test_a_batch_cut_in_two_pushes_sums_to_the_whole() -> None:
    torch.manual_seed(0)
    learner = make_learner(models.DNN(PLAIN, dim=4, hidden=[8]))
    batch = make_batch(PLAIN, 40)

    def sums(part: Batch) -> tuple[np.ndarray, dict[int, np.ndarray], float]:
        found = learner.find(part)
        push = learner.worker.compute(found, learner.server.pull(found, learner.worker.buffers))
        by_id = dict(zip(push.rows[0].ids_U.tolist(), push.rows[0].sums_UW.copy(), strict=True))
        return push.dense.numpy().copy(), by_id, push.loss

    whole, left, right = sums(batch), sums(batch.slice(0, 15)), sums(batch.slice(15, 40))
    np.testing.assert_allclose(left[0] + right[0], whole[0], rtol=1e-4, atol=1e-5)
    assert left[2] + right[2] == pytest.approx(whole[2], rel=1e-5)
    for i, total in whole[1].items():
        np.testing.assert_allclose(left[1].get(i, 0) + right[1].get(i, 0), total, rtol=1e-4, atol=1e-5)


class Probe(nn.Module):
    """A user's own module that remembers what it saw."""

    dim, linear, sequences = 8, True, True

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Inputs) -> torch.Tensor:
        self.seen = x
        return (
            self.bias + x.fields.flatten(1).sum(1) + x.linear.sum(1) + x.sequences["history"].rows.sum((1, 2))
        )


def test_fields_of_every_kind_reach_the_module_under_their_names() -> None:
    learner = make_learner(Probe(), RAGGED)
    batch = make_batch(RAGGED, 6)
    learner.predict(learner.find(batch))
    x = learner.model.seen
    wide, narrow = learner.server.stores
    assert x.fields.names == ("item", "tags", "country") and x.linear.shape == (6, 4)
    np.testing.assert_array_equal(
        x.fields["item"],
        wide.peek(batch.ids_BF[:, 0].copy())[:, :8]
        if len(set(batch.ids_BF[:, 0])) == 6
        else [wide.peek(batch.ids_BF[i : i + 1, 0].copy())[0, :8] for i in range(6)],
    )
    for i in range(6):
        np.testing.assert_array_equal(
            x.fields["country"][i], narrow.peek(batch.ids_BF[i : i + 1, 1].copy())[0, :4]
        )
        tags = batch.ragged[0].slice(i, i + 1).ids
        rows = [wide.peek(t[None].copy())[0, :8] for t in tags]
        np.testing.assert_allclose(x.fields["tags"][i], np.mean(rows, 0) if rows else np.zeros(8), rtol=1e-6)
        history = batch.ragged[1].slice(i, i + 1).ids
        assert x.sequences["history"].mask[i].sum() == len(history)
        for at, item in enumerate(history):
            np.testing.assert_array_equal(
                x.sequences["history"].rows[i, at], wide.peek(item[None].copy())[0, :8]
            )


def test_every_kind_of_field_learns() -> None:
    learner = make_learner(Probe(), RAGGED)
    batch = make_batch(RAGGED, 16)
    found = learner.find(batch)
    before = [store.pull(ids) for store, ids in zip(learner.server.stores, found.ids, strict=True)]
    learner.step(found)
    for store, ids, old in zip(learner.server.stores, found.ids, before, strict=True):
        assert (store.pull(ids) != old).any(axis=1).all()


def test_weights_count_as_copies_of_examples() -> None:
    torch.manual_seed(0)
    batch = make_batch(PLAIN, 10)
    weights = np.arange(10, dtype=np.float32) % 3
    repeated = batch.take(np.repeat(np.arange(10), weights.astype(int)))
    weighted = Batch(0, batch.labels_BT, batch.numeric_BN, batch.ids_BF, (), weights)
    learner = make_learner(models.DNN(PLAIN, dim=4, hidden=[8]))

    def push(b: Batch):
        found = learner.find(b)
        result = learner.worker.compute(found, learner.server.pull(found, learner.worker.buffers))
        return result.dense.numpy().copy(), result.examples, result.loss

    a, b = push(repeated), push(weighted)
    np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-6)
    assert a[1] == b[1] and a[2] == pytest.approx(b[2], rel=1e-5)


def test_predicting_creates_no_row_and_moves_nothing() -> None:
    learner = make_learner(models.DeepFM(PLAIN, dim=4))
    flat = learner.server.flat.clone()
    learner.predict(learner.find(make_batch(PLAIN, 20)))
    assert learner.rows == 0 and torch.equal(flat, learner.server.flat)


@pytest.mark.parametrize("predicted_before", [True, False])
def test_every_part_of_a_model_trains_whether_it_predicted_before_or_not(predicted_before: bool) -> None:
    model = models.DNN(PLAIN, dim=4, hidden=[8], dropout=0.5)
    model.eval()
    model.training = True  # as after a user's model.deep.eval()
    learner = make_learner(model)
    found = learner.find(make_batch(PLAIN, 64))
    if predicted_before:
        learner.predict(found)
    learner.step(found)
    assert all(part.training for part in model.modules())


def test_non_finite_input_is_refused_before_anything_moves() -> None:
    learner = make_learner(models.DNN(PLAIN, dim=4, hidden=[8]))
    batch = make_batch(PLAIN, 20)
    learner.step(learner.find(batch))
    flat, rows = learner.server.flat.clone(), [b.weights_UW.copy() for b in learner.server.stores[0].blocks()]
    batch.numeric_BN[3, 0] = np.nan
    with pytest.raises(FloatingPointError, match="loss became NaN"):
        learner.step(learner.find(batch))
    assert torch.equal(flat, learner.server.flat) and learner.server.step == 1
    for old, new in zip(rows, learner.server.stores[0].blocks(), strict=True):
        np.testing.assert_array_equal(old, new.weights_UW)


def test_a_gradient_of_a_row_too_large_to_square_is_refused_before_anything_moves() -> None:
    learner = make_learner(Steep(1e25))
    flat = learner.server.flat.clone()
    with pytest.raises(FloatingPointError, match=r"embedding gradient became .*too large to square"):
        learner.step(learner.find(make_batch(PLAIN, 20)))
    assert learner.server.step == 0 and torch.equal(flat, learner.server.flat)


def test_an_infinite_gradient_of_a_row_is_refused_though_the_loss_is_finite() -> None:
    class Vertical(nn.Module):
        dim = 4

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, x: Inputs) -> torch.Tensor:
            zeros = (x.fields.tensor - x.fields.tensor.detach()).sum((1, 2))
            return zeros.sqrt() + self.bias  # 0, and its slope is infinite

    learner = make_learner(Vertical())
    with pytest.raises(FloatingPointError, match="embedding gradient became infinite, NaN or"):
        learner.step(learner.find(make_batch(PLAIN, 20)))
    assert learner.server.step == 0


def test_a_module_with_wrong_output_shape_is_told_so() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, x: Inputs) -> torch.Tensor:
            return self.bias + x.numeric.sum(1, keepdim=True).unsqueeze(2)

    learner = make_learner(Wrong())
    with pytest.raises(ValueError, match=r"Wrong.forward returned \[5, 1, 1\] logits for a batch of 5"):
        learner.step(learner.find(make_batch(PLAIN, 5)))
