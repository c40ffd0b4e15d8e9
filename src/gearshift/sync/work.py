"""The record of work in progress. Strategies read it but do not own it, so another strategy can take over at any time.

It lists the workers that wait for work (parked), the leases being computed (flying), the gradients that have arrived
but are in no step yet (waiting), and the number of applied steps. `Work` only keeps records; it decides nothing. Every
operation except a switch takes constant time, however many workers there are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gearshift.sync.copies import Copies
from gearshift.sync.events import Lease
from gearshift.sync.flight import Flight
from gearshift.sync.speeds import Speeds


class Supply:
    """Examples that no worker has begun, divided into leases: returned leases first, then the rest in order."""

    def __init__(self) -> None:
        self.returned: deque[Lease] = deque()
        self.ranges: deque[tuple[int, int, int]] = deque()  # first, count, batch
        self.next_number = 0

    def __bool__(self) -> bool:
        return bool(self.returned or self.ranges)

    def add(self, first: int, count: int, batch: int) -> None:
        assert batch > 0, "leases without examples would never end"
        if count > 0:
            self.ranges.append((first, count, batch))

    def give_back(self, lease: Lease) -> None:
        self.returned.append(lease)

    def recut(self, batch: int) -> None:
        """Use this batch size for the remaining ranges. A range that is a single lease stays whole."""
        self.ranges = deque(
            (first, count, batch if count > old else old) for first, count, old in self.ranges
        )

    def upcoming(self) -> Iterator[tuple[int, int]]:
        """(first, count) of the leases that `take` will give, in order."""
        yield from ((lease.first, lease.count) for lease in self.returned)
        for first, count, batch in self.ranges:
            yield from ((first + at, min(batch, count - at)) for at in range(0, count, batch))

    def take(self, most: int = 0) -> Lease:
        """The next lease; of a range up to `most` examples instead of a batch."""
        number = self.take_number()
        if self.returned:
            old = self.returned.popleft()
            return Lease(number, old.first, old.count, old.attempt + 1)
        first, count, batch = self.ranges.popleft()
        size = min(most or batch, count)
        if count > size:
            self.ranges.appendleft((first + size, count - size, batch))
        return Lease(number, first, size)

    def take_number(self) -> int:
        number, self.next_number = self.next_number, self.next_number + 1
        return number


class Pace:
    """The number of gradients that each worker has delivered since the last switch, and the minimum.

    Workers that wait for work are also listed here, by this number.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.slowest = 0
        self.parked_at: dict[int, dict[int, None]] = {}  # in the order of their requests
        self._workers_at: Counter[int] = Counter()

    def join(self, worker: int) -> None:
        """A new worker starts at the minimum, so it does not hold others back more than the slowest worker does."""
        self.counts[worker] = self.slowest
        self._workers_at[self.slowest] += 1

    def leave(self, worker: int) -> None:
        self._drop(self.counts.pop(worker))
        self._find_slowest()

    def park(self, worker: int) -> None:
        self.parked_at.setdefault(self.counts[worker], OrderedDict())[worker] = None

    def unpark(self, worker: int) -> None:
        count = self.counts[worker]
        del self.parked_at[count][worker]
        if not self.parked_at[count]:
            del self.parked_at[count]

    def advance(self, worker: int) -> None:
        """The worker has ended one more lease. If it already waits for work, it keeps its place."""
        count = self.counts[worker]
        waits = worker in self.parked_at.get(count, ())
        if waits:
            self.unpark(worker)
        self.counts[worker] = count + 1
        self._workers_at[count + 1] += 1
        self._drop(count)
        self._find_slowest()
        if waits:
            self.park(worker)

    def restart(self, parked: Iterable[int]) -> None:
        """Reset all counts: past deliveries no longer hold anyone back."""
        self.slowest = 0
        self.counts = dict.fromkeys(self.counts, 0)
        self._workers_at = Counter(self.counts.values())
        self.parked_at.clear()
        for worker in parked:
            self.park(worker)

    def _drop(self, count: int) -> None:
        self._workers_at[count] -= 1
        if not self._workers_at[count]:
            del self._workers_at[count]

    def _find_slowest(self) -> None:
        while self.counts and self.slowest not in self._workers_at:
            self.slowest += 1


class Merges:
    """Exchanges of all replicas in the training loop, since the last switch."""

    def __init__(self, at: float = 0.0) -> None:
        self.count = 0
        self.at = at  # time of the last exchange or of the switch, in seconds
        self.under_way = False  # while it is True no worker begins

    def begin(self) -> int:
        """A meeting of replicas begins. Returns its number."""
        self.under_way = True
        return self.count + 1

    def end(self, number: int, at: float) -> None:
        """The meeting with this number has ended. A repeated report, or one of an earlier strategy, changes nothing."""
        if self.under_way and number == self.count + 1:
            self.count, self.at, self.under_way = number, at, False


class Work:
    def __init__(self, step: int = 0) -> None:
        self.step = step  # steps applied
        self.supply = Supply()
        self.exhausted = False
        self.pace = Pace()
        # OrderedDict pops its first item in constant time; a dict walks over deleted entries.
        self.parked: dict[int, None] = OrderedDict()  # in the order of their requests
        self.flying: dict[int, Flight] = {}  # by lease
        self.flights_of: dict[int, set[int]] = {}  # leases by worker
        self.waiting: dict[int, Flight] = {}  # by lease, in arrival order
        self.flying_examples = 0
        self.flying_adopted = 0  # flying examples begun under an earlier strategy
        self.flying_for: Counter[int] = Counter()  # other flying examples, by token
        self.waiting_examples = 0
        self.step_examples = 0  # of the last step
        self.adopted_step = 0  # the same, of the last step of the strategy before
        self.copies = Copies()
        self.speeds = Speeds()
        self.at = 0.0  # time of the last event, in seconds
        self.stepped_at = 0.0  # time of the last step
        self.merges = Merges()
        self.adopted_before = 0  # leases with lower numbers were begun under an earlier strategy

    @property
    def workers(self) -> int:
        return len(self.pace.counts)

    @property
    def ending(self) -> bool:
        """No more gradients will arrive: the waiting ones are all there is."""
        return self.exhausted and not self.supply and not self.flying

    @property
    def done(self) -> bool:
        return self.ending and not self.waiting

    def adopted(self, flight: Flight) -> bool:
        """Whether the lease began under an earlier strategy."""
        return flight.lease.number < self.adopted_before

    def switch(self, batch: int, at: float = 0.0) -> None:
        """Another strategy takes over. Work in progress continues, and no worker is behind or late from before."""
        self.adopted_before = self.supply.next_number
        self.adopted_step = self.step_examples
        self.merges = Merges(at)
        self.flying_adopted = self.flying_examples
        self.flying_for.clear()
        for under_way in (self.flying, self.waiting, self.copies.by_original):
            for lease, flight in under_way.items():
                under_way[lease] = replace(flight, token=max(flight.token, self.step))
        self.pace.restart(self.parked)
        self.supply.recut(batch)

    def join(self, worker: int) -> None:
        self.pace.join(worker)
        self.speeds.join(worker)
        self.flights_of[worker] = set()

    def park(self, worker: int) -> None:
        if worker not in self.parked:
            self.parked[worker] = None
            self.pace.park(worker)

    def begin(self, worker: int, token: int, most: int = 0) -> Flight:
        self.unpark(worker)
        flight = Flight(self.supply.take(most), worker, token, self.step, self.at)
        self.flights_of[worker].add(flight.lease.number)
        self._fly(flight)
        return flight

    def _fly(self, flight: Flight) -> None:
        self.flying[flight.lease.number] = flight
        self.flying_examples += flight.lease.count
        if self.adopted(flight):
            self.flying_adopted += flight.lease.count
        else:
            self.flying_for[flight.token] += flight.lease.count

    # ---- copies ----

    def begin_copy(self, worker: int, lease: int, token: int) -> Flight:
        """The worker computes an open lease of another worker too."""
        self.unpark(worker)
        of = self.flying[lease].lease
        own = Lease(self.supply.take_number(), of.first, of.count, of.attempt + 1)
        flight = Flight(own, worker, token, self.step, self.at)
        self.flights_of[worker].add(own.number)
        self.copies.add(lease, flight)
        return flight

    def promote(self, copy: int) -> None:
        """A copy takes the place of its original, which becomes the copy."""
        original = self.copies.original_of[copy]
        flight = self.copies.remove(original)
        worker = self.flying[original].worker
        self.copies.add(copy, self.land(original))
        self.flights_of[worker].add(original)
        self._fly(flight)

    def drop_copy(self, original: int) -> Flight:
        """The copy is not needed. Its worker may still be computing it."""
        flight = self.copies.remove(original)
        self.flights_of[flight.worker].discard(flight.lease.number)
        return flight

    def unpark(self, worker: int) -> None:
        """The worker no longer waits for work, if it did."""
        if worker in self.parked:
            del self.parked[worker]
            self.pace.unpark(worker)

    def flight(self, lease: int) -> Flight:
        """Of an open lease, which may be a copy."""
        original = self.copies.original_of.get(lease)
        return self.flying[lease] if original is None else self.copies.by_original[original]

    def arrive(self, lease: int, version: int = 0) -> Flight:
        """The gradient has arrived and waits for a step. It may have seen a newer version than required."""
        flight = self.land(lease)
        if version > flight.version:
            flight = replace(flight, version=version)
        self.waiting[lease] = flight
        self.waiting_examples += flight.lease.count
        return flight

    def land(self, lease: int) -> Flight:
        """Remove a flight from the record, whatever happens to it."""
        flight = self.flying.pop(lease)
        self.flights_of[flight.worker].discard(lease)
        self.flying_examples -= flight.lease.count
        if self.adopted(flight):
            self.flying_adopted -= flight.lease.count
            return flight
        self.flying_for[flight.token] -= flight.lease.count
        if not self.flying_for[flight.token]:
            del self.flying_for[flight.token]
        return flight

    def take_waiting(self, leases: tuple[int, ...]) -> None:
        self.step_examples = sum(self.waiting.pop(lease).lease.count for lease in leases)
        self.waiting_examples -= self.step_examples

    def leave(self, worker: int) -> None:
        """Remove a worker whose flights were dropped."""
        self.unpark(worker)
        del self.flights_of[worker]
        self.pace.leave(worker)
        self.speeds.leave(worker)
