"""Eviction, merging, expiry, cuts, checkpoints and look-ahead race. Results are those of rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gearshift.data.row_lifetime import Expire
from gearshift.embedding.row_rules import RowRule
from tests.unit.embedding.store_pair import BUDGET, LONG, SHORT, StorePair

LITTLE = 1 << 20  # buffers of a few rows: files are written and merged all the time
RULES = (
    RowRule(),
    RowRule("plain"),
    RowRule("short_lived", expire=Expire(SHORT), period=0),
    RowRule("rare", min_count=4, expire=Expire(SHORT, occurrences_below=40), period=0),
    RowRule("small", admit=0.5, expire=Expire(LONG, norm_below=0.15), period=1),
)
TRAINING = ["train", "train", "train", "push", "erase", "load", "look"]
MOVING = ["expire", "expire", "prefetch", "expect", "load_expected", "load_all_expected", "settle"]
SAVING = ["cut", "save", "save", "restore"]
STORY = (
    "train expect train load_all_expected expire train save expect train expire load_all_expected train erase train "
    "cut settle expect train save expire load_all_expected train train restore train expire look"
)
EVERYTHING = STORY.split()


def carry_out(pair: StorePair, actions: Sequence[str]) -> None:
    with closing(pair):
        for action in ["train"] * 5 + [*actions]:
            getattr(pair, action)()
        pair.assert_alike()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    actions=st.lists(st.sampled_from(TRAINING + MOVING + SAVING), max_size=30),
    hot_rows=st.sampled_from([1, 512, 2048, 10_000]),
    budget=st.sampled_from([LITTLE, BUDGET]),
    with_rules=st.booleans(),
    seed=st.integers(0, 2**32),
)
@example(actions=EVERYTHING, hot_rows=1, budget=LITTLE, with_rules=True, seed=1)
@example(actions=EVERYTHING, hot_rows=512, budget=LITTLE, with_rules=False, seed=2)
def test_any_schedule_gives_the_same_rows(
    actions: list[str], hot_rows: int, budget: int, with_rules: bool, seed: int
) -> None:
    rules = RULES if with_rules else ()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        carry_out(StorePair(Path(folder), hot_rows, seed, budget=budget, rules=rules), actions)


def test_such_a_schedule_evicts_merges_expires_and_loads_ahead(tmp_path: Path) -> None:
    """Otherwise the test above would show little."""
    pair = StorePair(tmp_path, 512, seed=3, budget=LITTLE, rules=RULES)
    carry_out(pair, EVERYTHING[: EVERYTHING.index("restore")])
    counts = pair.tiered.tier.counts()
    assert min(counts.evicted, counts.written_back, counts.prefetched, counts.rows_read) > 100, counts
    assert counts.merges > 16, counts
    *_, expired = pair.tiered.lifetimes.counts().sum(0).tolist()
    assert expired > 100
