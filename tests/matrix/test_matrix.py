"""A live run is harmed as an operator's night would: it recovers or ends in a sentence, in time, and leaves nothing.

`make test` has the short form, `make test-all` the whole matrix.
"""

from __future__ import annotations

import pytest

from tests.matrix.case import carry_out
from tests.matrix.run import line
from tests.matrix.scenarios import SHORT, Case, limit, matrix
from tests.on_ray.fixtures import ON_RAY

LONGEST = max(map(limit, matrix()))
pytestmark = [ON_RAY, pytest.mark.timeout(2 * LONGEST + 600)]


def test_short() -> None:
    check(SHORT[-1])  # tests/chaos kills a shard as well


@pytest.mark.slow
@pytest.mark.parametrize("case", matrix(), ids=lambda case: case.name)
def test_all(case: Case) -> None:
    check(case)


def check(case: Case) -> None:
    result = carry_out(case)
    if result.outcome == "skipped":
        pytest.skip(result.said)
    assert result.ok, f"{line(result)}\n{result.evidence}"
