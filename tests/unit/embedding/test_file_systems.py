"""Which folders are on a disk of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gearshift.embedding import file_systems
from gearshift.embedding.file_systems import Medium, file_system_of, medium_of

MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:40 / {0}/nfs rw,relatime shared:2 - nfs4 server:/export rw
23 21 8:2 / {0}/nfs/scratch rw,relatime - xfs /dev/sdb1 rw
24 21 0:41 / {0}/with\\040space rw - cifs //server/share rw
25 21 0:42 / {0}/bucket rw - fuse.s3fs s3fs rw
26 21 0:43 / {0}/rootless rw - fuse.fuse-overlayfs fuse-overlayfs rw
27 21 0:44 / {0}/ntfs rw - fuseblk /dev/sdc1 rw
28 21 0:45 / {0}/covered rw - ext4 /dev/sdd1 rw
29 28 0:46 / {0}/covered rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind", "medium"),
    [
        ("here", "ext4", Medium.LOCAL),
        ("nfs/runs/not/made/yet", "nfs4", Medium.NETWORK),
        ("nfs-not", "ext4", Medium.LOCAL),
        ("nfs/scratch/rows", "xfs", Medium.LOCAL),
        ("with space/rows", "cifs", Medium.NETWORK),
        ("bucket", "fuse.s3fs", Medium.NETWORK),
        ("rootless", "fuse.fuse-overlayfs", Medium.LOCAL),
        ("ntfs", "fuseblk", Medium.LOCAL),
        ("covered/rows", "tmpfs", Medium.MEMORY),
    ],
)
def test_the_nearest_mount_counts(
    tmp_path: Path, folder: str, kind: str, medium: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts_at(tmp_path, monkeypatch)
    assert file_system_of(tmp_path / folder) == kind
    assert medium_of(tmp_path / folder) is medium


def test_a_link_is_where_it_points_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts_at(tmp_path, monkeypatch)
    (tmp_path / "link").symlink_to(tmp_path / "bucket")
    assert medium_of(tmp_path / "link" / "rows") is Medium.NETWORK


def test_without_a_list_of_mounts_every_folder_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "none")
    assert medium_of(tmp_path) is Medium.LOCAL


def mounts_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(MOUNTS.format(tmp_path))
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mounts")
