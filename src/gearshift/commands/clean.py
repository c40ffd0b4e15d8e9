"""`gearshift clean`: removes what dead runs left behind on this machine, and says what it removed."""

from __future__ import annotations

from pathlib import Path

from gearshift import leftovers
from gearshift.cluster.end_session import end_session
from gearshift.commands import terminal


def clean(folders: list[Path], *, dry_run: bool) -> None:
    found = 0
    for leftover in leftovers.find(*folders, end_session=end_session):
        found += 1
        terminal.say(f"{'would remove' if dry_run else 'removed'} {leftover.path}   ({leftover.what})")
        if not dry_run:
            leftover.remove()
    if not found:
        terminal.say("nothing to clean up")
