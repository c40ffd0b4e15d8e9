"""`gearshift replay`: checks that replaying a run's log reproduces its decisions."""

from __future__ import annotations

from gearshift import __version__
from gearshift.cli import terminal
from gearshift.run.replay import replay as replayed
from gearshift.run.replay import story


def replay(log_or_run: str, *, show: bool) -> int:
    """Returns the exit code: 0 only if every decision equals the logged one."""
    if show:
        for sentence in story(log_or_run):
            terminal.say(sentence)
    verdict = replayed(log_or_run)
    terminal.say(str(verdict))
    if verdict.difference is None:
        return 0
    written_by = verdict.difference.written_by
    if written_by != __version__:
        terminal.say(
            f"The log was written by Gearshift {written_by}, this is {__version__}: its decisions may differ."
        )
    return 1
