"""The estimate of a run with a memory budget, against an exact count on drawn ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gearshift.training import tier_estimate
from gearshift.training.estimate import _disk_text
from gearshift.training.tier_estimate import RowGrowth, TierEstimate, estimate_tier


def drawn(exponent: float, count: int) -> np.ndarray:
    """Ids whose frequencies follow a power law with a long tail."""
    return np.random.default_rng(1).zipf(exponent, count).astype(np.int64)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("exponent", [1.3, 1.5, 1.7])
def test_reads_per_example_are_those_of_the_ids_that_do_not_fit(exponent: float, share: float) -> None:
    """An occurrence is read if its id was seen before and is none of those that had occurred most often."""
    ids = drawn(exponent, 400_000)
    before, last = ids[:380_000], ids[380_000:]
    known, counts = np.unique(before, return_counts=True)
    growth = np.log2(len(known) / len(np.unique(ids[:190_000])))
    hot = int(share * len(known))
    chance = np.random.default_rng(2).random(len(known))  # among ids that occurred as often
    in_memory = known[np.lexsort((chance, -counts))[:hot]]
    measured = np.mean(np.isin(last, before) & ~np.isin(last, in_memory))
    fitted = fitted_rows(len(known), growth, hot)
    expected = fitted.reads_per_example(380_000)
    assert expected == pytest.approx(measured, rel=0.25, abs=0.005)
    again = replace(fitted, epochs=2)
    of_second_pass = np.mean(~np.isin(before, in_memory))
    assert again.final_reads_per_example == pytest.approx(of_second_pass, rel=0.25)


def fitted_rows(rows: int, growth: float, hot: int) -> RowGrowth:
    """One occurrence per example, and memory for `hot` rows."""

    class Fixed(RowGrowth):
        @property
        def hot_rows(self) -> int:
            return hot

    return Fixed(rows, growth, 1.0, 380_000, 32, 1)


def test_what_fits_stays_in_memory_and_the_rest_needs_disk() -> None:
    fits = RowGrowth(rows=1_000_000, growth=0.6, occurrences=26, examples=10**7, floats=33, budget=1 << 30)
    assert (fits.cold_rows, fits.disk_bytes, fits.reads_per_example(10**7)) == (0, 0, 0.0)
    large = RowGrowth(rows=100_000_000, growth=0.6, occurrences=26, examples=10**9, floats=33, budget=4 << 30)
    assert large.hot_rows + large.cold_rows == 100_000_000
    assert 15_000_000 < large.hot_rows < 25_000_000
    assert large.disk_bytes == pytest.approx(2 * large.cold_rows * 4096 / 26, rel=0.01)
    assert 0 < large.reads_per_example(10**9) < 26
    assert large.reads_per_example(10**6) == 0  # as long as all rows fit
    tiny = RowGrowth(rows=100_000_000, growth=0.6, occurrences=26, examples=10**9, floats=33, budget=1 << 20)
    assert tiny.hot_rows < 256


def test_the_plan_says_that_the_index_of_the_files_outgrows_the_memory(tmp_path: Path) -> None:
    large = RowGrowth(rows=4_000_000, growth=0.6, occurrences=26, examples=10**7, floats=8, budget=4 << 20)
    index = 1.7 * 1.25 * 9 / 8 * large.rows
    tier = TierEstimate((large,), tmp_path, None, None)
    assert tier.outgrown == pytest.approx(2 * index / large.budget)
    assert f"set `memory` to at least {tier.outgrown:.1f} times as much" in _disk_text(tier)
    enough = replace(large, budget=int(2 * index) + 1)
    assert enough.cold_rows and "Warning" not in _disk_text(replace(tier, stores=(enough,)))
    assert replace(large, rows=1000).least_budget == 0


def test_the_disk_is_measured_only_if_rows_go_there(tmp_path: Path) -> None:
    fits = RowGrowth(10, 0.5, 1.0, 100, 33, 1 << 30)
    large = RowGrowth(10**8, 0.5, 1.0, 10**9, 33, 1 << 30)
    assert estimate_tier([fits], tmp_path / "rows").reads_per_second is None
    measured = estimate_tier([fits, large], tmp_path / "rows")
    assert measured.reads_per_second is not None and measured.reads_per_second > 10
    assert measured.free_bytes is not None and measured.free_bytes > 0
    assert 0 < large.reads <= large.examples * measured.final_reads_per_example
    assert measured.seconds() > large.reads * 1e-6 and measured.seconds(10**9) > 1.5 * measured.seconds()
    assert not list(tmp_path.iterdir())


def test_a_limit_is_stated_only_if_the_disk_is_the_bottleneck(tmp_path: Path) -> None:
    large = RowGrowth(10**8, 0.5, 1.0, 10**9, 33, 1 << 30)
    reads = large.final_reads_per_example
    slow = TierEstimate((large,), tmp_path, None, 1000.0)
    assert slow.limit(1e6) == 1000 / reads
    assert slow.limit(900 / reads) is None, "training is slower"
    assert TierEstimate((large,), tmp_path, None, 1e6).limit(1e9) is None, "moving rows takes longer"
    assert TierEstimate((large,), tmp_path, None, None).limit(1e9) is None


def test_a_place_that_cannot_have_the_folder_has_no_free_space(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fits = RowGrowth(10, 0.5, 1.0, 100, 33, 1 << 30)
    assert estimate_tier([fits], tmp_path / "file" / "rows").free_bytes is None


def test_a_folder_that_cannot_be_probed_gives_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, seconds: float) -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tier_estimate._core, "random_read_rate", full)
    large = RowGrowth(10**8, 0.5, 1.0, 10**9, 33, 1 << 30)
    assert estimate_tier([large], tmp_path / "other").reads_per_second is None
