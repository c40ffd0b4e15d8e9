"""What a killed process left of a checkpoint or delta goes when it is written again; what a live one writes stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gearshift.embedding.file_systems import Medium
from gearshift.parameters import part_folder
from gearshift.parameters.part_folder import written_beside

WRITER = """
import sys
from pathlib import Path
from gearshift.parameters.part_folder import written_beside
with written_beside(Path(sys.argv[1])) as part:
    (part / "file").write_text("half")
    print(part, flush=True)
    sys.stdin.read()
"""


def write(path: Path) -> None:
    with written_beside(path) as part:
        part.rename(path)


def test_the_next_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "full[1]"
    command = [sys.executable, "-c", WRITER, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        part = Path(writer.stdout.readline().strip())
        write(target)
        assert (part / "file").exists(), "its process lives"
        writer.kill()
        writer.wait(30)
    others = [
        tmp_path / f".full.{writer.pid}.part",
        tmp_path / ".full[1].old.part",
        tmp_path / ".full[1]-2.part",
    ]
    for other in others:
        other.mkdir()
    target.rmdir()
    write(target)
    assert not part.exists()
    assert sorted(tmp_path.iterdir()) == sorted([target, *others])


def test_a_lock_protects_a_process_that_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another container."""
    with written_beside(tmp_path / "full") as part:
        monkeypatch.setattr(part_folder, "_lives", lambda pid: False)
        monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
        write(tmp_path / "full")
        assert part.exists()


def test_other_machines_may_write_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".full.{1 << 30}.part"
    left.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(part_folder, "medium_of", lambda folder: Medium.NETWORK)
        write(tmp_path / "full")
    assert left.exists()
    (tmp_path / "full").rmdir()
    write(tmp_path / "full")
    assert not left.exists()
