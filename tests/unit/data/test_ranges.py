"""Ranges of examples, as workers lease them: correct for any gaps, and without reading more than necessary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gearshift as gs
from gearshift.data.batch import Batch
from gearshift.data.prepare import prepare
from gearshift.data.ranges import Ranges
from gearshift.data.readers.generated import GeneratedExamples

LOG = gs.ClickLog(examples=20_000, days=2)
WHOLE = gs.read(LOG)
ALL = WHOLE.read(0, 20_000)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gs.Dataset]:
    folder = tmp_path_factory.mktemp("ready") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gearshift.data.prepare.GROUP_EXAMPLES", 1_000)
        patch.setattr("gearshift.data.prepare.FILE_GROUPS", 7)
        prepare(WHOLE, folder)
    yield gs.read(folder)


@pytest.fixture(params=["generated", "prepared", "head", "text"])
def data(request: pytest.FixtureRequest, prepared: gs.Dataset, tmp_path: Path) -> gs.Dataset:
    if request.param == "text":
        LOG.write_csv(tmp_path / "log.csv")
        return gs.read(tmp_path / "log.csv", WHOLE.schema)
    return {"generated": WHOLE, "prepared": prepared, "head": prepared.head(19_000)}[request.param]


def assert_right(batch: Batch, first: int, count: int) -> None:
    expected = ALL.slice(first, first + count)
    assert batch.first == first and len(batch) == len(expected)
    np.testing.assert_array_equal(batch.ids_BF, expected.ids_BF)
    np.testing.assert_array_equal(batch.labels_BT, expected.labels_BT)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_leases_of_one_of_many_workers(data: gs.Dataset, workers: int) -> None:
    with closing(Ranges(data)) as found:
        for first in range(0, 18_000, 250 * workers):
            assert_right(found.read(first, 250), first, 250)
        assert_right(found.read(500, 250), 500, 250)  # again, of a worker that was lost
        assert_right(found.read(18_500, 300), 18_500, 300)


@settings(max_examples=25)
@given(leases=st.lists(st.tuples(st.integers(0, 18_999), st.integers(1, 3_000)), max_size=8))
def test_any_ranges_in_any_order(prepared: gs.Dataset, leases: list[tuple[int, int]]) -> None:
    for data in (WHOLE, prepared):
        with closing(Ranges(data)) as found:
            for first, count in leases:
                assert_right(found.read(first, min(count, 20_000 - first)), first, min(count, 20_000 - first))


def test_the_end(data: gs.Dataset) -> None:
    with closing(Ranges(data)) as found:
        found.read(0, 10)
        found.read(9_000, 10)
        for _ in range(2):
            with pytest.raises(IndexError, match="there is no example 20000"):
                found.read(20_000, 10)


def test_one_of_many_decodes_little_of_what_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    read = gs.ClickLog.read

    def counted(log: gs.ClickLog, first: int, count: int) -> Batch:
        decoded.append(count)
        return read(log, first, count)

    log = gs.ClickLog(examples=2_000_000, days=1)
    with closing(Ranges(gs.Dataset(GeneratedExamples(log)))) as found:
        for first in range(0, 20 * 65_536, 65_536):  # 16 workers
            if first == 4 * 65_536:
                monkeypatch.setattr(gs.ClickLog, "read", counted)
            found.read(first, 4_096)
    assert 16 * 4_096 <= sum(decoded) <= 18 * 4_096
