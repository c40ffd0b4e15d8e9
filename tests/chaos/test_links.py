"""A host that nobody reaches for a while: the run goes on without it, and what comes back late counts for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults import Chaos, settings_for
from tests.chaos.hosts import Hosts, hosts, may_be_made
from tests.on_ray.fixtures import ON_RAY

pytestmark = [
    ON_RAY,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not may_be_made(), reason="network namespaces take the rights of root"),
]


@pytest.fixture(scope="module")
def far(temporary: Path) -> Iterator[Hosts]:
    root = Path(__file__).parents[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{root}:{root / 'tests'}")
        with hosts() as made:
            yield made


@pytest.mark.parametrize("strategy", ["sync", "gba"])
def test_a_cut_link_does_not_end_the_run(tmp_path: Path, far: Hosts, strategy: str) -> None:
    chaos = Chaos(settings_for(far.address), tmp_path, seed=3, raylets=far)
    outcome = chaos.harm_a_run(strategy, ["cut node"], 20)
    assert len(outcome.harms) == 1
    assert outcome.auc == pytest.approx(outcome.calm, abs=0.02)
