"""The row store as a module: `backward` updates rows, `eval` creates none, and the state is saved."""

from __future__ import annotations

import numpy as np
import torch

import gearshift as gs
from examples import PLAIN, RAGGED, make_batch


def loss_of(emb: gs.Embeddings, batch: gs.Batch) -> torch.Tensor:
    return emb(batch).fields.flatten(1).square().sum(1).mean()


def test_rows_move_in_backward_with_the_gradient_of_the_loss_as_it_is() -> None:
    emb = gs.Embeddings(PLAIN, dim=4, optimizer=gs.RowSGD(lr=0.5))
    batch = make_batch(PLAIN, 8)
    rows = emb(batch.ids_BF).detach().clone()
    again = emb(batch.ids_BF)
    torch.testing.assert_close(again, rows)
    (again * torch.arange(3).view(1, 3, 1)).sum().backward()
    moved = emb(batch.ids_BF).detach()
    ids, counts = np.unique(batch.ids_BF[:, 2], return_counts=True)
    times = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    for i in range(8):
        torch.testing.assert_close(moved[i, 0], rows[i, 0])  # its gradient is 0
        expected = rows[i, 2] - 0.5 * 2 * times[int(batch.ids_BF[i, 2])]
        torch.testing.assert_close(moved[i, 2], expected)


def test_every_kind_of_field_comes_out_as_inputs() -> None:
    emb = gs.Embeddings(RAGGED, dim=8, linear=True, sequences=True)
    x = emb(make_batch(RAGGED, 6))
    assert x.fields.names == ("item", "tags", "country") and x.sequences["history"].rows.shape[2] == 8
    (x.fields.flatten(1).sum() + x.linear.sum()).backward()
    assert emb.step == 2  # one push for each width


def test_nothing_is_born_or_moved_in_eval() -> None:
    emb = gs.Embeddings(PLAIN, dim=4).eval()
    out = emb(make_batch(PLAIN, 8)).fields.tensor
    assert not out.requires_grad and sum(map(len, emb.stores)) == 0


def test_the_state_holds_the_rows() -> None:
    emb, batch = gs.Embeddings(PLAIN, dim=4), make_batch(PLAIN, 20)
    loss_of(emb, batch).backward()
    other = gs.Embeddings(PLAIN, dim=4, seed=9)
    other.load_state_dict(emb.state_dict())
    loss_of(emb, batch).backward()
    loss_of(other, batch).backward()
    torch.testing.assert_close(other(batch.ids_BF), emb(batch.ids_BF), rtol=0, atol=0)
