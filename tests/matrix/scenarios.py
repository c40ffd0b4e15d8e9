"""The operator's matrix: which fault hits which process, when, and under which strategy, and what must follow.

Four factors are covered pairwise: every two values of two different factors occur together in at least one case,
except the pairs that cannot occur (`IMPOSSIBLE` has the reasons). The other cases are troubles of the run folder,
crash loops and second owners; each is a row of its own. Pure: it starts nothing and reads nothing.

Every bound is derived from two numbers: the patience that the runs are configured with, and the time that a process
takes to start and load its state on two busy cores.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf
from typing import Literal

PATIENCE = 6.0  # seconds, cluster.patience of every run here
START = 20.0  # seconds until a process is up again and has loaded its state
SLACK = 10.0  # seconds that a loaded machine may add
EVALUATE = 20.0  # seconds of the final evaluation, the last save and the end of all processes

FREEZE = {"kill -9": 0.0, "SIGSTOP 5 s": 5.0, "SIGSTOP 30 s": 30.0, "SIGSTOP for ever": inf}
FAULTS = tuple(FREEZE)
TARGETS = ("worker", "two workers", "shard", "both shards", "coordinator", "driver", "raylet", "GCS")
TRAINING, CHECKPOINT, SWITCH, RESIZE, EVALUATION = MOMENTS = (
    "mid-training",
    "checkpoint",
    "switch",
    "resize",
    "final evaluation",
)
STRATEGIES = ("sync", "gba", "easgd")
FACTORS = (FAULTS, TARGETS, MOMENTS, STRATEGIES)

IMPOSSIBLE = {
    ("worker", EVALUATION): "workers end with the last batch, before the final evaluation",
    ("two workers", EVALUATION): "workers end with the last batch, before the final evaluation",
}

# What must follow. `done`: the run goes to its end. `done or told`: it may also end with a sentence and be resumed.
Outcome = Literal["done", "done or told"]


@dataclass(frozen=True)
class Case:
    """One row: what happens to one run. `target` and `moment` are of the factors above, or of a trouble below."""

    fault: str
    target: str
    moment: str
    strategy: str

    @property
    def name(self) -> str:
        words = (self.target, self.fault, self.moment, self.strategy)
        return "/".join(re.sub(r"\W+", "-", word) for word in words)

    @property
    def is_signal(self) -> bool:
        return self.fault in FREEZE


# ---- troubles that are no signal to one process ----

FOLDER, OWNER = "run folder", "second owner"
DISK_FULL, DISK_FULL_FOR_EVER = "disk full for 12 s", "disk full for ever"
READ_ONLY, READ_ONLY_RESTART = "read-only for 12 s", "read-only and coordinator killed"
VANISHED, VANISHED_RESTART = "vanished", "vanished and coordinator killed"
CRASH_LOOP = "killed at each start"
SAME_HOST, OTHER_HOST, WHILE_RESTARTING = "same host", "other host", "while the coordinator restarts"
THE_END = "the end"  # from shortly before the last save on

TROUBLES = (
    Case(DISK_FULL, FOLDER, TRAINING, "gba"),
    Case(DISK_FULL, FOLDER, THE_END, "sync"),
    Case(DISK_FULL_FOR_EVER, FOLDER, THE_END, "easgd"),
    Case(READ_ONLY, FOLDER, TRAINING, "sync"),
    Case(READ_ONLY_RESTART, FOLDER, TRAINING, "gba"),
    Case(VANISHED, FOLDER, TRAINING, "easgd"),
    Case(VANISHED_RESTART, FOLDER, TRAINING, "sync"),
    Case(CRASH_LOOP, "worker", TRAINING, "gba"),
    Case(CRASH_LOOP, "shard", TRAINING, "sync"),
    Case(CRASH_LOOP, "coordinator", TRAINING, "easgd"),
    Case(SAME_HOST, OWNER, TRAINING, "sync"),
    Case(OTHER_HOST, OWNER, TRAINING, "gba"),
    Case(WHILE_RESTARTING, OWNER, TRAINING, "easgd"),
)
ENDLESS = (
    DISK_FULL_FOR_EVER,
    READ_ONLY_RESTART,
    VANISHED,
    VANISHED_RESTART,
)  # until the operator stops the run
NEEDS_MOUNTS = (DISK_FULL, DISK_FULL_FOR_EVER, READ_ONLY, READ_ONLY_RESTART, OTHER_HOST)

SHORT = (
    Case("kill -9", "shard", CHECKPOINT, "gba"),
    Case("kill -9", "coordinator", SWITCH, "easgd"),
)


# ---- pairwise coverage ----

Pair = tuple[tuple[int, str], tuple[int, str]]  # (factor, value) of two different factors


def pairs(row: Sequence[str]) -> set[Pair]:
    return set(combinations(enumerate(row), 2))


def possible(row: Sequence[str]) -> bool:
    _, target, moment, _ = row
    return (target, moment) not in IMPOSSIBLE


def pairwise() -> Iterator[tuple[str, ...]]:
    """Rows that cover all possible pairs. The next row covers most of what is left; of equals, it has rarer values."""
    rows = [row for row in product(*FACTORS) if possible(row)]
    left, used = set[Pair]().union(*map(pairs, rows)), Counter[str]()
    while left:
        best = max(rows, key=lambda row: (len(pairs(row) & left), -sum(used[value] for value in row)))
        left -= pairs(best)
        used.update(best)
        yield best


def matrix() -> list[Case]:
    return [Case(*row) for row in pairwise()] + list(TROUBLES)


# ---- what must follow ----


@dataclass(frozen=True)
class Expectation:
    outcome: Outcome
    without_step: float  # seconds, at most: until the next step, or until the run has ended with a sentence
    words: str = ""  # a pattern that the sentence must match, if the run ends with one


def expectation(case: Case) -> Expectation:
    found = _of_a_signal(case) if case.is_signal else _of_a_trouble(case)
    no_step_follows = case.moment in (EVALUATION, THE_END)
    return replace(found, without_step=found.without_step + (EVALUATE if no_step_follows else 0.0))


def _of_a_signal(case: Case) -> Expectation:
    frozen = FREEZE[case.fault]
    noticed = min(frozen, 2 * PATIENCE)  # silent for longer: it counts as lost
    match case.target:
        case "driver":
            return Expectation("done", SLACK)
        case "worker" | "two workers":
            return Expectation("done", 2 * PATIENCE + SLACK)
        case "shard" | "both shards" | "coordinator":
            return Expectation("done", noticed + START + SLACK)
    # The local Ray is the run's own: without it the run ends, and says so. It bears a short freeze.
    ends_early = frozen == 0 or frozen > 2 * PATIENCE
    return Expectation("done or told" if ends_early else "done", noticed + START + SLACK, "Ray|raylet|GCS")


def _of_a_trouble(case: Case) -> Expectation:
    if case.target == OWNER:  # one that is refused disturbs nobody
        return Expectation("done", SLACK + (2 * PATIENCE + START if case.fault == WHILE_RESTARTING else 0.0))
    if case.fault in (DISK_FULL, READ_ONLY):
        return Expectation("done", 12 + START + SLACK)
    return Expectation(
        "done or told", inf, _WORDS.get(case.fault, rf"{case.target}.*(kill|lost|die|fail|start)")
    )


_WORDS = {
    DISK_FULL_FOR_EVER: "space|full",
    READ_ONLY_RESTART: "[Rr]ead-only|writ",
    VANISHED: "folder|No such file|gone",
    VANISHED_RESTART: "folder|No such file|gone",
}


def training_seconds(case: Case) -> float:
    """How long the run trains if nothing happens: past the fault, and past the end of a freeze."""
    if case.moment == EVALUATION or case in SHORT:
        return 8.0
    if case.moment == THE_END:
        return 12.0
    return {"SIGSTOP 30 s": 50.0, "SIGSTOP for ever": 40.0}.get(case.fault, 22.0)


REPLACED_AFTER = (
    2 * PATIENCE + SLACK
)  # seconds, at most, after which a process that is frozen for ever is ended
REPLACEABLE = ("worker", "two workers", "shard", "both shards", "coordinator")
STOP_AFTER = 45.0  # seconds of an endless trouble after which the operator stops the run


def limit(case: Case) -> float:
    """Seconds from the fault to the end of the run, at most. A crash loop has to use up its budget of restarts."""
    if case.fault == CRASH_LOOP:
        return 300.0
    bound = expectation(case).without_step
    wait = STOP_AFTER + 2 * START if case.fault in ENDLESS else 2 * bound
    freeze = FREEZE.get(case.fault, 0.0)
    return wait + 2 * training_seconds(case) + (freeze if freeze < inf else 0.0) + 2 * START
