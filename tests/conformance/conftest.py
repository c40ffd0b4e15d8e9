"""The engines as a fixture: the one on Ray needs a cluster and a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .engines import ENGINES, Counted, OnRay


@pytest.fixture
def train(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Counted]:
    if request.param == "ray":
        return OnRay(request.getfixturevalue("cluster"), tmp_path)
    return ENGINES[request.param]
