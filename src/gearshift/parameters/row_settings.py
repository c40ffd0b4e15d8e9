"""Settings of all embedding rows. Plain values, so that a config can be read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gearshift.settings.declaration import ComparedOnResume, setting
from gearshift.settings.units import Number

EmbeddingReduce = Literal["mean", "touched", "sum"]
RowTrust = Literal["dense_only", "touched", "row_wise"]


@dataclass(frozen=True, kw_only=True)
class RowPolicy(ComparedOnResume):
    """How rows are initialised, and how a row's summed gradient is divided and scaled."""

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
        "The divisor of a row's summed gradient: the examples of the step, those of the batches "
        "that contain the id, or 1.",
        key="embedding_reduce",
        kept=True,
    )
