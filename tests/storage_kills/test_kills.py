"""kill -9 of runs whose rows do not fit in memory: a few kills here, 50 as a slow test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage_kills.run import carry_out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["inline", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path: Path, engine: str) -> None:
    """Killed in the middle of a chunk, and without chunks."""
    outcomes = carry_out({engine: 2}, 2, seed=1, work=tmp_path, examples=20_000)
    assert [outcome for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.kills for outcome in outcomes) == 2
    assert sum(outcome.in_chunks for outcome in outcomes) == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills(tmp_path: Path) -> None:
    outcomes = carry_out({"inline": 24, "threads": 18, "ray": 8}, 6, seed=2, work=tmp_path)
    assert [outcome for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.kills for outcome in outcomes) >= 50
