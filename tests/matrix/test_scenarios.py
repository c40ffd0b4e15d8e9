"""The matrix is complete: every possible pair of values occurs, and every case states what must follow."""

from __future__ import annotations

from itertools import product
from math import inf, isfinite

from tests.matrix.scenarios import (
    FACTORS,
    IMPOSSIBLE,
    MOMENTS,
    SHORT,
    TARGETS,
    TROUBLES,
    expectation,
    limit,
    matrix,
    pairs,
    pairwise,
    possible,
)


def test_every_possible_pair_occurs() -> None:
    wanted = set().union(*(pairs(row) for row in product(*FACTORS) if possible(row)))
    covered = set().union(*map(pairs, pairwise()))
    assert covered == wanted
    left_out = {(target, moment) for target, moment in product(TARGETS, MOMENTS)} - {
        (row[1], row[2]) for row in pairwise()
    }
    assert left_out == IMPOSSIBLE.keys() and all(IMPOSSIBLE.values())


def test_it_is_small_and_always_the_same() -> None:
    names = [case.name for case in matrix()]
    assert names == [case.name for case in matrix()] and len(set(names)) == len(names)
    fewest = len(TARGETS) * len(MOMENTS) - len(IMPOSSIBLE)
    assert fewest <= len(names) - len(TROUBLES) <= fewest + 4


def test_every_case_has_a_limit_beyond_its_bound() -> None:
    for case in (*matrix(), *SHORT):
        bound = expectation(case).without_step
        assert isfinite(limit(case)) and (bound < limit(case) or bound == inf)
