"""Divides the memory for embedding rows between the model and its baseline. Results do not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.lookup import FieldGroup
from gearshift.embedding.memory_budget import with_buffers
from gearshift.embedding.row_rules import sketch_bytes
from gearshift.settings.units import size_in_words

BASELINE_SHARE = 0.1  # of what the sketches leave


def divided(
    tier: ColdTier | None,
    model: Sequence[FieldGroup],
    baseline: Sequence[FieldGroup] | None,
    *,
    shards: int,
    shards_here: int,
) -> tuple[ColdTier | None, ColdTier | None]:
    """The tiers of each shard of the model, and of the baseline, if there is one.

    `shards_here` of the model's shards are in this process, and divide its memory.
    """
    if tier is None:
        return None, None
    sketches = _sketch_bytes(model) * shards_here // shards + _sketch_bytes(baseline or ())
    uses = [*tier.uses]
    if sketches:
        uses.append(f"{size_in_words(with_buffers(sketches))} to count ids for min_count")
    if baseline is not None:
        uses.append("a tenth for the baseline")
    share = 0.0 if baseline is None else BASELINE_SHARE
    whole = replace(
        tier.reserve(sketches),
        uses=tuple(uses),
        has_baseline=baseline is not None,
        shards=shards // shards_here,
    )
    return replace(whole.share((1 - share) / shards_here), of_shards=shards), whole.share(share)


def _sketch_bytes(groups: Sequence[FieldGroup]) -> int:
    return sum(sketch_bytes(group.rules) for group in groups)
