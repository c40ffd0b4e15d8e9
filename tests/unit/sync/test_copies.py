"""The record of leases that two workers compute."""

from gearshift.sync.copies import Copies
from gearshift.sync.events import Lease
from gearshift.sync.flight import Flight


def flight(lease: int, worker: int) -> Flight:
    return Flight(Lease(lease, 0, 4), worker, 0, 0)


def test_a_copy_is_found_from_both_leases_until_it_is_removed():
    copies, copy = Copies(), flight(7, worker=1)
    copies.add(3, copy)
    assert copies.by_original == {3: copy} and copies.original_of == {7: 3}
    assert copies.remove(3) is copy
    assert copies.by_original == copies.original_of == {}


def test_a_worker_that_is_gone_computes_nothing():
    copies = Copies()
    copies.dropped = {7: flight(7, worker=1), 8: flight(8, worker=2)}
    copies.forget(1)
    assert list(copies.dropped) == [8]
