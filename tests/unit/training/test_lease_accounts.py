"""What becomes of the leases of a run is counted once, and progressive measures score each example once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gearshift as gs
from examples import PLAIN, make_batch
from gearshift.sync.events import Lease, Part
from gearshift.training.ended import BatchMeasures, Ended
from gearshift.training.engine import NotFinite
from gearshift.training.lease_accounts import LeaseAccounts
from gearshift.training.plan import Plan
from gearshift.training.progress import Progress

DATA = gs.read(make_batch(PLAIN, 100), PLAIN)


def accounts(**plan: object) -> tuple[LeaseAccounts, Progress]:
    progress = Progress()
    return LeaseAccounts(Plan(**plan), progress, DATA, gs.SGD()), progress  # type: ignore[arg-type]


def ended(
    number: int, count: int, *, worker: int = 0, reason: str = "", measured: bool = True
) -> Ended[BatchMeasures]:
    labels = np.zeros((count, 1), np.float32)
    measures = BatchMeasures(0.5 * count, float(count), labels, np.full((count, 1), 0.25, np.float32))
    part = Part(number, weight=0.0 if reason else 1.0, staleness=2, lag=1, reason=reason)
    return Ended(worker, Lease(number, 0, count), measures if measured else None, part)


LEASES = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.integers(0, 3),
        st.sampled_from(["", "too late: 7 steps behind", "worker lost: 1"]),
    ),
    max_size=30,
)


@given(LEASES)
def test_every_example_is_counted_once(leases: list[tuple[int, int, str]]) -> None:
    books, progress = accounts()
    for number, (count, worker, reason) in enumerate(leases):
        assert list(books.count([ended(number, count, worker=worker, reason=reason)], step=number)) == []
    whole = sum(count for count, _, _ in leases)
    lost = sum(count for count, _, reason in leases if reason)
    assert progress.examples == sum(progress.examples_by_worker.values()) == whole
    assert sum(progress.lost_by_worker.values()) == lost
    assert progress.applied + sum(progress.discarded.values()) == len(leases)
    assert set(progress.discarded) <= {"too late", "worker lost"}
    assert sum(progress.staleness.values()) == sum(progress.lag.values()) == progress.applied
    assert progress.measures.examples == whole


def test_examples_are_measured_in_the_first_epoch_alone() -> None:
    books, progress = accounts(epochs=2)
    list(books.count([ended(0, 5)], step=0))
    progress.begin_next_epoch()
    list(books.count([ended(1, 7)], step=1))
    assert (progress.measures.examples, progress.examples, progress.loss) == (5, 12, 0.5)


def test_a_batch_that_is_not_finite_is_reported_with_its_lines_and_one_too_many_ends_the_run() -> None:
    books, progress = accounts(bad_batches=1)
    bad = ended(0, 5, reason="not finite: the loss is nan", measured=False)
    (sentence,) = books.count([bad], step=3)
    assert sentence == "the loss is nan at step 4 (examples 0-4): the batch is skipped"
    assert progress.discarded == {"not finite": 1}
    with pytest.raises(NotFinite, match=r"the loss is nan at step 5 .* lower optimizer\.dense\.lr"):
        list(books.count([bad], step=4))
