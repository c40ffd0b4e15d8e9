"""How many bytes a share of the machine's memory is, on a machine and in a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gearshift.embedding import machine_memory
from gearshift.embedding.machine_memory import budget_bytes, resident_bytes

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limited(tmp_path: Path, own: str, limits: dict[str, str]) -> int:
    (tmp_path / "own").write_text(own)
    for name, limit in limits.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit)
    return machine_memory.machine_memory(tmp_path / "cgroup", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "max\n"}, PHYSICAL),
        ("0::/\n", {"memory.max": "1048576\n"}, 1 << 20),
        ("0::/pod/run\n", {"pod/run/memory.max": "max\n", "pod/memory.max": "2097152\n"}, 2 << 20),
        ("0::/gone\n", {"memory.max": "4096\n"}, 4096),
        ("4:cpu:/\n9:memory:/job\n", {"memory/job/memory.limit_in_bytes": "8192\n"}, 8192),
        ("0::/\n", {"memory.max": f"{2 * PHYSICAL}\n"}, PHYSICAL),
        ("nonsense\n", {}, PHYSICAL),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, own: str, limits: dict[str, str], expected: int) -> None:
    assert limited(tmp_path, own, limits) == expected


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert machine_memory.machine_memory(tmp_path / "none", tmp_path / "none") == PHYSICAL


def test_a_share_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "machine_memory", lambda: 4000)
    assert budget_bytes(0.25) == 1000
    assert budget_bytes(1.0) == 4000
    assert budget_bytes(1) == 1


def test_what_this_process_has_taken(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmPeak:\t 9000 kB\nVmRSS:\t    2048 kB\n")
    assert resident_bytes(tmp_path / "status") == 2 << 20
    assert resident_bytes(tmp_path / "none") == 0
    assert 10 << 20 < resident_bytes() < PHYSICAL
