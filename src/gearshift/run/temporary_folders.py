"""Temporary folders of a run. They are private, and each contains a file that names its owner.

`gearshift clean` uses this file to distinguish folders of dead runs from those of live ones.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearshift.run import folder as run_folder
from gearshift.run import ownership, process_identity

MARK = "gearshift.json"
SOCKETS, CONTROL = "gs-", "gearshift-control-"  # prefixes of their names


@dataclass(frozen=True)
class OwnerMark:
    """The owner of a temporary folder."""

    run: Path
    session: str  # the session of the run's lease
    process: Mapping[str, Any]  # the process that created it
    leader: Mapping[str, Any] | None = (
        None  # the leader of the process session of a Ray cluster that was started for the run
    )


def make(prefix: str, run: Path) -> Path:
    """A folder that only its user can enter."""
    place = Path(tempfile.mkdtemp(prefix=prefix))
    mark(place, run)
    return place


def mark(place: str | Path, run: Path, *, leader: int | None = None) -> None:
    """`leader` is the process whose session all processes of a Ray cluster belong to."""
    owner = ownership.current(run)
    content = {
        "run": str(run.resolve()),
        "session": owner.session if owner else "",
        "process": process_identity.this_process(),
        "leader": None if leader is None else process_identity.identity(leader),
    }
    run_folder.write_json(Path(place) / MARK, content)


def mark_of(place: Path) -> OwnerMark | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads((place / MARK).read_text())
        return OwnerMark(Path(content["run"]), content["session"], content["process"], content["leader"])
    return None
