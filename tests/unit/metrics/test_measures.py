"""Measures against their definitions, written out as loops over all pairs, and where they are not defined."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearshift.metrics import (
    AucHistogram,
    Collected,
    Measures,
    Slices,
    auc,
    calibration_table,
    day_name,
    entropy,
    grouped,
    grouped_auc,
    logloss,
    paired_auc_difference,
)

settings.register_profile("no_clock", deadline=None)  # how long a case takes is not what is tested
settings.load_profile("no_clock")

# few distinct scores, so that ties are common
SCORES = st.sampled_from([0.0, 0.01, 0.2, 0.2000001, 0.5, 0.73, 0.99, 1.0])
EXAMPLE = st.tuples(
    st.sampled_from([0.0, 1.0]), SCORES, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 3)
)
EXAMPLES = st.lists(EXAMPLE, max_size=30).map(lambda rows: np.array(rows, np.float64).reshape(-1, 4).T)


def auc_by_pairs(labels, scores, weights) -> float:
    won = pairs = 0.0
    for i in range(len(labels)):
        for j in range(len(labels)):
            share = weights[i] * labels[i] * weights[j] * (1 - labels[j])
            pairs += share
            won += share * (0.5 + 0.5 * np.sign(scores[i] - scores[j]))
    return won / pairs if pairs else math.nan


def delong_by_pairs(labels, scores) -> tuple[np.ndarray, np.ndarray]:
    clicks, others = scores[labels == 1], scores[labels == 0]
    wins = 0.5 + 0.5 * np.sign(clicks[:, None] - others[None, :])
    return wins.mean(axis=1), wins.mean(axis=0)


def same(a: float, b: float) -> bool:
    return a == pytest.approx(b, rel=1e-9, abs=1e-12, nan_ok=True)


@given(EXAMPLES)
def test_auc_is_the_share_of_pairs_in_order(rows: np.ndarray) -> None:
    labels, scores, weights, _ = rows
    assert same(auc(labels, scores), auc_by_pairs(labels, scores, np.ones(len(labels))))
    assert same(auc(labels, scores, weights), auc_by_pairs(labels, scores, weights))


@given(EXAMPLES)
def test_a_label_between_counts_as_both(rows: np.ndarray) -> None:
    scores = rows[1]
    assert same(auc(scores, scores), auc_by_pairs(scores, scores, np.ones(len(scores))))


@given(EXAMPLES)
def test_grouped_auc_is_the_mean_over_groups_with_both_classes(rows: np.ndarray) -> None:
    labels, scores, weights, groups = rows
    total = size = 0.0
    for group in np.unique(groups):
        of = groups == group
        own = auc_by_pairs(labels[of], scores[of], weights[of])
        if not math.isnan(own):
            total += own * weights[of].sum()
            size += weights[of].sum()
    assert same(grouped_auc(labels, scores, groups, weights), total / size if size else math.nan)


def test_grouped_auc_takes_text_and_ids() -> None:
    labels, scores = [1, 0, 1, 0, 1], [0.9, 0.1, 0.2, 0.8, 0.5]
    assert grouped_auc(labels, scores, ["a", "a", "b", "b", "c"]) == 0.5
    assert grouped_auc(labels, scores, np.array([7, 7, 2**62, 2**62, 9])) == 0.5


@given(EXAMPLES)
def test_logloss_is_its_definition(rows: np.ndarray) -> None:
    labels, scores, weights, _ = rows
    p = np.clip(scores, 1e-7, 1 - 1e-7)
    losses = [-math.log(q) if y else -math.log(1 - q) for y, q in zip(labels, p, strict=True)]
    expected = float(weights @ losses / weights.sum()) if weights.sum() else math.nan
    assert same(logloss(labels, scores, weights), expected)


@given(EXAMPLES, st.booleans(), st.integers(0, 30))
def test_measures_agree_with_the_exact_functions(rows: np.ndarray, weighted: bool, cut: int) -> None:
    labels, scores, weights, _ = rows
    measures = Measures()
    for part in (slice(None, cut), slice(cut, None)):
        measures.update(labels[part], scores[part], weights[part] if weighted else None)
    weight = weights if weighted else np.ones(len(labels))
    assert measures.examples == len(labels)
    assert same(measures.positives, float(weight @ labels))
    assert same(measures.logloss, logloss(labels, scores, weight))
    exact = auc(labels, scores, weight)
    assert (
        math.isnan(exact)
        if math.isnan(measures.auc)
        else abs(measures.auc - exact) <= measures.auc_bound + 1e-12
    )
    rate = measures.mean_label
    if 0 < rate < 1:
        assert same(measures.normalized_entropy, measures.logloss / entropy(rate))
        assert same(measures.calibration, float(weight @ scores) / float(weight @ labels))


@given(EXAMPLES, st.booleans(), st.booleans(), st.integers(0, 30))
def test_merging_equals_seeing_all(
    rows: np.ndarray, left_weighted: bool, right_weighted: bool, cut: int
) -> None:
    labels, scores, weights, _ = rows
    whole, left, right = Measures(), Measures(), Measures()
    for part, own, weighted in (
        (slice(None, cut), left, left_weighted),
        (slice(cut, None), right, right_weighted),
    ):
        for measures in (own, whole):
            measures.update(labels[part], scores[part], weights[part] if weighted else None)
    right_before = right.as_dict()
    left.merge(right)
    for name, value in whole.as_dict().items():
        assert left.as_dict()[name] == (value and pytest.approx(value, rel=1e-6, abs=1e-7)), name
    left.update([1, 0], [0.9, 0.3])
    assert right.as_dict() == right_before  # merging shares nothing


@given(EXAMPLES, st.booleans(), st.integers(0, 30))
def test_a_saved_state_goes_on_with_the_same_bits(rows: np.ndarray, weighted: bool, cut: int) -> None:
    labels, scores, weights, _ = rows
    whole, first = Measures(), Measures()
    parts = (slice(None, cut), slice(cut, None))
    for part in parts:
        whole.update(labels[part], scores[part], weights[part] if weighted else None)
        _ = whole.auc  # reading changes nothing
    first.update(labels[parts[0]], scores[parts[0]], weights[parts[0]] if weighted else None)
    second = Measures.from_state(first.state())
    second.update(labels[parts[1]], scores[parts[1]], weights[parts[1]] if weighted else None)
    assert {k: v.tobytes() for k, v in second.state().items()} == {
        k: v.tobytes() for k, v in whole.state().items()
    }


@pytest.mark.parametrize("rate", [0.5, 0.03])
def test_the_histogram_is_close_at_any_rate(rate: float) -> None:
    random = np.random.default_rng(1)
    logits = random.normal(math.log(rate / (1 - rate)), 1.2, 20_000)
    p = (1 / (1 + np.exp(-logits))).astype(np.float32)
    labels = (random.random(20_000) < p).astype(np.float32)
    measures = Measures()
    measures.update(labels, p)
    assert abs(measures.auc - auc(labels, p)) <= measures.auc_bound < 1e-4


def test_standard_errors_are_delongs_and_the_means() -> None:
    random = np.random.default_rng(2)
    labels = (random.random(600) < 0.3).astype(float)
    p = 1 / (1 + np.exp(-(random.normal(0, 1, 600) + labels)))
    measures = Measures()
    measures.update(labels, p)
    clicks, others = delong_by_pairs(labels, p)
    assert measures.auc_se == pytest.approx(
        math.sqrt(clicks.var() / len(clicks) + others.var() / len(others)), rel=1e-3
    )
    losses = np.where(labels == 1, -np.log(p), -np.log(1 - p))
    assert measures.logloss_se == pytest.approx(losses.std() / math.sqrt(600), rel=1e-9)


def test_standard_error_of_the_auc_is_its_spread_over_samples() -> None:
    random = np.random.default_rng(3)
    found = []
    for _ in range(300):
        labels = (random.random(400) < 0.25).astype(float)
        measures = Measures(2**12)
        measures.update(labels, 1 / (1 + np.exp(-(random.normal(0, 1, 400) + labels))))
        found.append((measures.auc, measures.auc_se))
    aucs, errors = np.array(found).T
    assert errors.mean() == pytest.approx(aucs.std(), rel=0.15)


def test_a_weight_of_two_is_not_two_examples() -> None:
    """It moves the figures as two would, but knows no more than one: its standard errors stay."""
    random = np.random.default_rng(4)
    labels, p = (random.random(500) < 0.3).astype(float), random.random(500)
    once, double, twice = Measures(), Measures(), Measures()
    once.update(labels, p)
    double.update(labels, p, np.full(500, 2.0))
    twice.update(np.tile(labels, 2), np.tile(p, 2))
    assert double.auc == pytest.approx(twice.auc) == pytest.approx(once.auc)
    assert double.auc_se == pytest.approx(once.auc_se)
    assert twice.auc_se == pytest.approx(once.auc_se / math.sqrt(2))
    assert double.logloss_se == pytest.approx(once.logloss_se)


def test_paired_difference_is_delongs() -> None:
    random = np.random.default_rng(5)
    labels = (random.random(300) < 0.4).astype(float)
    a = random.normal(0, 1, 300) + labels
    b = np.round(a + random.normal(0, 0.3, 300), 1)  # with ties
    found = paired_auc_difference(labels, a, b)
    (clicks_a, others_a), (clicks_b, others_b) = delong_by_pairs(labels, a), delong_by_pairs(labels, b)
    clicks, others = clicks_a - clicks_b, others_a - others_b
    assert found.difference == pytest.approx(auc(labels, a) - auc(labels, b))
    assert found.se == pytest.approx(
        math.sqrt(clicks.var(ddof=1) / len(clicks) + others.var(ddof=1) / len(others))
    )
    low, high = found.interval
    assert low < found.difference < high
    assert high - low == pytest.approx(2 * 1.96 * found.se, rel=1e-3)


def test_paired_difference_of_a_model_with_itself_is_zero() -> None:
    labels, scores = [0, 1, 0, 1, 1], [0.2, 0.3, 0.6, 0.6, 0.9]
    assert paired_auc_difference(labels, scores, scores).interval == (0.0, 0.0)


def test_slices_equal_measures_of_their_own() -> None:
    random = np.random.default_rng(6)
    labels, p, w = (random.random(400) < 0.3).astype(float), random.random(400), random.random(400)
    keys = np.array(["de", "fr", "se"])[random.integers(0, 3, 400)]
    slices = Slices()
    for part in (slice(0, 150), slice(150, 400)):
        slices.update(keys[part], labels[part], p[part], w[part])
    assert sorted(slices.measures) == ["de", "fr", "se"]
    for key, measures in slices.measures.items():
        of = keys == key
        assert measures.examples == of.sum()
        assert measures.logloss == pytest.approx(logloss(labels[of], p[of], w[of]))
        assert abs(measures.auc - auc(labels[of], p[of], w[of])) <= measures.auc_bound


def test_slices_beyond_the_limit_are_one() -> None:
    slices = Slices(limit=2)
    slices.update(list("abcd"), [0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4])
    assert {key: measures.examples for key, measures in slices.measures.items()} == {
        "a": 1,
        "b": 1,
        Slices.OTHER: 2,
    }


def test_days_are_dates() -> None:
    assert [day_name(day) for day in (0, 20_757, 20_758)] == ["1970-01-01", "2026-10-31", "2026-11-01"]


ONE_CLASS = ([1, 1, 1], [0.1, 0.5, 0.9], None)
EMPTY: tuple[list[float], list[float], None] = ([], [], None)
NO_WEIGHT = ([0, 1], [0.2, 0.7], [0.0, 0.0])
NOT_A_NUMBER = ([0, 1], [math.nan, 0.7], None)


@pytest.mark.parametrize("case", [ONE_CLASS, EMPTY, NO_WEIGHT, NOT_A_NUMBER])
@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_nan(case) -> None:
    labels, scores, weights = case
    measures = Measures()
    measures.update(labels, scores, weights)
    assert math.isnan(auc(labels, scores, weights))
    assert math.isnan(grouped_auc(labels, scores, [0] * len(labels), weights))
    assert math.isnan(measures.auc)
    assert math.isnan(measures.auc_se)
    assert math.isnan(measures.normalized_entropy)
    assert math.isnan(paired_auc_difference(labels, scores, scores).difference)
    assert set(measures.as_dict()) >= {"auc", "logloss", "calibration", "examples"}


def test_a_nan_is_not_forgotten_by_later_batches() -> None:
    measures = Measures()
    measures.update([0, 1], [math.nan, 0.7])
    measures.update([0, 1], [0.2, 0.7])
    assert math.isnan(measures.auc)
    assert math.isnan(measures.logloss)


def test_constant_scores_tell_nothing() -> None:
    measures = Measures()
    measures.update([0, 1, 0, 0], [0.25] * 4)
    assert measures.auc == auc([0, 1, 0, 0], [0.25] * 4) == 0.5
    assert measures.auc_se == 0.0
    assert measures.normalized_entropy == pytest.approx(1.0)
    assert measures.calibration == pytest.approx(1.0)


def test_certain_and_wrong_is_finite() -> None:
    assert logloss([0, 1], np.array([1.0, 0.0], np.float32)) == pytest.approx(-math.log(1e-7))


def test_wrong_shapes_and_weights_say_so() -> None:
    with pytest.raises(ValueError, match="3 labels, 2 scores"):
        auc([0, 1, 1], [0.2, 0.3])
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="weights"):
            Measures().update([0, 1], [0.2, 0.3], [1.0, bad])


def test_entropy_of_a_rate() -> None:
    assert entropy(0.5) == pytest.approx(math.log(2))
    assert entropy(0.0) == entropy(1.0) == 0.0
    assert math.isnan(entropy(math.nan))


def test_histograms_of_different_bins_do_not_merge() -> None:
    with pytest.raises(AssertionError):
        AucHistogram(16).merge(AucHistogram(32))


def close_predictions(n: int = 2_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores that a histogram can hardly tell apart, and groups."""
    draw = np.random.default_rng(3)
    scores = (0.3 + 2e-5 * draw.random(n)).astype(np.float32)
    labels = (draw.random(n) < 0.2 + 0.5 * (scores > np.median(scores))).astype(np.float32)
    return labels, scores, draw.integers(0, 40, n)


def collected(limit: int, *columns: np.ndarray | None) -> Collected:
    found = Collected(limit)
    for part in range(4):
        found.update(*(None if c is None else c[part::4] for c in columns))
    return found


def test_collected_predictions_give_the_exact_auc_and_beyond_the_limit_a_bound() -> None:
    labels, scores, _ = close_predictions()
    exact = collected(10_000, labels, scores).whole().measures
    assert exact.auc == pytest.approx(auc(labels, scores), abs=1e-12)
    assert exact.auc_bound == exact.as_dict()["auc_bound"] == 0.0
    clicks, others = delong_by_pairs(labels, scores)
    se = math.sqrt(clicks.var() / len(clicks) + others.var() / len(others))
    assert exact.auc_se == pytest.approx(se, rel=1e-3)
    rough = collected(1_000, labels, scores).whole().measures
    assert rough.auc_bound > 0.01  # almost all are in one bin
    assert 1e-4 < abs(rough.auc - exact.auc) <= rough.auc_bound
    exact.update([1], [0.9])
    assert exact.auc_bound > 0  # the exact figures were those of fewer examples


def test_collected_slices_have_every_figure_of_their_examples_alone() -> None:
    labels, scores, groups = close_predictions()
    weights = np.random.default_rng(4).integers(1, 4, len(labels)).astype(np.float32)
    keys = np.where(groups % 3 == 0, "DE", "AT")
    found = collected(10_000, labels, scores, weights, groups, keys)
    assert found.whole().grouped == grouped(labels, scores, groups, weights)
    for key, measured in found.slices().items():
        own = keys == key
        assert measured.measures.auc == pytest.approx(auc(labels[own], scores[own], weights[own]))
        assert measured.grouped == grouped(labels[own], scores[own], groups[own], weights[own])
        rows = calibration_table(labels[own], scores[own], weights[own])
        assert measured.measures.calibration_table == pytest.approx(rows)


def test_beyond_the_limit_the_grouped_auc_is_that_of_some_of_the_groups() -> None:
    labels, scores, groups = close_predictions(8_000)
    keys = np.where(groups % 2 == 0, "DE", "AT")
    found = collected(3_000, labels, scores, None, groups, keys)
    whole = found.whole()
    assert whole.measures.examples == 8_000 and whole.measures.auc_bound > 0
    assert whole.grouped is not None and whole.grouped.one_in >= 4
    assert 0 < whole.grouped.groups <= 20
    assert whole.grouped.auc == pytest.approx(grouped_auc(labels, scores, groups), abs=0.05)
    parts = [measured.grouped for measured in found.slices().values()]
    assert sum(part.groups for part in parts if part is not None) == whole.grouped.groups
    alone = collected(1_000, labels, scores, None, np.zeros(8_000, np.int64)).whole()
    assert alone.grouped is None  # one group, too large to keep


def test_grouped_says_how_many_groups_count() -> None:
    found = grouped([0, 1, 1, 1], [0.1, 0.4, 0.3, 0.2], ["a", "a", "b", "c"])
    assert (found.auc, found.counted, found.groups) == (1.0, 1, 3)


def test_calibration_rows_are_tenths_of_the_examples() -> None:
    draw = np.random.default_rng(5)
    truth = draw.random(20_000)
    labels, scores = (draw.random(20_000) < truth).astype(float), 0.5 + 0.8 * (truth - 0.5)
    rows = calibration_table(labels, scores)
    assert [row.count for row in rows] == [2_000] * 10
    assert rows[0].ratio > 1.5 and rows[-1].ratio < 0.95  # what a ratio of all of them would hide
    total = sum(row.predicted * row.count for row in rows) / sum(row.observed * row.count for row in rows)
    assert total == pytest.approx(1.0, abs=0.02)
    for row, chosen in zip(rows, np.split(np.argsort(scores), 10), strict=True):
        assert row.predicted == pytest.approx(scores[chosen].mean())
        assert row.observed == pytest.approx(labels[chosen].mean())
        assert (row.low, row.high) == (scores[chosen].min(), scores[chosen].max())


def test_calibration_of_the_histogram_is_nearly_the_exact_one_and_can_be_merged() -> None:
    draw = np.random.default_rng(6)
    scores = draw.beta(1, 30, 30_000)
    labels, weights = (draw.random(30_000) < scores).astype(float), draw.integers(1, 3, 30_000)
    halves = Measures(), Measures()
    for at, half in enumerate(halves):
        half.update(labels[at::2], scores[at::2], weights[at::2])
    halves[0].merge(halves[1])
    rows, exact = halves[0].calibration_table, calibration_table(labels, scores, weights)
    assert len(rows) == len(exact) == 10
    for row, true in zip(rows, exact, strict=True):
        assert row.predicted == pytest.approx(true.predicted, rel=1e-3)
        assert row.observed == pytest.approx(true.observed, rel=0.01)
        assert row.observed_se == pytest.approx(true.observed_se, rel=0.01)
        assert row.count == pytest.approx(true.count, rel=0.01)


@given(EXAMPLES)
def test_calibration_keeps_ties_together_and_loses_nothing(rows: np.ndarray) -> None:
    labels, scores, weights, _ = rows
    table = calibration_table(labels, scores, weights)
    assert len(table) <= min(10, len(set(scores)))
    assert sum(row.count for row in table) == pytest.approx(weights.sum())
    assert sum(row.count * row.observed for row in table) == pytest.approx((weights * labels).sum())
    assert all(a.high < b.low for a, b in itertools.pairwise(table))


def test_calibration_of_one_constant_is_one_row_and_of_nothing_none() -> None:
    (row,) = calibration_table([0, 1, 0, 0], [0.5] * 4)
    assert (row.predicted, row.observed, row.count, row.ratio) == (0.5, 0.25, 4, 2.0)
    assert calibration_table([], []) == calibration_table([1.0], [math.nan]) == ()
    broken = Measures()
    broken.update([1.0], [math.nan])
    assert broken.calibration_table == Measures().calibration_table == ()


def test_a_paired_difference_counts_weights_as_the_aucs_do() -> None:
    draw = np.random.default_rng(8)
    labels = (draw.random(500) < 0.3).astype(float)
    a, b = labels * 0.2 + draw.random(500), labels * 0.1 + draw.random(500)
    weights = draw.integers(1, 5, 500).astype(float)
    found = paired_auc_difference(labels, a, b, weights)
    assert found.difference == pytest.approx(auc(labels, a, weights) - auc(labels, b, weights))
    plain, ones = (paired_auc_difference(labels, a, b, w) for w in (None, np.full(500, 3.0)))
    assert (ones.difference, ones.se) == pytest.approx((plain.difference, plain.se))
    assert found.se > plain.se  # fewer examples carry it
