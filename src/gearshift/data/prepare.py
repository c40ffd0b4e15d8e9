"""Prepared data: Parquet with precomputed ids and numbers, and a manifest. Reading it only decompresses and copies.

    folder/manifest.json          format version, schema (fitted), examples, time range, files
    folder/part-00000.parquet     row groups of 8 Ki examples; columns
        label.<task>  numeric.<name>  vector.<name>  id.<name>  ids.<name>  time  weight  group  keep.<name>

Prepared examples equal those read from the raw files bit for bit. The folder is written under a temporary name and
renamed, so it is either complete or absent.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gearshift.data.batch import Batch
from gearshift.data.encode import Encoder, RawBlock
from gearshift.data.examples import Examples, RawExamples
from gearshift.data.readers.bad_lines import lines_lost
from gearshift.data.schema import Schema, Vector
from gearshift.data.value_forms import observed_forms
from gearshift.errors import UserError

if TYPE_CHECKING:
    from gearshift.data.dataset import Dataset

FORMAT_VERSION = 1
GROUP_EXAMPLES = 8_192  # the unit that a worker decodes if it shares the log with many others
FILE_GROUPS = 512
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class PreparedInfo:
    folder: Path
    examples: int
    bytes: int
    skipped: int  # bad lines that were skipped


def prepare(dataset: Dataset, folder: str | Path, *, overwrite: bool = False) -> PreparedInfo:
    """Write a data set as Parquet with precomputed ids. `read(folder)` then feeds training at full speed."""
    target = Path(folder)
    if target.exists() and any(target.iterdir()) and not (overwrite and (target / MANIFEST).exists()):
        raise UserError(f"{target} exists and is not empty; remove it, or choose another folder.")
    fitted = dataset.fitted()
    temporary = target.parent / f".{target.name}.{os.getpid()}.partial"
    temporary.mkdir(parents=True)
    try:
        manifest = _write_parts(fitted.examples, temporary)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1))
        put_in_place(temporary, target)
    except OSError as error:
        raise UserError(
            f"cannot write {target}: {error.strerror or error}; nothing was left behind."
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    size = sum(part.stat().st_size for part in target.iterdir())
    return PreparedInfo(target, manifest["examples"], size, lines_lost(fitted.skipped))


def put_in_place(new: Path, target: Path) -> None:
    """Move a folder that was written next to `target` into place, once all of it is on disk."""
    for path in [*new.rglob("*"), new]:
        sync(path)
    old = target.parent / f".{target.name}.{os.getpid()}.old"
    if target.exists():
        target.rename(old)
    new.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, so that they survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_parts(examples: Examples, folder: Path) -> dict[str, Any]:
    from gearshift.data.reading_order import cut

    writer: pq.ParquetWriter | None = None
    files: list[dict[str, Any]] = []
    times: list[int] = []
    groups = 0
    try:
        for batch in cut(_encoded(examples), GROUP_EXAMPLES):
            table = to_table(batch, examples.schema)
            if writer is None:
                name = f"part-{len(files):05d}.parquet"
                files.append({"name": name, "examples": 0})
                writer = _writer(folder / name, table.schema)
            writer.write_table(table, row_group_size=GROUP_EXAMPLES)
            files[-1]["examples"] += len(batch)
            if batch.times_B is not None:
                times += [int(batch.times_B.min()), int(batch.times_B.max())]
            groups += 1
            if groups % FILE_GROUPS == 0:
                writer.close()
                writer = None
    finally:
        if writer is not None:
            writer.close()
    if not files:
        raise UserError("there are no examples to prepare: the data is empty.")
    return {
        "format": "gearshift-prepared",
        "version": FORMAT_VERSION,
        "examples": sum(file["examples"] for file in files),
        "time_range": [min(times), max(times)] if times else None,
        "files": files,
        "schema": replace(examples.schema, forms=observed_forms(examples)).to_dict(),
    }


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer with general compression. Dictionary and delta encoding do not help with hashed ids."""
    return pq.ParquetWriter(
        path, schema, compression="lz4", use_dictionary=False, write_statistics=False, data_page_size=1 << 20
    )


def _encoded(examples: Examples) -> Iterator[Batch]:
    """All examples, in order. Raw files are converted on all cores."""
    if not isinstance(examples, RawExamples):
        yield from examples.blocks(0)
        return
    encoder = Encoder(examples.schema, examples.bad_lines, labelled=examples.labelled)
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers, "gearshift-prepare") as pool:
        waiting: list[Any] = []
        for block, _ in examples.raw_blocks(None):
            waiting.append(pool.submit(_encode, encoder, block))
            if len(waiting) > workers:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()


def _encode(encoder: Encoder, block: RawBlock) -> Batch:
    return encoder.encode(block)


def to_table(batch: Batch, schema: Schema) -> pa.Table:
    """A batch as named columns."""
    columns: dict[str, Any] = {}
    for task, label in enumerate(schema.labels):
        columns[f"label.{label.task}"] = pa.array(np.ascontiguousarray(batch.labels_BT[:, task]))
    at = 0
    for feature in schema.numerics:
        width = feature.size if isinstance(feature, Vector) else 1
        values = pa.array(np.ascontiguousarray(batch.numeric_BN[:, at : at + width]).ravel())
        if isinstance(feature, Vector):
            columns[f"vector.{feature.name}"] = pa.FixedSizeListArray.from_arrays(values, width)
        else:
            columns[f"numeric.{feature.name}"] = values
        at += width
    for i, field in enumerate(schema.single_fields):
        columns[f"id.{field.name}"] = pa.array(np.ascontiguousarray(batch.ids_BF[:, i]))
    for ragged, several in zip(batch.ragged, schema.ragged_fields, strict=True):
        columns[f"ids.{several.name}"] = pa.LargeListArray.from_arrays(
            pa.array(ragged.offsets), pa.array(ragged.ids)
        )
    for name, array in (("time", batch.times_B), ("weight", batch.weights_B), ("group", batch.groups_B)):
        if array is not None:
            columns[name] = pa.array(array)
    if batch.kept is not None:
        columns |= {f"keep.{name}": batch.kept.column(name) for name in schema.keep}
    return pa.table(columns)
