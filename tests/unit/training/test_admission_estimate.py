"""What `min_count` would save, estimated from a sample, against a count over all drawn ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gearshift.config import load_config
from gearshift.data.batch import Batch
from gearshift.data.schema import Categorical, Schema
from gearshift.embedding.lookup import field_groups
from gearshift.embedding.row_rules import RowRule
from gearshift.training.admission_estimate import (
    AdmissionProposal,
    Growth,
    admitted_share,
    growth_of,
    place_of,
    propose_admission,
    tables_of,
)

SCHEMA = Schema((Categorical("site"), Categorical("user_id"), Categorical("page", min_count=2)))


def drawn(exponent: float, count: int) -> np.ndarray:
    """Ids whose frequencies follow a power law with a long tail."""
    return np.random.default_rng(1).zipf(exponent, count).astype(np.int64)


@pytest.mark.parametrize("exponent", [1.2, 1.5, 1.8])
def test_the_share_of_rare_ids_follows_from_the_growth_of_a_small_sample(exponent: float) -> None:
    ids = drawn(exponent, 1_000_000)
    growth = growth_of(np.split(ids[:40_000], 20), 25)
    known, counts = np.unique(ids, return_counts=True)
    assert growth.rows == pytest.approx(len(known), rel=0.25)
    assert growth.share_below(2) == pytest.approx(np.mean(counts == 1), rel=0.15)
    assert growth.share_below(3) == pytest.approx(np.mean(counts <= 2), rel=0.15)
    assert growth.share_below(6) == pytest.approx(np.mean(counts <= 5), rel=0.15)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("rule", [RowRule(min_count=4), RowRule(admit=0.2)], ids=["min_count", "admit"])
def test_the_share_of_ids_that_get_rows(rule: RowRule, epochs: int) -> None:
    ids = drawn(1.5, 1_000_000)
    growth = growth_of(np.split(ids[:40_000], 20), 25)
    occurrences = epochs * np.unique(ids, return_counts=True)[1]
    gets_row = occurrences >= 4 if rule.min_count else 1 - 0.8**occurrences
    assert growth.share_admitted(rule, epochs) == pytest.approx(np.mean(gets_row), rel=0.15)


def test_only_tables_with_a_rule_have_fewer_rows_than_ids() -> None:
    (group,) = field_groups(SCHEMA, 16)
    site, user, page = tables_of(group, sample(), 10, 1)
    assert (site.admitted, user.admitted) == (1.0, 1.0) and page.growth == user.growth
    assert page.admitted == 1 - page.growth.share_below(2) < 0.6
    share = admitted_share(group, sample(), 10, 1)
    assert share == (site.rows + user.rows + page.rows) / (50 + 2 * user.growth.rows)
    plain = Schema((Categorical("site"), Categorical("user_id"), Categorical("page")))
    assert admitted_share(field_groups(plain, 16)[0], sample(), 10, 1) == 1.0


def test_ids_that_do_not_come_back_and_ids_that_are_all_known() -> None:
    new, known = np.arange(1000), np.arange(1000) % 10
    assert growth_of(np.split(new, 10), 5) == Growth(5000, 1.0)
    assert growth_of(np.split(known, 10), 5) == Growth(10, 0.0)
    assert growth_of([new[:0]] * 2, 5) == Growth(0, 0.0)
    assert (Growth(1, 1.0).share_below(2), Growth(1, 0.0).share_below(9)) == (1.0, 0.0)


def sample(batches: int = 20, size: int = 1000) -> list[Batch]:
    """Few sites, and users and pages of whom half are new."""
    users = drawn(2.0, batches * size) + 10_000
    ids_BF = np.stack([np.arange(len(users)) % 50, users, users + 10**9], 1)
    none = np.zeros((size, 0), np.float32)
    return [Batch(0, np.zeros((size, 1), np.float32), none, part) for part in np.split(ids_BF, batches)]


def proposed(room: float, epochs: int = 1, schema: Schema = SCHEMA) -> AdmissionProposal | None:
    (group,) = field_groups(schema, 16)
    tables = tables_of(group, sample(), 10, epochs)
    return propose_admission(schema, [(tables, 1000)], epochs=epochs, room=room)


def test_the_smallest_count_that_fits_is_proposed_for_the_features_that_have_many_rare_ids() -> None:
    """Users and pages occur alike, half of them once; pages have a rule, so users have two thirds of the rows."""
    fits = proposed(room=800)
    assert fits is not None and fits.settings == ("features[user_id].min_count=2",)
    assert 600 < fits.row_bytes < 750
    more = proposed(room=100)
    assert more is not None and more.settings == ("features[user_id].min_count=3",)
    assert 500 < more.row_bytes < fits.row_bytes - 50


def test_each_epoch_repeats_the_occurrences() -> None:
    twice = proposed(room=800, epochs=2)
    assert twice is not None and twice.settings == ("features[user_id].min_count=3",)
    assert proposed(room=800, epochs=300) is None, "no counter counts so far"


def test_nothing_is_proposed_where_it_would_save_little() -> None:
    gated = Schema(tuple(Categorical(name, min_count=2) for name in ("site", "user_id", "page")))
    assert proposed(room=1, schema=gated) is None
    shared = Schema(
        (Categorical("site"), Categorical("user_id"), Categorical("page", share_embedding="user_id"))
    )
    settings = proposed(room=1, schema=shared)
    assert settings is not None and settings.settings == ("features[user_id].min_count=3",)


def test_a_setting_names_its_feature_so_that_the_command_line_takes_it(tmp_path: Path) -> None:
    names = ["user_id", "user id", "7", "a]b", "x=y"]
    features = ", ".join(f'{{name: "{name}", type: categorical}}' for name in names)
    file = tmp_path / "clicks.yaml"
    file.write_text(f"data: {{train: clicks.csv, label: click}}\nfeatures: [{features}]\n")
    schema = Schema(tuple(map(Categorical, names)))
    assert place_of(schema, "user_id") == "features[user_id]"
    for at, name in enumerate(names):
        config = load_config(file, [f"{place_of(schema, name)}.min_count=3"])
        made = config.schema()
        assert made is not None
        assert [feature.min_count for feature in made.lifetimes] == [3 if i == at else None for i in range(5)]
