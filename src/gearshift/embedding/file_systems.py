"""The file system of a folder: whether it is on a disk of this machine. Does not depend on rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    (
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "coda",
            "fhgfs",
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "ncpfs",
        ),
        *("nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs"),
    )
)
IN_MEMORY = frozenset(("tmpfs", "ramfs"))
LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.exfat"))


class Medium(Enum):
    LOCAL = "a disk of this machine"
    NETWORK = "a network file system"
    MEMORY = "a file system in memory"


def medium_of(folder: Path) -> Medium:
    kind = file_system_of(folder)
    if kind in IN_MEMORY:
        return Medium.MEMORY
    over_fuse = kind.startswith("fuse.") and kind not in LOCAL_FUSE  # sshfs, s3fs, gcsfuse, ...
    return Medium.NETWORK if kind in NETWORK or over_fuse else Medium.LOCAL


def file_system_of(folder: Path) -> str:
    """The type of its file system, such as ext4 or nfs4; of its nearest parent if it does not exist yet."""
    place, longest, kind = folder.resolve(), -1, ""
    for point, type_ in _mounts():
        if place.is_relative_to(point) and len(point.parts) >= longest:  # a later mount covers an earlier one
            longest, kind = len(point.parts), type_
    return kind


def _mounts() -> Iterator[tuple[Path, str]]:
    """Mount points and types; see proc(5)."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        yield Path(_unescaped(before.split(" ")[4])), after.split(" ")[0]


def _unescaped(text: str) -> str:
    """Spaces and the like are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
