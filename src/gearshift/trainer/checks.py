"""What a `Trainer` checks before it has seen data: optimizers, row settings, and rates for a larger batch."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from gearshift.embedding.store import CowClip, RowOptimizer
from gearshift.errors import UserError, unknown_name
from gearshift.optim.batch_scaling import Rates, scaled
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.server import EmbeddingReduce, RowTrust


def check_optimizer(optimizer: object) -> None:
    """A name, or one for a user's own loop, would fail in the middle of the first step."""
    if all(hasattr(optimizer, part) for part in ("lr", "init", "step")):
        return
    what = f'"{optimizer}"' if isinstance(optimizer, str) else f"a {type(optimizer).__name__}"
    raise UserError(
        f"Trainer(optimizer=...) is {what}, not a rule for the dense parameters: write "
        'gearshift.optim.build("adam", lr=1e-3) or gs.Adam(lr=1e-3)'
    )


def check_rows(
    optimizer: DenseOptimizer, trust: RowTrust, clip: CowClip | None, reduce: EmbeddingReduce
) -> None:
    """What would be something else, or nothing, without a word."""
    if trust not in get_args(RowTrust):
        raise unknown_name("row_trust", trust, get_args(RowTrust))
    if reduce not in get_args(EmbeddingReduce):
        raise unknown_name("embedding_reduce", reduce, get_args(EmbeddingReduce))
    if trust != "dense_only" and not isinstance(optimizer, VarianceReduced):
        raise UserError(
            f'row_trust="{trust}" gives rows the trust of a vr_* rule: choose one, such as '
            'optimizer=gearshift.optim.build("vr_adam"), or leave it out'
        )
    if clip is not None and not isinstance(clip, CowClip):
        raise UserError(f"Trainer(row_clip=...) is {clip!r}: write row_clip=gs.CowClip(), or leave it out")
    if clip is not None and reduce != "mean":
        raise UserError(
            f'row_clip measures the mean gradient of a row: leave it out, or embedding_reduce="{reduce}"'
        )


def growth(rule: str, base_batch: int | None, global_batch: int) -> Rates:
    """What rates and L2 are multiplied with, and the least warm-up, at this batch."""
    if base_batch is None and rule != "constant":
        raise UserError(
            f'batch_rule="{rule}" scales rates from the batch they were tuned for: give it, such as base_batch=1024'
        )
    if base_batch is not None and base_batch < 1:
        raise UserError(f"base_batch={base_batch}: at least 1")
    if base_batch is not None and rule == "constant":
        raise UserError(
            f'base_batch={base_batch} changes nothing without a rule: give batch_rule="square_root", or leave it out'
        )
    return scaled(rule, Rates(1.0, 1.0, 1.0), 1.0 if base_batch is None else global_batch / base_batch)


def grown(rows: RowOptimizer, growth: Rates) -> RowOptimizer:
    return replace(rows, lr=rows.lr * growth.row_lr, l2=rows.l2 * growth.row_l2)
