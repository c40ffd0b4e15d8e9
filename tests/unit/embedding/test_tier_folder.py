"""Where rows on disk are: on a disk of this machine, one folder per store, reclaimed when its process is gone."""

from __future__ import annotations

import os
import re
import socket
import warnings
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from gearshift.embedding import cold_tier, file_systems, machine_memory
from gearshift.embedding.cold_tier import ColdTier, StorageSettings, TierFolder, abandoned
from gearshift.embedding.store import RowAdagrad, RowPart
from gearshift.embedding.table_store import MemoryStore
from gearshift.errors import DataWarning, UserError

PARTS = (RowPart("embedding", 16, RowAdagrad()),)


def mounted(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this folder seems to be on a file system of its own."""
    mounts = folder.with_name("mounts")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / {folder} rw - {kind} remote rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /var/tmp."""
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(cold_tier, "LOCAL", tmp_path / "var")
    return tmp_path / "var" / f"gearshift-rows-{os.getuid()}"


def test_rows_are_below_the_runs_if_these_are_on_a_local_disk(tmp_path: Path) -> None:
    tier = StorageSettings().tier(1 << 30, tmp_path / "runs")
    assert (tier.folder, tier.notice) == (tmp_path / "runs" / ".rows", "")


@pytest.mark.parametrize(("kind", "words"), [("nfs4", "a network file system"), ("tmpfs", "in memory")])
def test_rows_leave_a_shared_folder_for_a_local_disk(
    tmp_path: Path, local: Path, kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a cluster's runs is. The user is told where they are."""
    mounted(tmp_path / "runs", kind, monkeypatch)
    tier = StorageSettings().tier(1 << 30, tmp_path / "runs")
    assert tier.folder == local
    store = MemoryStore(PARTS, seed=1, tier=tier)
    with pytest.warns(
        DataWarning, match=f"rows that do not fit in memory go to {local}: .*runs is on .*{words}"
    ):
        store.pull(np.arange(3))
    assert [path.name[:5] for path in local.iterdir()] == ["rows-"]
    assert local.stat().st_mode & 0o777 == 0o700


def test_a_storage_path_on_a_network_file_system_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(tmp_path / "share", "nfs4", monkeypatch)
    tier = StorageSettings(tmp_path / "share").tier(1 << 30, tmp_path)
    assert tier.folder == tmp_path / "share"
    with pytest.warns(DataWarning, match=r"storage\.path: .*share is on a network file system \(nfs4\)"):
        TierFolder(tier.folder).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TierFolder(tmp_path / "local").close()


def test_rows_of_another_machine_on_a_network_file_system_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their process may live: locks need not cross machines."""
    for name, host in (("rows-a", "elsewhere"), ("rows-b", socket.gethostname())):
        (tmp_path / "rows" / name).mkdir(parents=True)
        (tmp_path / "rows" / name / "lock").write_text(host)
    found = {folder.name for folder in abandoned(tmp_path / "rows")}
    assert found == {"rows-a", "rows-b"}  # on a local disk the lock alone tells
    mounted(tmp_path / "rows", "nfs4", monkeypatch)
    assert [folder.name for folder in abandoned(tmp_path / "rows")] == ["rows-b"]


def test_a_folder_of_another_user_is_refused(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 4711)
        patch.setattr(cold_tier, "machine_folder", lambda: local)
        with pytest.raises(
            UserError, match=r"storage\.path: .*: it belongs to another user\. Choose another"
        ):
            TierFolder(local)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    if os.getuid() == 0:
        folder = Path("/proc/rows")  # nobody may write there
    else:
        folder = tmp_path / "rows"
        folder.mkdir(0o500)
    with pytest.raises(UserError, match=rf"storage\.path: rows cannot be written below {folder}: "):
        TierFolder(folder)


def test_a_file_in_the_way_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for below in (tmp_path / "file", tmp_path / "file" / "rows"):
        with pytest.raises(UserError, match=rf"written below {below}: {tmp_path}/file is a file\. Choose"):
            StorageSettings(below).check_path()


def test_home_is_expanded_in_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = gs.WorkerSettings(memory="1GiB", storage="~/rows")
    settings.check_storage()
    tier = settings.cold_tier("runs")
    assert tier is not None and tier.folder == tmp_path / "rows" and tier.folder.is_dir()
    assert gs.CheckpointPolicy(path="~/runs").path == str(tmp_path / "runs")


def test_memory_of_more_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "machine_memory", lambda: 24 << 30)
    monkeypatch.setattr(cold_tier, "machine_memory", lambda: 24 << 30)
    assert gs.WorkerSettings(memory="16GiB").memory_warning() is None
    assert gs.WorkerSettings().memory_warning() is None
    for memory, asked in (("200GiB", "200GiB"), ("100%", r"100% \(24GiB here\)")):
        warning = gs.WorkerSettings(memory=memory).memory_warning()
        assert warning is not None
        assert re.match(rf"memory={asked} leaves nothing .*: this machine has 24GiB\.", warning)


@pytest.mark.parametrize("memory", ["25%", 0.25])
def test_a_share_of_the_machine_is_a_budget(
    tmp_path: Path, memory: float | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_memory, "machine_memory", lambda: 4 << 30)
    plain = StorageSettings(lookahead="off")
    tier = gs.WorkerSettings(memory=memory, storage=plain).cold_tier(tmp_path)
    assert tier is not None and tier.budget == 1 << 30
    expected = ColdTier(tmp_path / ".rows", 2 << 30, lookahead=None, asked="2GiB")
    assert gs.WorkerSettings(memory="2GiB", storage=plain).cold_tier(tmp_path) == expected


@pytest.mark.parametrize("memory", ["lots", 0, -1, "150%"])
def test_a_budget_that_is_none_is_refused(memory: object) -> None:
    with pytest.raises(UserError, match=r"WorkerSettings\(memory=.*share"):
        gs.WorkerSettings(memory=memory)  # type: ignore[arg-type]


def test_the_least_share_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "machine_memory", lambda: 4 << 20)
    monkeypatch.setattr(cold_tier, "machine_memory", lambda: 4 << 20)
    tier = StorageSettings().tier(0.25, tmp_path)
    with pytest.raises(
        UserError, match=r"memory=25% \(1MiB here\) is too small .* set at least memory=\d+MiB"
    ):
        MemoryStore(PARTS, seed=1, tier=tier)


@pytest.mark.parametrize(("lookahead", "reserved"), [("auto", 1 / 8), ("off", 0), (100_000, 1 / 8)])
def test_batches_that_are_read_ahead_are_paid_for(
    tmp_path: Path, lookahead: str | int, reserved: float
) -> None:
    tier = StorageSettings(lookahead=lookahead).tier(1 << 30, tmp_path)  # type: ignore[arg-type]
    assert tier.budget == (1 - reserved) * (1 << 30)
    assert ("read ahead" in tier.explained) == bool(reserved)
    assert (tier.lookahead is not None and tier.lookahead.in_chunks) == bool(reserved)


def test_where_other_processes_have_the_batches_all_memory_is_for_rows(tmp_path: Path) -> None:
    """On Ray, workers name the ids of their next leases."""
    auto, off = (
        StorageSettings(lookahead=each).tier(1 << 30, tmp_path, batches_here=False)  # type: ignore[arg-type]
        for each in ("auto", "off")
    )
    assert auto.budget == off.budget == 1 << 30 and not auto.uses
    assert auto.lookahead is not None and not auto.lookahead.in_chunks
    assert off.lookahead is None
    with pytest.raises(UserError, match=r"storage\.lookahead=500: on Ray .* write auto or off$"):
        StorageSettings(lookahead=500).tier(1 << 30, tmp_path, batches_here=False)
