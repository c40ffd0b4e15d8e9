"""What holds for all embedding rows, whatever their optimizer: values alone, so that a config is read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gearshift.settings.declaration import setting
from gearshift.settings.units import Number

EmbeddingReduce = Literal["mean", "touched", "sum"]
RowTrust = Literal["dense_only", "touched", "row_wise"]


@dataclass(frozen=True, kw_only=True)
class RowPolicy:
    """How rows are born, and what a row's summed gradient is divided and scaled by."""

    init: Number = setting(
        0.01, "New embedding rows are drawn from [-row_init, row_init].", at_least=0, key="row_init"
    )
    trust: RowTrust = setting(
        "dense_only",
        "Whether vr_* scales rows too: per element, or one number per row.",
        key="row_trust",
        kept=True,
    )
    reduce: EmbeddingReduce = setting(
        "mean",
        "What a row's summed gradient is divided by: the examples of the step, those of the batches "
        "that have the id, or nothing.",
        key="embedding_reduce",
        kept=True,
    )
