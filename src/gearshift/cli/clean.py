"""`gearshift clean`: removes files and processes that dead runs left on this machine, and lists them."""

from __future__ import annotations

from pathlib import Path

from gearshift.cli import terminal
from gearshift.engine.ray.end_session import end_session
from gearshift.run import leftovers, ownership


def clean(folders: list[Path], *, dry_run: bool) -> None:
    count = 0
    watch = ownership.LAPSE_SECONDS + ownership.BEAT_SECONDS
    for leftover in leftovers.find(*folders, end_session=end_session, watch=watch):
        count += 1
        done = "left alone" if leftover.remove is None else "would remove" if dry_run else "removed"
        terminal.say(f"{done} {leftover.path}   ({leftover.what})")
        if leftover.remove is not None and not dry_run:
            leftover.remove()
    if not count:
        terminal.say("nothing to clean up")
