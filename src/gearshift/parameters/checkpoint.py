"""Checkpoints on disk: safetensors files and a JSON manifest in one folder, either complete or absent.

A checkpoint is written under a temporary name, synced, and renamed. Rows are in row files (csrc/row_file.h), which
checkpoints of stores with rows on disk share by links; the manifest has their size, their checksum, the stack that they
belong to, and their age in it (0 is the newest). Of other files it has the size and SHA-256. Earlier versions wrote
rows as safetensors, which can still be read. No pickle is ever read or written. This module handles arrays and facts
without knowing their meaning; `training/learner.py` defines the contents of a model's checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from gearshift._core import RowFileError
from gearshift.embedding import row_files, row_rules
from gearshift.embedding.row_files import NO_IDS, PartitionChanges
from gearshift.embedding.store import RowBlock, RowStack, StoreSnapshot
from gearshift.errors import UserError, naming
from gearshift.parameters.part_folder import written_beside
from gearshift.parameters.row_changes import by_partition

FORMAT = 1  # without row files: models without rows, and rows as safetensors, which earlier versions wrote
FORMAT_WITH_ROW_FILES = 2
FORMAT_DELTA = 4  # run/delta.py: it has only the rows that changed
MANIFEST = "manifest.json"
ROWS = {
    "ids": "ids_U",
    "weights": "weights_UW",
    "state": "state_US",
    "touches": "touches_U",
    "last_step": "last_step_U",
    "updates": "updates_U",
    "tables": "tables_U",  # absent in checkpoints of older versions
}  # name in a safetensors file of format 1, and field of `RowBlock`

FULL = (FORMAT, FORMAT_WITH_ROW_FILES)

Arrays = Mapping[str, NDArray[Any]]
Files = Mapping[str, dict[str, Any]]  # by name: bytes and sha256


class DamagedCheckpoint(UserError):
    """A file of the checkpoint or delta at `path` is damaged or missing; `what` says which."""

    def __init__(self, path: Path, what: str, *, is_delta: bool = False) -> None:
        self.path, self.what = path, what
        advice = "copy the delta again, or write it again" if is_delta else "use another checkpoint"
        super().__init__(f"{'delta' if is_delta else 'checkpoint'} {path}: {what}; {advice}")


def write(
    path: Path,
    facts: Mapping[str, Any],
    arrays: Mapping[str, Arrays],
    rows: Mapping[str, StoreSnapshot | Iterable[RowBlock]],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write the folder `path`: a file for each name in `arrays`, files for each store in `rows`, and the manifest.

    Blocks of rows must come in the order of their partitions.
    `check` is called just before the checkpoint appears, and may raise.
    """
    with written_beside(path) as temporary:
        files: dict[str, dict[str, Any]] = {}
        for name, of_store in rows.items():
            files |= write_rows(temporary, name, of_store)
        finish(temporary, path, facts, arrays, files, check)


def write_rows(
    folder: Path, name: str, rows: StoreSnapshot | Iterable[RowBlock], layout: int = row_files.ANY_LAYOUT
) -> Files:
    """Write rows of the store `name`, or of its part `name-...`. Returns the manifest entries by file name.

    Blocks must come in the order of their partitions; `layout` is that of their store.
    """
    if isinstance(rows, StoreSnapshot):
        return _write_snapshot(folder, name, rows)
    written = (PartitionChanges(number, block, NO_IDS) for number, block in by_partition(rows))
    return entries(row_files.write_changes(folder, name, written, layout))


def _write_snapshot(folder: Path, name: str, rows: StoreSnapshot) -> Files:
    files, rules = dict(entries(rows.write_files(folder, name))), rows.rules()
    if rules is not None:
        file = _save(folder / f"{_rules_of(name)}-state.safetensors", rules)
        files[file.name] = _fingerprint(file)
    return files


def _rules_of(name: str) -> str:
    """The name of the files with the state of a store's rules: rules0-s1 for rows0-s1."""
    return name.replace("rows", "rules")


def entries(stacks: list[RowStack]) -> Files:
    """The manifest entries of row files."""
    return {
        file.name: {
            "bytes": file.stat().st_size,
            "checksum": row_files.checksum(file),
            "stack": stack.name,
            "age": age,
        }
        for stack in stacks
        for age, file in enumerate(stack.files)
    }


def finish(
    temporary: Path,
    path: Path,
    facts: Mapping[str, Any],
    arrays: Mapping[str, Arrays],
    files: Files,
    check: Callable[[], None] = lambda: None,
    version: int | None = None,
) -> None:
    """Add arrays and manifest to the rows in `temporary`, and rename it to the checkpoint `path`."""
    saved = [_save(temporary / f"{name}.safetensors", content) for name, content in arrays.items()]
    fingerprints = {file.name: _fingerprint(file) for file in saved} | dict(files)
    with_row_files = any("stack" in entry for entry in fingerprints.values())
    version = version or (FORMAT_WITH_ROW_FILES if with_row_files else FORMAT)
    content = {"format": version, "facts": dict(facts), "files": fingerprints}
    manifest = content | {"sha256": _digest(content)}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    _sync(temporary)
    check()
    _put_in_place(temporary, path)


def _put_in_place(temporary: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        path.rename(old)
    temporary.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _save(path: Path, arrays: Arrays) -> Path:
    """Save with an ordinary Python file, so that disk errors and umask behave as usual."""
    path.write_bytes(save({k: np.asarray(v, order="C") for k, v in arrays.items()}))
    return path


def _digest(content: Mapping[str, Any]) -> str:
    """The digest of the manifest itself. JSON turns tuples into lists, so it is encoded and decoded first."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _fingerprint(path: Path) -> dict[str, Any]:
    with naming(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _is_as_written(file: Path, expected: Mapping[str, Any]) -> bool:
    if "stack" not in expected:
        return _fingerprint(file) == expected
    try:
        return (file.stat().st_size, row_files.checksum(file)) == (expected["bytes"], expected["checksum"])
    except RowFileError:
        return False


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Its manifest was read, and every `wanted` file is present and complete."""

    path: Path
    facts: dict[str, Any]
    files: Files
    is_delta: bool = False

    @staticmethod
    def open(
        path: Path, wanted: Callable[[str], bool] = lambda name: True, formats: tuple[int, ...] = FULL
    ) -> Checkpoint:
        """Open a checkpoint. Files that are not `wanted` are neither checked nor included."""
        manifest = _read_manifest(path, formats)
        is_delta = manifest["format"] == FORMAT_DELTA
        files = {name: expected for name, expected in manifest["files"].items() if wanted(name)}
        for name, expected in files.items():
            file = path / name
            if not file.is_file():
                raise DamagedCheckpoint(path, f"{name} is missing", is_delta=is_delta)
            if not _is_as_written(file, expected):
                raise DamagedCheckpoint(path, f"{name} is corrupt (its checksum differs)", is_delta=is_delta)
        return Checkpoint(path, manifest["facts"], files, is_delta)

    def has(self, name: str) -> bool:
        return f"{name}.safetensors" in self.files

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        path = self.path / f"{name}.safetensors"
        with naming(path), safe_open(path, framework="numpy") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)

    def rows(self, name: str) -> Iterator[RowBlock]:
        rules = self.rules(name)
        for block in self._stored_rows(name):
            alive = row_rules.living(block, rules[0]) if rules else block
            if len(alive.ids_U):
                yield alive

    def rules(self, name: str) -> list[row_rules.RuleState]:
        """The states of admission and expiry of the store `name`, one for each shard that saved it."""
        files = [f for f in self.files if f.startswith(f"{_rules_of(name)}-") and _rules_of(name) != name]
        return [self.arrays(file.removesuffix(".safetensors")) for file in sorted(files, key=_in_order)]

    def _stored_rows(self, name: str) -> Iterator[RowBlock]:
        """With rows that have ended but were not removed yet."""
        tables = [f for f in self.files if f.startswith(f"{name}-") and f.endswith(".safetensors")]
        for file in sorted(tables, key=_in_order):
            loaded = self.arrays(file.removesuffix(".safetensors"))
            yield RowBlock(**{field: loaded[name] for name, field in ROWS.items() if name in loaded})
        for stack in self.stacks(name):
            with self.naming_damage():
                yield from row_files.blocks_of(stack)

    def stacks(self, name: str) -> list[RowStack]:
        """The row files of the store `name`. Their blocks are verified when they are read."""
        ages: dict[str, dict[int, Path]] = {}
        for file, entry in self.files.items():
            if file.startswith(f"{name}-") and "stack" in entry:
                ages.setdefault(entry["stack"], {})[entry["age"]] = self.path / file
        return [
            RowStack(stack, tuple(files[age] for age in sorted(files)))
            for stack, files in sorted(ages.items(), key=lambda each: _in_order(each[0]))
        ]

    def row_changes(self, name: str) -> Iterator[PartitionChanges]:
        """The rows and tombstones of the store `name`, if this is a delta."""
        for stack in self.stacks(name):
            with self.naming_damage():
                yield from row_files.changes_in(stack)

    def layout(self, name: str) -> int:
        """That of the store `name`."""
        with self.naming_damage():
            layouts = {row_files.layout_of(stack) for stack in self.stacks(name)}
        return layouts.pop() if len(layouts) == 1 else row_files.ANY_LAYOUT

    @contextmanager
    def naming_damage(self) -> Iterator[None]:
        """Raises a `DamagedCheckpoint` if a row file is damaged."""
        try:
            yield
        except RowFileError as error:
            what = str(error).replace(f"{self.path}/", "")
            raise DamagedCheckpoint(self.path, what, is_delta=self.is_delta) from None


def _in_order(name: str) -> list[int]:
    """Sorts names by their numbers: those of shard 10 come after those of shard 9."""
    return [int(number) for number in re.findall(r"\d+", name)]


def read_facts(path: Path) -> dict[str, Any]:
    """The facts in the manifest. No other file is read."""
    return dict(_read_manifest(path)["facts"])


def _read_manifest(path: Path, formats: tuple[int, ...] = FULL) -> dict[str, Any]:
    wants_delta = formats == (FORMAT_DELTA,)
    try:
        with naming(path / MANIFEST):
            manifest = json.loads((path / MANIFEST).read_text())
        version, _, _ = int(manifest["format"]), manifest["facts"], manifest["files"]
    except (FileNotFoundError, NotADirectoryError):
        kind = "delta, which gearshift delta writes" if wants_delta else "checkpoint"
        raise UserError(f"{path} is not a {kind}: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError):
        what = f"{MANIFEST} is not a Gearshift manifest"
        raise DamagedCheckpoint(path, what, is_delta=wants_delta) from None
    if version == FORMAT_DELTA and version not in formats:
        raise UserError(f"{path} is a delta: apply it to its base first, with gearshift apply-delta")
    if version not in formats and version in (*FULL, FORMAT_DELTA):
        raise UserError(f"{path} is a checkpoint, not a delta")
    if version not in formats:
        age = "newer" if version > FORMAT_DELTA else "older"
        raise UserError(
            f"checkpoint {path} has format {version}, {age} than this version of Gearshift reads "
            f"({FORMAT} to {FORMAT_WITH_ROW_FILES}); "
            f"load it with the version that wrote it"
        )
    if manifest.pop("sha256", None) != _digest(manifest):
        what = f"{MANIFEST} is corrupt (its checksum differs)"
        raise DamagedCheckpoint(path, what, is_delta=version == FORMAT_DELTA)
    return dict(manifest)


class CheckpointFolder:
    """The checkpoints of one run: `step-600`, ..., and the links `last` and `best`."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def has(self, step: int) -> bool:
        return (self.path(step) / MANIFEST).is_file()

    def take_over(self, other: Path) -> Path:
        """Add another run's checkpoint to this folder. Its files never change, so both runs can share them."""
        here = self.folder / other.name
        if not here.exists():
            temporary = self.folder / f".{other.name}.{os.getpid()}.part"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for file in other.iterdir():
                row_files.link_or_copy(file, temporary / file.name)
            _sync(temporary)
            temporary.rename(here)
            _sync_folder(self.folder)
        return here

    def link(self, name: str, target: Path) -> None:
        """Point `last` or `best` to a checkpoint, atomically."""
        temporary = self.folder / f".{name}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target.name)
        temporary.replace(self.folder / name)

    def prune(self) -> None:
        """Remove all but the newest `keep` checkpoints and those that a link points to."""
        linked = {(self.folder / name).resolve() for name in ("last", "best")}
        steps = sorted(self.folder.glob("step-*"), key=lambda p: int(p.name.removeprefix("step-")))
        for path in steps[: -self.keep]:
            if path.resolve() not in linked:
                shutil.rmtree(path)


def resolve(path: Path) -> Path:
    """The checkpoint for a user's path: a checkpoint, a saved model, or a run folder (its best, else its last)."""
    if (path / MANIFEST).is_file():
        return path.resolve()
    for name in ("best", "last"):
        if (path / "checkpoints" / name / MANIFEST).is_file():
            return (path / "checkpoints" / name).resolve()
    if (path / "checkpoints").is_dir():
        raise UserError(f"run {path} has no checkpoint yet")
    raise UserError(f"{path} is neither a run folder, a checkpoint nor a saved model")
