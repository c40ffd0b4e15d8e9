"""`gearshift predict`: one probability per example, streamed to a file that appears when it is complete."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift.cli import terminal
from gearshift.cli.arguments import Opened, keeping, open_files, open_model, settings_and_others
from gearshift.errors import UserError, naming_output

if TYPE_CHECKING:
    import pyarrow as pa

    from gearshift.data.missing_columns import MissingColumnsMode

_COMPRESSION = {".gz": "gzip", ".zst": "zstd"}
_JSON = (".jsonl", ".ndjson")


def predict(
    run: str,
    arguments: list[str],
    output: Path,
    *,
    keep: list[str],
    missing_columns: MissingColumnsMode = "fail",
) -> None:
    """`arguments` are files, and settings that define how they are read."""
    settings, paths = settings_and_others(arguments, "predict", ("csv", "format"))
    if not paths:
        raise UserError(f"add the data to predict on: gearshift predict {run} DATA -o {output}")
    check_output(output, paths)
    opened = open_model(run, settings)
    schema = dataclasses.replace(keeping(opened.schema, *keep), time=None, group=None, weight=None)
    why_all = "each example gets a score"
    dataset = open_files(
        paths, schema, opened.config, labelled=False, why_all=why_all, missing_columns=missing_columns
    )
    names = score_names(opened, schema.keep)
    count = 0
    with writing(output) as writer:
        for batch, probabilities_BT in opened.predictions(dataset, corrected=True):
            writer.write(_table(batch.kept, names, probabilities_BT))
            count += len(batch)
    columns = ", ".join((*schema.keep, *names))
    terminal.say(f"Wrote {output}: {terminal.count(count)} examples ({columns})")


def score_names(opened: Opened, keep: tuple[str, ...]) -> list[str]:
    """`score`, or one name per task."""
    tasks = [label.task for label in opened.schema.labels]
    names = ["score"] if len(tasks) == 1 else [f"score_{task}" for task in tasks]
    for name in names:
        if name in keep:
            raise UserError(
                f"the data's column `{name}` conflicts with the model's output; remove it from keep"
            )
    return names


def _table(kept: pa.Table | None, names: list[str], probabilities_BT: Any) -> pa.Table:
    import pyarrow as pa

    columns = {} if kept is None else {name: kept.column(name) for name in kept.column_names}
    scores = {name: pa.array(probabilities_BT[:, t]) for t, name in enumerate(names)}
    return pa.table({**columns, **scores})


def check_output(output: Path, inputs: list[str]) -> None:
    """Check the output path before the model is loaded."""
    if _ending(output) not in (".csv", ".parquet", *_JSON):
        raise UserError(
            f"cannot write {output}: use a .csv, .jsonl (both also with .gz or .zst) or .parquet file"
        )
    if any(output.resolve() == Path(path).resolve() for path in inputs):
        raise UserError(f"cannot write {output}: it is the input data; choose another file")
    if not output.absolute().parent.is_dir():
        raise UserError(f"cannot write {output}: there is no folder {output.parent}/")


def _ending(output: Path) -> str:
    return Path(output.stem).suffix if output.suffix in _COMPRESSION else output.suffix


class ScoreWriter:
    """Opens the file with the first table, and takes its columns."""

    def __init__(self, path: Path, output: Path) -> None:
        self.path, self.output = path, output
        self._open: Any = None
        self._stream: Any = None

    def write(self, table: pa.Table) -> None:
        with naming_output(self.output):
            if self._open is None:
                self._start(table.schema)
            self._open.write_table(table)

    def _start(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import csv, parquet

        if _ending(self.output) == ".parquet":
            self._open = parquet.ParquetWriter(self.path, schema)
        else:
            self._stream = pa.output_stream(self.path, compression=_COMPRESSION.get(self.output.suffix))
        if _ending(self.output) in _JSON:
            self._open = _JsonLines(self._stream)
        elif self._stream is not None:
            plain = csv.WriteOptions(quoting_style="needed")
            self._open = csv.CSVWriter(self._stream, schema, write_options=plain)

    def close(self) -> None:
        for part in (self._open, self._stream):
            if part is not None:
                part.close()


class _JsonLines:
    """One object per example."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write_table(self, table: pa.Table) -> None:
        lines = (json.dumps(row, ensure_ascii=False) for row in table.to_pylist())
        self._stream.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """The stream is closed by the code that opened it."""


@contextmanager
def writing(output: Path) -> Iterator[ScoreWriter]:
    """Write to a temporary file and rename it to `output`. Nothing is left behind on failure."""
    from gearshift.data.prepare import sync

    temporary = output.with_name(f".{output.name}.{os.getpid()}.part")
    writer = ScoreWriter(temporary, output)
    try:
        yield writer
        with naming_output(output):
            writer.close()
            sync(temporary)
            temporary.replace(output)
    except BaseException:
        with suppress(OSError):  # the error is already being raised
            writer.close()
        raise
    finally:
        with suppress(OSError):  # a read-only disk fails even if the file does not exist
            temporary.unlink(missing_ok=True)
