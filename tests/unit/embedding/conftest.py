from __future__ import annotations

from collections.abc import Iterator

import pytest

from gearshift import _core


@pytest.fixture(params=["io_uring", "threads"])
def disk(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways to read the files."""
    _core.allow_io_uring(request.param == "io_uring")
    yield request.param
    _core.allow_io_uring(True)
