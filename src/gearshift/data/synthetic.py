"""A synthetic click log with a known best possible AUC.

It has 26 categorical fields with zipf-distributed ids, 13 numbers with missing values, days with drift, and an
optional history per example. A teacher decides each click from the example. Its probabilities are available
(`truth`), so a model can be compared with the best possible model. `csrc/click_day.h` has the teacher.

Examples depend only on (seed, day, position): any block can be generated independently, in any order, on any
machine, with the same bits. Its ids equal those that a reader computes from the output of `write_csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gearshift import _core
from gearshift.data.batch import Batch, Ragged
from gearshift.data.schema import Categorical, Feature, Label, Numeric, Schema, Sequence
from gearshift.errors import UserError
from gearshift.metrics import auc

if TYPE_CHECKING:
    import pyarrow as pa

NUMERICS = tuple(f"n{i}" for i in range(1, _core.CLICK_NUMERICS + 1))


@dataclass(frozen=True)
class SampleEstimate:
    """A metric measured on a sample, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class _Columns:
    labels_B: NDArray[np.float32]
    truth_B: NDArray[np.float64]
    numeric_BN: NDArray[np.float32]
    ids_BF: NDArray[np.int64]
    times_B: NDArray[np.int64]
    history: Ragged | None


class ClickLog:
    """A generated click log: `examples` spread evenly over `days`.

    `drift` 1 turns the teacher's weights by about .15 rad per day and replaces 9 % of ads and queries each day;
    0 means no change. `sequences` adds `history`, the topics of up to 20 earlier ads, and a teacher that uses it
    (DIN: target `ad_topic`, history `history`).
    """

    block_size = 32_768

    def __init__(
        self,
        examples: int = 1_000_000,
        days: int = 1,
        seed: int = 1,
        sequences: bool = False,
        drift: float = 1.0,
        click_rate: float = 0.2,
    ) -> None:
        if not 1 <= days <= examples:
            raise UserError(
                f"synthetic: {examples} examples over {days} days; each day needs at least one example"
            )
        if days > 3650:
            raise UserError(f"synthetic: {days} days; at most 3,650 (ten years)")
        if not 0.001 <= click_rate <= 0.999:
            raise UserError(
                f"synthetic: click_rate is {click_rate}; choose one between 0.001 and 0.999, such as 0.2"
            )
        if not 0.0 <= drift <= 10.0:
            raise UserError(f"synthetic: drift is {drift}; choose one between 0 (no drift) and 10, usually 1")
        if not 0 <= seed < 2**64:
            raise UserError(f"synthetic: seed is {seed}; choose one between 0 and 2**64 - 1")
        self.examples, self.days, self.seed = examples, days, seed
        self.sequences, self.drift, self.click_rate = sequences, drift, click_rate
        self.schema = click_schema(sequences)
        self._core = _core.ClickLog(seed, examples, days, sequences, drift, click_rate)

    def __reduce__(self) -> tuple[type[ClickLog], tuple[Any, ...]]:
        """Pickle only the arguments. Another process generates the log again."""
        return ClickLog, (
            self.examples,
            self.days,
            self.seed,
            self.sequences,
            self.drift,
            self.click_rate,
        )

    def count(self) -> int:
        """The number of examples."""
        return self.examples

    def blocks(self) -> int:
        """The number of blocks of `block_size` examples."""
        return -(-self.examples // self.block_size)

    def day_begin(self, day: int) -> int:
        """The position of the first example of a day (0 is the first)."""
        return -(-day * self.examples // self.days)

    def block(self, i: int) -> Batch:
        """Examples [i * block_size, (i + 1) * block_size), fewer in the last block."""
        return self.read(*self._range(i))

    def truth(self, i: int) -> NDArray[np.float64]:
        """The teacher's click probability for each example of `block(i)`."""
        return self._columns(*self._range(i), raw=False).truth_B

    def read(self, first: int, count: int) -> Batch:
        """Any `count` examples from position `first` on, ready for a model."""
        columns = self._columns(first, count, raw=False)
        return Batch(
            first,
            columns.labels_B[:, None],
            columns.numeric_BN,
            columns.ids_BF,
            () if columns.history is None else (columns.history,),
            times_B=columns.times_B,
            groups_B=columns.ids_BF[:, 0],
        )

    def teacher_auc(self, sample: int = 200_000) -> SampleEstimate:
        """The AUC of the true probabilities, which no model is expected to exceed.

        Averaged over all possible clicks; the standard error is that of the sample.
        """
        parts = 20
        size = max(1, min(sample, self.examples) // parts)
        starts = [part * (self.examples - size) // (parts - 1) for part in range(parts)]
        truths = [self._columns(start, size, raw=False).truth_B for start in starts]
        each = [auc(truth, truth) for truth in truths]  # weighted by the true probabilities
        whole = np.concatenate(truths)
        return SampleEstimate(auc(whole, whole), float(np.std(each, ddof=1)) / parts**0.5)

    def write_csv(self, path: str | Path) -> None:
        """Write a header and one line per example; compressed if the name ends in .gz or .zst."""
        import pyarrow as pa
        from pyarrow import csv

        @contextmanager
        def open_writer(target: Path, schema: pa.Schema) -> Iterator[Any]:
            compression = {".gz": "gzip", ".zst": "zstd"}.get(Path(path).suffix)
            with (
                pa.output_stream(target, compression=compression) as stream,
                csv.CSVWriter(stream, schema) as writer,
            ):
                yield writer

        self._write(Path(path), open_writer, joined=True)

    def write_parquet(self, path: str | Path) -> None:
        """Write the same columns as Parquet, with histories as lists of integers."""
        from pyarrow import parquet

        self._write(Path(path), lambda target, schema: parquet.ParquetWriter(target, schema), joined=False)

    def describe(self) -> str:
        """A one-line description."""
        days = "1 day" if self.days == 1 else f"{self.days} days"
        return f"synthetic click log, {self.examples:,} examples over {days}, seed {self.seed}"

    def _range(self, i: int) -> tuple[int, int]:
        if not 0 <= i < self.blocks():
            raise IndexError(f"block {i} of {self.blocks()}")
        return i * self.block_size, min(self.block_size, self.examples - i * self.block_size)

    def _columns(self, first: int, count: int, *, raw: bool) -> _Columns:
        if not 0 <= first <= first + count <= self.examples:
            raise IndexError(f"examples [{first}, {first + count}) of {self.examples}")
        labels, truth = np.empty(count, np.float32), np.empty(count, np.float64)
        numeric = np.empty((count, _core.CLICK_NUMERICS), np.float32)
        ids, times = np.empty((count, len(_core.CLICK_FIELDS)), np.int64), np.empty(count, np.int64)
        offsets = np.empty(count + 1, np.int64) if self.sequences else None
        items = np.empty(count * _core.CLICK_HISTORY, np.int64) if self.sequences else None
        self._core.fill(first, raw, labels, truth, numeric, ids, times, offsets, items)
        history = None
        if offsets is not None and items is not None:
            history = Ragged(items[: offsets[-1]].copy(), offsets)
        return _Columns(labels, truth, numeric, ids, times, history)

    def _write(
        self,
        path: Path,
        open_writer: Callable[[Path, pa.Schema], AbstractContextManager[Any]],
        *,
        joined: bool,
    ) -> None:
        """Stream block after block into a temporary file and rename it to `path` when it is complete."""
        temporary = path.with_name(path.name + ".part")
        tables = self._tables(joined=joined)
        table = next(tables)
        try:
            with open_writer(temporary, table.schema) as writer:
                writer.write_table(table)
                for table in tables:
                    writer.write_table(table)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _tables(self, *, joined: bool) -> Iterator[pa.Table]:
        for i in range(self.blocks()):
            yield _table(self._columns(*self._range(i), raw=True), joined=joined)


def click_schema(sequences: bool = False) -> Schema:
    features: list[Feature] = [Numeric(name, transform="log1p", missing="zero") for name in NUMERICS]
    features += [Categorical(name) for name in _core.CLICK_FIELDS]
    if sequences:
        features.append(Sequence("history", max_len=_core.CLICK_HISTORY, share_embedding="ad_topic"))
    return Schema(tuple(features), labels=(Label("click"),), time="time", group="user")


def _table(columns: _Columns, *, joined: bool) -> pa.Table:
    import pyarrow as pa
    from pyarrow import compute

    arrays = {"click": pa.array(columns.labels_B.astype(np.int8)), "time": pa.array(columns.times_B)}
    for k, name in enumerate(_core.CLICK_FIELDS):
        arrays[name] = pa.array(np.ascontiguousarray(columns.ids_BF[:, k]))
    for k, name in enumerate(NUMERICS):
        arrays[name] = pa.array(
            np.ascontiguousarray(columns.numeric_BN[:, k]), from_pandas=True
        )  # NaN is null
    if columns.history is not None:
        items = pa.array(columns.history.ids)
        offsets = pa.array(columns.history.offsets.astype(np.int32))
        if joined:
            texts = pa.ListArray.from_arrays(offsets, items.cast(pa.string()))
            arrays["history"] = compute.binary_join(texts, "|")
        else:
            arrays["history"] = pa.ListArray.from_arrays(offsets, items)
    return pa.table(arrays)
