"""The wall time of a run: of this session, and of the sessions that it was resumed from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gearshift.run import ownership


class WallTime:
    def __init__(self) -> None:
        self.began = time.monotonic()  # start in this process
        self._saved: Mapping[str, Any] = {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continues from the `facts` of a checkpoint."""
        self._saved = saved

    def facts(self, folder: Path) -> dict[str, Any]:
        """For a checkpoint of the run in `folder`. A restarted coordinator continues the same session."""
        mine, saved = ownership.held(folder), self._saved
        here = mine.seconds if mine else time.monotonic() - self.began
        session = mine.session if mine else ""
        before = saved.get("before", 0.0)
        if not session or saved.get("session") != session:
            before += saved.get("here", 0.0)
        return {"session": session, "before": before, "here": here}

    def seconds(self, folder: Path) -> float:
        """The wall time of the whole run, like its examples."""
        facts = self.facts(folder)
        return float(facts["before"] + facts["here"])
