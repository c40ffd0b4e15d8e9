"""The search for rates and the verdict about batches, with training runs whose outcome is a formula."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from gearshift.experiments.largest_batch import TUNING_SEED, Score, Search, Sweep, Trial, downhill, sweep

SEARCH = Search(examples=1_000_000, share=0.1, steps=10)
CEILING = {"good": 4096, "bad": 256}  # batches up to which an optimizer loses nothing


class World:
    """The best rates of batch 128 are (3, .5), and grow with the root of the batch; more costs AUC."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []

    def __call__(self, trial: Trial) -> Score | None:
        self.trials.append(trial)
        root = math.sqrt(trial.batch / 128)
        off = abs(math.log(trial.dense / (3 * root))) + abs(math.log(trial.rows / (0.5 * root)))
        if trial.dense > 1000:
            return None
        over = max(0.0, math.log2(trial.batch / CEILING[trial.optimizer]))
        auc = 0.75 - 0.01 * over + 0.001 * trial.seed + 0.00001 * (trial.seed % 2) - 0.001 * off
        steps = math.ceil(trial.share * 1_000_000 / trial.batch)
        return Score(auc, 1 - auc, 0.01 * over, 0.5 + off, steps, 1.0)


def swept(world: World, **more) -> list[Sweep]:
    return list(sweep(["good", "bad"], [128, 1024, 8192], world, SEARCH, **{"seeds": 3, **more}))


def test_rates_are_found_on_one_seed_and_a_share_and_only_the_winner_gets_all_seeds() -> None:
    world = World()
    last = swept(world)[-1]
    small = last.lines[0]
    assert small.dense == pytest.approx(3, rel=0.25) and small.rows == pytest.approx(0.5, rel=0.25)
    grown = next(line for line in last.lines if line.batch == 1024)
    assert grown.dense == pytest.approx(3 * math.sqrt(8), rel=0.25)
    searching = [trial for trial in world.trials if trial.seed == TUNING_SEED]
    checked = [trial for trial in searching if trial.share == 1.0]
    assert {trial.share for trial in searching} == {0.1, 1.0} and len(checked) == 3 * len(last.lines)
    rest = [trial for trial in world.trials if trial.seed != TUNING_SEED]
    assert len(rest) == 3 * len(last.lines) and {trial.share for trial in rest} == {1.0}
    first = sum(trial.batch == 128 and trial.optimizer == "good" for trial in searching)
    assert sum(trial.batch == 1024 and trial.optimizer == "good" for trial in searching) < first


def test_a_search_has_enough_steps() -> None:
    assert Search(1_000_000, share=0.1, steps=100).share_at(128, 1) == 0.1
    assert Search(1_000_000, share=0.1, steps=100).share_at(4096, 1) == pytest.approx(0.4096)
    assert Search(1_000_000, share=0.1, steps=100).share_at(65536, 1) == 1.0


def test_who_has_fallen_is_not_tried_further_unless_asked() -> None:
    last = swept(World())[-1]
    assert [(line.optimizer, line.batch) for line in last.lines] == [
        ("good", 128), ("bad", 128), ("good", 1024), ("bad", 1024), ("good", 8192)]  # fmt: skip
    assert last.largest_batch() == {"good": 1024, "bad": 128}
    assert last.recommended is not None
    assert (last.recommended.optimizer, last.recommended.batch) == ("good", 1024)
    assert len(swept(World(), to_the_end=True)[-1].lines) == 6
    assert swept(World(), tolerance=0.015)[-1].largest_batch() == {"good": 8192, "bad": 128}


def test_each_line_is_told_when_it_is_there_and_as_plain_json() -> None:
    found = swept(World())
    assert [len(one.lines) for one in found] == [1, 2, 3, 4, 5]
    saved = json.loads(json.dumps(found[-1].as_json(), allow_nan=False))
    assert saved["recommended"] == {"optimizer": "good", "batch": 1024}
    assert saved["lines"][0]["difference"]["mean"] == 0 and saved["lines"][0]["steps"] == 7813
    assert saved["lines"][4]["within"] is False and saved["lines"][4]["gap"] == pytest.approx(0.01)


def test_a_wider_interval_is_less_within() -> None:
    def noisy(trial: Trial) -> Score:
        noise = 0.002 * (-1) ** trial.seed if trial.batch > 128 else 0.0
        return Score(0.75 + noise, 0.5, 0.0, 0.5, 10, 1.0)

    for seeds, batch in ((2, 128), (40, 256)):
        *_, last = sweep(["a"], [128, 256], noisy, SEARCH, seeds=seeds)
        assert last.largest_batch() == {"a": batch}
    *_, one = sweep(["a"], [128, 256], noisy, SEARCH, seeds=1)  # seed 1 lost .002
    assert one.largest_batch() == {"a": 128}


def test_only_finalists_get_all_the_seeds() -> None:
    """Three seeds say that an optimizer is worse; then it gets no more, and is paired by those it had."""
    lost = {"best": 0.0, "near": 0.0005, "far": 0.01}
    trials: list[Trial] = []

    def run(trial: Trial) -> Score:
        trials.append(trial)
        by_seed = 0.02 * trial.seed  # a log of its own: only pairs can be compared
        noise = 0.0001 * (trial.seed % 2) * (trial.optimizer != "best")
        return Score(0.7 + by_seed + noise - lost[trial.optimizer], 0.5, 0.0, 0.5, 10, 1.0)

    *_, last = sweep(["far", "near", "best"], [128, 256], run, SEARCH, seeds=6, to_the_end=True)
    had = {(line.optimizer, line.batch): len(line.scores) for line in last.lines}
    assert had == {(name, batch): 3 if name == "far" else 6 for name in lost for batch in (128, 256)}
    assert last.reference.optimizer == "best"
    far = next(line for line in last.lines if line.optimizer == "far")
    assert last.difference(far).mean == pytest.approx(-0.01, abs=1e-4)
    assert last.largest_batch() == {"best": 256, "near": 256, "far": None}
    saved = [(t.optimizer, t.batch, t.seed) for t in trials if t.seed != TUNING_SEED]
    assert len(saved) == len(set(saved))  # none is trained twice


def test_a_best_that_falls_back_opens_again_what_it_had_closed() -> None:
    """Against three seeds of `lucky`, `third` is out of reach; against `second`, the best of six, it is not."""
    aucs = {"lucky": [0.71] * 3 + [0.6] * 3, "second": [0.7095] * 6, "third": [0.7089] * 6}

    def run(trial: Trial) -> Score:
        return Score(aucs[trial.optimizer][trial.seed % 7 - 1], 0.5, 0.0, 0.5, 10, 1.0)

    *_, last = sweep([*aucs], [128], run, SEARCH, seeds=6)
    assert last.reference.optimizer == "second" and {len(line.scores) for line in last.lines} == {6}
    assert last.largest_batch() == {"lucky": None, "second": 128, "third": 128}


def test_a_line_that_diverges_also_at_lower_rates_is_no_finalist() -> None:
    trials: list[Trial] = []

    def run(trial: Trial) -> Score | None:
        trials.append(trial)
        return None if trial.seed == 2 else Score(0.7, 0.5, 0.0, 0.5, 10, 1.0)

    *_, last = sweep(["a"], [128], run, SEARCH, seeds=6)
    assert last.lines[0].scores.count(None) == 1 and max(t.seed for t in trials if t.seed != TUNING_SEED) == 3


def test_where_a_rate_does_not_matter_the_search_ends() -> None:
    trials: list[Trial] = []

    def run(trial: Trial) -> Score:
        trials.append(trial)
        return Score(0.7, 0.5, 0.0, 0.5 + 1e-3 * trial.dense, 10, 1.0)

    *_, last = sweep(["a"], [128], run, SEARCH, seeds=1)
    assert 1e-4 < last.lines[0].dense < 0.1 and len(trials) < 25


@pytest.mark.parametrize("bears", ["dense", "rows"])
def test_what_a_share_bears_is_lowered_where_all_of_the_data_does_not(bears: str) -> None:
    """The best rate falls with the number of steps, as LAMB's does."""

    def run(trial: Trial) -> Score:
        off = abs(math.log(getattr(trial, bears) / (4.0 if trial.share < 1 else 1.0)))
        return Score(0.7 - off, 0.5, 0.0, 0.5 + off, 10, 1.0)

    *_, last = sweep(["a"], [128], run, SEARCH, seeds=1)
    assert getattr(last.lines[0], bears) == pytest.approx(1.0, rel=0.25)


def test_a_late_seed_that_diverges_sends_all_back() -> None:
    def run(trial: Trial) -> Score | None:
        if trial.seed == 5 and trial.dense >= 1:
            return None
        return Score(0.7, 0.5, 0.0, abs(math.log(trial.dense)), 10, 1.0)

    *_, last = sweep(["a"], [128], run, SEARCH, seeds=6)
    assert last.lines[0].dense < 1 and len(last.lines[0].scores) == 6 and None not in last.lines[0].scores


def test_what_diverges_is_worth_a_coin() -> None:
    def never(trial: Trial) -> Score | None:
        return Score(0.7, 0.5, 0.0, 0.5, 10, 1.0) if trial.batch == 128 else None

    *_, last = sweep(["a"], [128, 256], never, SEARCH, seeds=2)
    assert last.lines[1].aucs == [0.5, 0.5] and last.largest_batch() == {"a": 128}
    saved = json.loads(json.dumps(last.as_json(), allow_nan=False))["lines"][1]
    assert saved["diverged"] == 2 and saved["seconds"] is None and saved["steps"] is None


def test_from_rates_that_diverge_one_goes_back() -> None:
    """At the scaled rates everything diverges, and rates that suit a share of the data diverge on all of it."""

    def brittle(trial: Trial) -> Score | None:
        most = 1.0 if trial.batch == 128 else 0.2
        if trial.dense > most or (trial.share == 1.0 and trial.dense > most / 2):
            return None
        return Score(0.7, 0.5, 0.0, 1 - trial.dense, 10, 1.0)

    *_, last = sweep(["a"], [128, 8192], brittle, SEARCH, seeds=2, to_the_end=True)
    for line, most in zip(last.lines, (1.0, 0.2), strict=True):
        assert None not in line.scores and most / 4 < line.dense <= most / 2


def test_where_the_rule_leads_astray_rates_are_looked_for_from_the_last_ones() -> None:
    """At the larger batch the rule ends in a hollow of its own; the rates of the smaller one are better."""

    def hollow(trial: Trial) -> Score:
        away = abs(math.log(trial.dense))
        return Score(0.7, 0.5, 0.0, away if away < 1 else 0.9 + abs(away - 2), 10, 1.0)

    *_, last = sweep(["a"], [128, 128 * 64], hollow, SEARCH, seeds=2, to_the_end=True)
    assert [line.dense for line in last.lines] == [1.0, 1.0]


def test_downhill_goes_on_until_neither_axis_helps() -> None:
    looked: list[tuple[int, int]] = []

    def valley(point: tuple[int, int]) -> float:
        looked.append(point)
        x, y = point
        return 0.2 * (x - y) ** 2 + (x - 5) ** 2

    assert downhill(valley, (0, 0), 1) == (5, 5)
    assert downhill(lambda point: math.inf, (2, 3), 1) == (2, 3)
    assert downhill(lambda p: math.inf if p[0] > 0 else -p[0] / 10, (4, 0), 2) == (4, 0)


def test_each_may_be_another_map() -> None:
    def backwards(line, words) -> Iterator:
        return iter([line(word) for word in reversed(list(words))])

    *_, last = sweep(["good", "bad"], [128], World(), SEARCH, seeds=2, each=backwards)
    assert [line.optimizer for line in last.lines] == ["bad", "good"]
