"""A range of a synthetic click log as examples, generated on demand at any position."""

from __future__ import annotations

from collections.abc import Iterator

from gearshift.data.batch import Batch
from gearshift.data.examples import PieceAt
from gearshift.data.schema import Schema
from gearshift.data.synthetic import ClickLog

PIECE = 4_096  # examples


class GeneratedExamples:
    """Examples [begin, end) of a log; positions count from `begin`."""

    seekable = True

    def __init__(
        self, log: ClickLog, begin: int = 0, end: int | None = None, schema: Schema | None = None
    ) -> None:
        self.log, self.begin = log, begin
        self.end = log.count() if end is None else end
        self.schema = schema or log.schema

    def count(self) -> int | None:
        return self.end - self.begin

    def estimate(self) -> int:
        return self.end - self.begin

    def blocks(self, first: int) -> Iterator[Batch]:
        for at in range(self.begin + first, self.end, self.log.block_size):
            batch = self.log.read(at, min(self.log.block_size, self.end - at))
            yield batch.moved(at - self.begin)

    def pieces(self) -> PieceAt:
        def piece_at(position: int) -> Batch:
            if not 0 <= position < self.end - self.begin:
                raise IndexError(f"there is no example {position}")
            first = self.begin + position // PIECE * PIECE
            return self.log.read(first, min(PIECE, self.end - first)).moved(first - self.begin)

        return piece_at

    def with_schema(self, schema: Schema) -> GeneratedExamples:
        return GeneratedExamples(self.log, self.begin, self.end, schema)

    def time_range(self) -> tuple[int, int] | None:
        ends = [self.log.read(at, 1).times_B for at in (self.begin, self.end - 1)]
        first, last = (int(times[0]) for times in ends if times is not None)
        return first, last

    def describe(self) -> tuple[str, str]:
        part = (
            "" if self.end - self.begin == self.log.count() else f"{self.end - self.begin:,} examples of a "
        )
        return part + self.log.describe(), ""
