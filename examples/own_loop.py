"""A training loop of your own: only the embedding rows are Gearshift's. Run: python examples/own_loop.py

`gs.Embeddings` is an nn.Module. It looks ids up in the row store, and `backward` brings the gradients of the
rows there, where the row optimizer applies them; so `net` and its torch optimizer stay as they were.
"""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import gearshift as gs


def main(examples: int = 200_000) -> None:
    data = gs.read(gs.ClickLog(examples))  # or your CSV: gs.read("clicks.csv", schema)
    net = gs.models.DNN(data.schema, dim=16, hidden=[128, 64])  # or any module of yours
    emb = gs.Embeddings(data.schema, dim=16, optimizer=gs.RowAdagrad(lr=0.05))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step, batch in enumerate(data.batches(2048), 1):
        label = torch.from_numpy(batch.labels_BT[:, 0])
        loss = binary_cross_entropy_with_logits(net(emb(batch)), label)
        loss.backward()  # the rows have moved when this returns
        opt.step()
        opt.zero_grad()
        if step % 20 == 0:
            print(f"{step * 2048:>9,} examples  loss {loss.item():.4f}  {emb}")


if __name__ == "__main__":
    main()
