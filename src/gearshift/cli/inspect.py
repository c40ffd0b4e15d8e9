"""`gearshift inspect`: shows the contents of a run, a config, a checkpoint or a prepared folder. Read-only."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gearshift.cli import terminal
from gearshift.cli.arguments import MANIFEST
from gearshift.cli.runs import figures
from gearshift.config import load_config
from gearshift.data.schema import Bucketized, Feature, Numeric, Schema, Vector
from gearshift.errors import UserError
from gearshift.run import catalog
from gearshift.run import folder as run_folder

UP_TO = "up to "
PARTS = ("train", "valid", "test")  # of what `gearshift prepare` writes


def inspect(what: str, settings: list[str], *, rows: bool = False, json_file: Path | None = None) -> None:
    path = Path(what)
    if rows:
        return _rows(what, settings, json_file)
    if json_file is not None:
        raise UserError("--json writes the counts of rows: add --rows")
    if path.suffix in (".yaml", ".yml"):
        return _config(path, settings)
    if settings:
        raise UserError(f"settings apply to a config, but {what} is not one")
    if (path / MANIFEST).is_file():
        return _folder(path)
    if parts := _parts(path):
        return _prepared_parts(path, parts)
    found = catalog.find_model(what)
    return _folder(found) if (found / MANIFEST).is_file() else _run(found)


def _rows(what: str, settings: list[str], json_file: Path | None) -> None:
    from gearshift.cli.row_counts import show_rows

    if settings or Path(what).suffix in (".yaml", ".yml"):
        raise UserError(
            "--rows counts the rows of a run or a checkpoint, and takes no config and no settings"
        )
    show_rows(what, json_file)


def _config(path: Path, settings: list[str]) -> None:
    config = load_config(path, settings)
    schema = config.schema()
    if schema is not None:
        terminal.say(schema_table(schema, config.model.settings().get("dim")))
        terminal.say()
    terminal.say(config.to_yaml().rstrip())


def _run(folder: Path) -> None:
    record = run_folder.read(folder)
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started))
    terminal.say(f"run       {folder}")
    why = record.reason or record.standing.what
    terminal.say(f"state     {record.state}{f' ({why})' if why else ''}, started {started}")
    terminal.say(f"command   {record.command}")
    known = figures(folder)
    shown = ("model", "step", "examples", "examples_per_second", "auc", "logloss")
    pairs = [f"{key} {_short(known[key])}" for key in shown if known.get(key) is not None]
    if pairs:
        terminal.say(f"metrics   {'  '.join(pairs)}")
    if known.get("embedding_rows") is not None:
        terminal.say(f"memory    {memory_text(known)}")
    if tier := known.get("tier"):
        terminal.say("\n".join(tier_lines(tier, known.get("examples"))))
    if known.get("row_rules"):
        from gearshift.embedding.rule_figures import rules_text

    for table, counts in (known.get("row_rules") or {}).items():
        terminal.say(f"rows of   {table}: {rules_text(counts)}")
    _checkpoints(folder / "checkpoints")


def memory_text(known: dict[str, Any]) -> str:
    """`57,275 of 476,342 embedding rows in 16.2 MB`: with a disk tier, those that are in memory."""
    rows, size, counted = known["embedding_rows"], known["embedding_bytes"], known.get("sketch_bytes") or 0
    beside = f", and {terminal.size(counted)} to count ids for min_count" if 0 < counted < size else ""
    size -= counted if beside else 0
    if tier := known.get("tier"):
        hot = tier["hot_rows"]
        if hot > rows:
            expired = f"and {terminal.count(hot - rows)} or more that have expired and are not freed yet,"
            return f"{terminal.count(rows)} embedding rows, {expired} in {terminal.size(size)}{beside}"
        return (
            f"{terminal.count(hot)} of {terminal.count(rows)} embedding rows in {terminal.size(size)}{beside}"
        )
    each = f" ({size / rows:.0f} bytes each)" if rows else ""
    return f"{terminal.count(rows)} embedding rows in {terminal.size(size)}{each}{beside}"


def tier_lines(tier: dict[str, Any], examples: int | None) -> Iterator[str]:
    """The figures of the disk tier. Runs of earlier versions lack some."""
    yield (
        f"tiers     {terminal.count(tier['hot_rows'])} rows in memory, {terminal.count(tier['cold_rows'])} on disk "
        f"({terminal.size(tier['file_bytes'])} in {terminal.count(tier['files'])} files); "
        f"{tier['hit_rate']:.1%} of lookups found in memory; "
        f"space {tier['space']:.2f}, write amplification {tier['write_amplification']:.2f}"
    )
    if not examples or not tier["reads"]:
        return
    each = terminal.size(tier["bytes_read"] // tier["reads"])
    yield (
        f"disk      {tier['reads'] / examples:.2f} reads of {each} per example, "
        f"{tier['rows_read'] / tier['reads']:.2f} rows per read{_depth(tier)}; "
        f"{terminal.size(tier['bytes_written'])} written"
    )
    if any(counts["loads"] for counts in tier.get("tables", {}).values()):
        yield lookup_table(tier["tables"])


def lookup_table(tables: dict[str, Any]) -> str:
    """How many rows of each table batches asked for, and where they were; without those that no row was read for."""
    heads = ("rows of", "asked for", "in memory", "read from disk")
    rows = [
        (
            terminal.features(counts["features"]),
            terminal.count(counts["lookups"]),
            terminal.percent(counts["hit_rate"]),
            terminal.count(counts["loads"]),
        )
        for counts in sorted(tables.values(), key=lambda counts: -counts["loads"])
        if counts["loads"]
    ]
    return terminal.table(heads, rows, right="lrrr", indent=len("disk      "))


def _depth(tier: dict[str, Any]) -> str:
    return f", {tier['queue_depth']:.0f} reads in flight" if tier.get("queue_depth") else ""


def _short(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 10:
        return terminal.figure(value)
    return terminal.count(value) if isinstance(value, int | float) else str(value)


def _checkpoints(folder: Path) -> None:
    links = {name: (folder / name).resolve() for name in ("last", "best") if (folder / name).is_symlink()}
    for path in sorted(folder.glob("step-*"), key=lambda p: (len(p.name), p.name)):
        names = [name for name, target in links.items() if target == path.resolve()]
        size = terminal.size(sum(file.stat().st_size for file in path.iterdir()))
        terminal.say(f"saved     {path}  {size}{'  = ' + ', '.join(names) if names else ''}")
    newest = links.get("best") or links.get("last")
    if newest is not None and (newest / MANIFEST).is_file():
        terminal.say()
        _folder(newest)


def _folder(path: Path) -> None:
    """A checkpoint, a saved model or prepared data. Each has a manifest."""
    manifest = _manifest(path)
    if "facts" in manifest:
        return _checkpoint(path, manifest)
    return _prepared(path, manifest)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except ValueError:
        raise UserError(f"{path / MANIFEST} is damaged; the folder cannot be used") from None
    if not isinstance(manifest, dict) or not {"facts", "schema"} & manifest.keys():
        raise UserError(f"{path / MANIFEST} was not written by Gearshift")
    return manifest


def _checkpoint(path: Path, manifest: dict[str, Any]) -> None:
    facts = manifest["facts"]
    terminal.say(f"checkpoint {path}  format {manifest['format']}, step {terminal.count(facts['step'])}")
    terminal.say(f"model      {facts['model']['text']}")
    rows = list(_stored_rows(path, manifest["files"]))
    heads = ("rows of", "rows", "width", "state", "in the file")
    if rows:
        terminal.say(terminal.table(heads, rows, right="lrrrr"))
    if any(count.startswith(UP_TO) for _, count, *_ in rows):
        terminal.say(
            "up to: older copies of rows are counted too; gearshift inspect --rows counts each row once"
        )
    terminal.say()
    terminal.say(schema_table(_schema(facts["schema"]), facts["model"]["params"].get("dim")))


def _stored_rows(path: Path, files: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One line per store, from the headers of its files: `rows0-00-000.gsr`, or safetensors of earlier versions."""
    stores: dict[str, list[str]] = {}
    for name in sorted(files):
        store = re.match(r"((?:baseline-)?rows\d+)-", name)
        if store:
            stores.setdefault(store[1], []).append(name)
    for store_name, names in stores.items():
        contents = [_rows_in(path / name) for name in names]
        count = terminal.count(sum(rows for rows, _, _ in contents))
        row_files = [name for name in names if name.endswith(".gsr")]
        if len({name.rpartition("-")[0] for name in row_files}) < len(
            row_files
        ):  # files of a stack may share rows
            count = f"{UP_TO}{count}"
        size = sum(files[name]["bytes"] for name in names)
        _, width, state = contents[0]
        yield store_name, count, str(width), str(state), terminal.size(size)


def _rows_in(file: Path) -> tuple[int, int, int]:
    """Rows (in row files of a store with rows on disk, stale copies count too), and floats of weights and state."""
    if file.suffix == ".gsr":
        from gearshift import _core

        content = _core.RowStack([str(file)])
        return content.records, content.width, content.state_width
    shapes = safetensors_shapes(file)
    return shapes["ids"][0], shapes["weights"][1], shapes["state"][1]


def safetensors_shapes(path: Path) -> dict[str, list[int]]:
    """Read from the header of the file: 8 bytes of length, then JSON (see the format's specification)."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    return {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}


def _prepared(path: Path, manifest: dict[str, Any]) -> None:
    size = terminal.size(_parquet_bytes(path))
    terminal.say(f"prepared   {path}  {terminal.count(manifest['examples'])} examples, {size}")
    terminal.say(schema_table(_schema(manifest["schema"]), None))


def _parts(path: Path) -> dict[Path, dict[str, Any]]:
    """The prepared parts in a folder, with their manifests."""
    present = [path / name for name in PARTS if (path / name / MANIFEST).is_file()]
    manifests = {part: _manifest(part) for part in present}
    return {part: manifest for part, manifest in manifests.items() if "facts" not in manifest}


def _prepared_parts(path: Path, parts: dict[Path, dict[str, Any]]) -> None:
    """All parts that `gearshift prepare` wrote. They share one schema, fitted on the training data."""
    examples = terminal.count(sum(manifest["examples"] for manifest in parts.values()))
    terminal.say(f"prepared   {path}  {examples} examples, {terminal.size(_parquet_bytes(path))}")
    rows = [_part_row(part, manifest) for part, manifest in parts.items()]
    terminal.say(terminal.table(("part", "examples", "time", "size"), rows, right="lrlr"))
    terminal.say()
    terminal.say(schema_table(_schema(next(iter(parts.values()))["schema"]), None))


def _part_row(part: Path, manifest: dict[str, Any]) -> tuple[str, ...]:
    from gearshift.data.split import days_in_words

    days = days_in_words(*manifest["time_range"]) if manifest.get("time_range") else "-"
    return part.name, terminal.count(manifest["examples"]), days, terminal.size(_parquet_bytes(part))


def _parquet_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.parquet"))


def _schema(values: dict[str, Any]) -> Schema:
    schema: Schema = Schema.from_dict(values)
    return schema


def schema_table(schema: Schema, dim: int | None) -> str:
    rows = [_feature_row(schema, feature, dim) for feature in schema.features]
    labels = ", ".join(label.column for label in schema.labels)
    others = [f"{key} {getattr(schema, key)}" for key in ("time", "group", "weight") if getattr(schema, key)]
    features = terminal.table(("feature", "type", "table", "width", ""), rows, right="lllr")
    return "\n".join([f"label {labels}", *others, "", features])


def _feature_row(schema: Schema, feature: Feature, dim: int | None) -> tuple[str, ...]:
    kind = type(feature).__name__.lower()
    if isinstance(feature, Numeric):
        return feature.name, kind, "-", "1", "" if feature.transform == "none" else feature.transform
    if isinstance(feature, Vector):
        return feature.name, kind, "-", str(feature.size), ""
    width = feature.dim or dim
    detail = ""
    if isinstance(feature, Bucketized):
        detail = str(feature.buckets if isinstance(feature.buckets, int) else list(feature.buckets))
    elif schema.table(feature) != feature.name:
        detail = f"shares {schema.table(feature)}"
    return feature.name, kind, schema.table(feature), str(width or "model's"), detail
