"""Each story in this folder, told again, reads the same; trace.py says how they are written."""

from pathlib import Path

import pytest

from gearshift.sync.registry import STRATEGIES
from tests.traces.trace import retell

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_story(story):
    text = story.read_text()
    assert retell(text) == text


def test_every_strategy_has_a_story():
    assert set(STRATEGIES) <= {story.stem for story in STORIES}


def test_what_is_no_line_of_a_story_is_said():
    with pytest.raises(ValueError, match="line 2, `> 0 sleeps`: this is not a line of a story"):
        retell("> start async global_batch=1 batch=1\n> 0 sleeps\n")


@pytest.mark.parametrize("worker", ["0", "1"])  # one that has no lease, and one that nobody knows
def test_who_has_no_lease_cannot_deliver(worker):
    story = f"> start async global_batch=1 batch=1\n> 0 joins\n> {worker} delivers\n"
    with pytest.raises(ValueError, match=f"line 3, `> {worker} delivers`: worker {worker} holds 0 leases"):
        retell(story)
