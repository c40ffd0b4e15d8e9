"""The minimum number of steps of a run, and the smallest batch chosen to reach it. Does not read any data."""

from __future__ import annotations

FEW_STEPS = 50  # with fewer an optimizer cannot converge
SMALL_BATCH = 32  # smaller batches are not worthwhile; use more epochs instead


def halved_for_steps(batch: int, examples: float) -> int:
    """The batch, halved until `examples` are enough for `FEW_STEPS` steps.

    >>> halved_for_steps(256, 20_000), halved_for_steps(256, 4_000), halved_for_steps(256, 100)
    (256, 64, 32)
    """
    while batch > SMALL_BATCH and examples < FEW_STEPS * batch:
        batch //= 2
    return batch
