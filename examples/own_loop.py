"""A custom training loop that uses only Gearshift's embedding rows. Run: python examples/own_loop.py [clicks.csv]

`gs.Embeddings` is an nn.Module. It looks up ids in the row store, and `backward` passes the gradients of the rows to
the store, where the row optimizer applies them. `net` and its torch optimizer need no change.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import gearshift as gs


def main(examples: int = 200_000, file: str | None = None) -> None:
    data = gs.read(gs.ClickLog(examples)) if file is None else gs.read(file, gs.infer_schema(file))
    train, valid = data.split(valid="10%")
    # A Trainer does this itself: standardize and bucketize are fitted on the training data and applied to both parts.
    train = train.fitted()
    valid = valid.fitted(train)
    net = gs.models.DNN(train.schema, dim=16, hidden=[128, 64])  # or any custom module
    emb = gs.Embeddings(train.schema, dim=16, optimizer=gs.RowAdagrad(lr=0.05))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step, batch in enumerate(train.batches(2048), 1):
        label = torch.from_numpy(batch.labels_BT[:, 0])
        loss = binary_cross_entropy_with_logits(net(emb(batch)), label)
        loss.backward()  # also updates the rows
        opt.step()
        opt.zero_grad()
        if step % 20 == 0:
            print(f"{step * 2048:>9,} examples  loss {loss.item():.4f}  {emb}")
    print(f"held-out loss {held_out_loss(net, emb, valid):.4f}")


@torch.no_grad()
def held_out_loss(net: torch.nn.Module, emb: gs.Embeddings, valid: gs.Dataset) -> float:
    net.eval()
    emb.eval()  # creates no rows for new ids
    total = count = 0.0
    for batch in valid.batches(8192):
        label = torch.from_numpy(batch.labels_BT[:, 0])
        total += binary_cross_entropy_with_logits(net(emb(batch)), label, reduction="sum").item()
        count += len(batch)
    return total / count


if __name__ == "__main__":
    main(file=sys.argv[1] if len(sys.argv) > 1 else None)
