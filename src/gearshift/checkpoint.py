"""Checkpoints on disk: safetensors files and a JSON manifest in one folder, whole or not there at all.

A checkpoint is written beside its final name, synced, and renamed; every file's size and SHA-256 stand in the
manifest. No pickle is ever read or written. This file knows arrays and facts, not what they mean: `learner.py`
says what a model's checkpoint holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from gearshift.embedding.store import RowBlock
from gearshift.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
ROWS_FILE_BYTES = 128 << 20

Arrays = Mapping[str, NDArray[Any]]
Files = Mapping[str, dict[str, Any]]  # by name: bytes and sha256


def write(
    path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Arrays], rows: Mapping[str, Iterable[RowBlock]]
) -> None:
    """Writes the folder `path`: a file for each name in `arrays`, files for each store in `rows`, the manifest."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        for name, blocks in rows.items():
            files |= write_rows(beside, name, blocks)
        finish(beside, path, facts, arrays, files)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def write_rows(folder: Path, name: str, blocks: Iterable[RowBlock]) -> Files:
    """Rows of the store `name`, or of its part `name-...`; by file name, what the manifest says of them."""
    return {file.name: _fingerprint(file) for file in _save_rows(folder, name, blocks)}


def finish(
    beside: Path, path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Arrays], files: Files
) -> None:
    """Adds arrays and manifest to the rows that are in `beside`, and makes it the checkpoint `path`."""
    saved = [_save(beside / f"{name}.safetensors", content) for name, content in arrays.items()]
    fingerprints = {file.name: _fingerprint(file) for file in saved} | dict(files)
    content = {"format": FORMAT, "facts": dict(facts), "files": fingerprints}
    manifest = content | {"sha256": _digest(content)}
    (beside / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    _sync(beside)
    _put_in_place(beside, path)


def _put_in_place(beside: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        path.rename(old)
    beside.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _save(path: Path, arrays: Arrays) -> Path:
    """Through Python's own file, so that the disk's errors and the user's umask are as for any other."""
    path.write_bytes(save({k: np.asarray(v, order="C") for k, v in arrays.items()}))
    return path


def _save_rows(folder: Path, name: str, blocks: Iterable[RowBlock]) -> list[Path]:
    files: list[Path] = []
    waiting: list[RowBlock] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += block.weights_UW.nbytes + block.state_US.nbytes
        if size >= ROWS_FILE_BYTES:
            files.append(_save(folder / f"{name}-{len(files):04d}.safetensors", _block_arrays(waiting)))
            waiting, size = [], 0
    if waiting:
        files.append(_save(folder / f"{name}-{len(files):04d}.safetensors", _block_arrays(waiting)))
    return files


def _block_arrays(blocks: list[RowBlock]) -> Arrays:
    return {
        "ids": np.concatenate([b.ids_U for b in blocks]),
        "weights": np.concatenate([b.weights_UW for b in blocks]),
        "state": np.concatenate([b.state_US for b in blocks]),
        "touches": np.concatenate([b.touches_U for b in blocks]),
        "last_step": np.concatenate([b.last_step_U for b in blocks]),
        "updates": np.concatenate([b.updates_U for b in blocks]),
    }


def _digest(content: Mapping[str, Any]) -> str:
    """Of the manifest itself; JSON turns tuples into lists, so it goes there and back first."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


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
    """An opened checkpoint: its manifest was read and every file it names is there, whole."""

    path: Path
    facts: dict[str, Any]
    files: tuple[str, ...]

    @staticmethod
    def open(path: Path) -> Checkpoint:
        manifest = _read_manifest(path)
        for name, expected in manifest["files"].items():
            file = path / name
            if not file.is_file():
                raise UserError(f"checkpoint {path}: {name} is missing; the copy is incomplete")
            if _fingerprint(file) != expected:
                raise UserError(
                    f"checkpoint {path}: {name} is corrupt (its checksum differs); use another checkpoint"
                )
        return Checkpoint(path, manifest["facts"], tuple(manifest["files"]))

    def has(self, name: str) -> bool:
        return f"{name}.safetensors" in self.files

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        with safe_open(self.path / f"{name}.safetensors", framework="numpy") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)

    def rows(self, name: str) -> Iterator[RowBlock]:
        for file in sorted(f for f in self.files if f.startswith(f"{name}-")):
            a = self.arrays(file.removesuffix(".safetensors"))
            yield RowBlock(a["ids"], a["weights"], a["state"], a["touches"], a["last_step"], a["updates"])


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version, _, _ = int(manifest["format"]), manifest["facts"], manifest["files"]
    except FileNotFoundError:
        raise UserError(f"{path} is not a checkpoint: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}/{MANIFEST} is not a Gearshift manifest; use another checkpoint") from None
    if version != FORMAT:
        age = "newer" if version > FORMAT else "older"
        raise UserError(
            f"checkpoint {path} has format {version}, {age} than this version of Gearshift reads ({FORMAT}); "
            f"load it with the version that wrote it"
        )
    if manifest.pop("sha256", None) != _digest(manifest):
        raise UserError(
            f"checkpoint {path}: {MANIFEST} is corrupt (its checksum differs); use another checkpoint"
        )
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
        """Another run's checkpoint, here too: its files never change, so both may own them."""
        here = self.folder / other.name
        if not here.exists():
            beside = self.folder / f".{other.name}.{os.getpid()}.part"
            shutil.copytree(other, beside, copy_function=_link_or_copy)
            beside.rename(here)
        return here

    def link(self, name: str, target: Path) -> None:
        """Points `last` or `best` to a checkpoint, at once or not at all."""
        beside = self.folder / f".{name}.{os.getpid()}"
        beside.unlink(missing_ok=True)
        beside.symlink_to(target.name)
        beside.replace(self.folder / name)

    def prune(self) -> None:
        """Removes all but the newest `keep` checkpoints and those that a link names."""
        linked = {(self.folder / name).resolve() for name in ("last", "best")}
        steps = sorted(self.folder.glob("step-*"), key=lambda p: int(p.name.removeprefix("step-")))
        for path in steps[: -self.keep]:
            if path.resolve() not in linked:
                shutil.rmtree(path)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def resolve(path: Path) -> Path:
    """A checkpoint from what a user names: itself, a saved model, or a run folder (its best, else its last)."""
    if (path / MANIFEST).is_file():
        return path.resolve()
    for name in ("best", "last"):
        if (path / "checkpoints" / name / MANIFEST).is_file():
            return (path / "checkpoints" / name).resolve()
    if (path / "checkpoints").is_dir():
        raise UserError(f"run {path} has no checkpoint yet")
    raise UserError(f"{path} is neither a run folder, a checkpoint nor a saved model")
