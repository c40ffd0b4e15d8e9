"""Admission and expiry in whole runs: with several workers and shards, after a resume, and in the report."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gearshift as gs
from examples import make_batch
from gearshift.data.schema import Categorical, Schema
from gearshift.embedding.rule_figures import rules_text
from gearshift.errors import UserError
from gearshift.parameters.checkpoint import Checkpoint
from tests.unit.trainer.test_trainer import StopAt, trainer

SCHEMA = Schema(
    (
        Categorical("user", min_count=2, expire=gs.Expire(after="2d", occurrences_below=4)),
        Categorical("ad", expire=gs.Expire(after=6)),
        Categorical("site"),
        Categorical("page", admit=0.5),
    ),
    time="ts",
)
DAY, SIZE = 86_400, 3000


def data() -> gs.Dataset:
    """Every tenth of the data has other ids, and takes one day."""
    batch = make_batch(SCHEMA, SIZE, vocabulary=200)
    tenth = np.arange(SIZE) // (SIZE // 10)
    ids_BF = batch.ids_BF + (tenth[:, None] * 50) + np.arange(4) * 10_000
    return gs.read(replace(batch, ids_BF=ids_BF, times_B=np.arange(SIZE) * DAY // (SIZE // 10)), SCHEMA)


def fit(path: Path, resume: Path | None = None, callbacks: tuple = (), **settings: object) -> gs.Result:
    model = gs.models.build("deepfm", SCHEMA, seed=5, dim=4, hidden=[8])
    return trainer(path, **settings).fit(model, data(), resume=resume, callbacks=callbacks)


def rows(result: gs.Result, name: str = "rows0") -> dict[int, tuple[bytes, ...]]:
    opened = Checkpoint.open((result.folder / "checkpoints" / "last").resolve())
    return {
        int(row[0]): tuple(np.asarray(value).tobytes() for value in row[1:])
        for block in opened.rows(name)
        for row in zip(*vars(block).values(), strict=True)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> gs.Result:
    return fit(tmp_path_factory.mktemp("whole"))


def test_the_report_says_what_happened(whole: gs.Result) -> None:
    counts = whole.report["row_rules"]
    assert set(counts) == {"user", "ad", "page"}
    assert counts["user"]["admitted"] and counts["user"]["refused_occurrences"] and counts["user"]["expired"]
    assert counts["ad"]["expired"] and not counts["ad"]["admitted"] and not counts["page"]["expired"]
    assert counts["page"]["refused_gradients"] <= counts["page"]["refused_occurrences"]
    (line,) = [line for line in whole.lines if line.startswith("rows ")]
    total = sum(of_table["expired"] for of_table in counts.values())
    assert f"{total:,} rows expired" in line
    assert whole.report["embedding_rows"] == len(rows(whole))


def test_only_rows_within_their_horizon_are_left(whole: gs.Result) -> None:
    last_ads = np.unique(make_batch(SCHEMA, SIZE, vocabulary=200).ids_BF[-700:, 1])
    left = [i for i in rows(whole) if 11_000 <= i < 12_000]
    assert 0 < len(left) < 2.5 * len(last_ads)
    assert min(left) >= 11_000 + 50 * 6  # of 30 steps, those of the first 21 have no id in common with these


@pytest.mark.parametrize(
    "settings",
    [{"workers": 2, "strategy": "sync"}, {"shards": 3}, {"workers": 2, "shards": 2, "strategy": "sync"}],
    ids=["workers", "shards", "both"],
)
def test_workers_and_shards_change_nothing_but_the_order_of_sums(
    tmp_path: Path, whole: gs.Result, settings: dict
) -> None:
    other = fit(tmp_path, **settings)
    assert other.report["row_rules"] == whole.report["row_rules"]
    if settings.get("workers", 1) == 1:
        assert rows(other) == rows(whole)
    else:
        assert rows(other).keys() == rows(whole).keys()


@pytest.mark.parametrize("step", [3, 11, 25])
def test_a_resumed_run_ends_with_the_same_rows(tmp_path: Path, whole: gs.Result, step: int) -> None:
    stopped = fit(tmp_path, callbacks=(StopAt(step),))
    resumed = fit(tmp_path, resume=stopped.folder)
    assert rows(resumed) == rows(whole)
    assert resumed.report["row_rules"] == whole.report["row_rules"]


@pytest.mark.parametrize("strategy", ["gba", "easgd"])
def test_it_works_without_a_common_step(tmp_path: Path, strategy: str) -> None:
    counts = fit(tmp_path, workers=2, strategy=strategy).report["row_rules"]
    assert counts["user"]["refused_gradients"] and counts["ad"]["expired"] and counts["page"]["admitted"]


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ((Categorical("a", min_count=0),), "feature `a`: min_count=0 must be 1 to 255"),
        ((Categorical("a", admit=0.0),), "feature `a`: admit=0.0 must be above 0 and at most 1"),
        ((Categorical("a", min_count=2, admit=0.1),), "both say which ids get an embedding; remove one"),
        ((Categorical("a", expire=gs.Expire("30d")),), "expire.after=30d needs data.time"),
        (
            (Categorical("a"), gs.Sequence("b", share_embedding="a", min_count=3)),
            "`b` shares the embedding of `a`, whose min_count counts; remove min_count here",
        ),
    ],
)
def test_what_does_not_fit_is_said(features: tuple, sentence: str) -> None:
    with pytest.raises(UserError, match="feature `") as error:
        Schema(features)
    assert sentence in str(error.value)


@pytest.mark.parametrize("after", ["soon", 0, -5, "0d", True])
def test_a_period_is_steps_or_a_duration(after: object) -> None:
    with pytest.raises(
        UserError,
        match=r"expected a number of steps, such as 100000, or a duration, such as 30d|more than 0, such as",
    ):
        gs.Expire(after=after)  # type: ignore[arg-type]


def test_a_period_shorter_than_a_step_is_told(tmp_path: Path) -> None:
    """A step of the data takes a third of a day."""
    model = gs.models.build("deepfm", SCHEMA, seed=5, dim=4, hidden=[8])
    short = replace(
        SCHEMA, features=(Categorical("user", expire=gs.Expire(after="10s")), *SCHEMA.features[1:])
    )
    batch = make_batch(short, SIZE)
    read = gs.read(replace(batch, times_B=np.arange(SIZE) * DAY // (SIZE // 10)), short)
    run = trainer(tmp_path).start(gs.models.build("deepfm", short, seed=5, dim=4, hidden=[8]), read)
    run.wait(120)
    told = [message for message in run.messages if "shorter than a step" in message]
    assert (
        len(told) == 1
        and "expire.after=10s is shorter than a step, which spans" in told[0]
        and " h of" in told[0]
    )
    plain = trainer(tmp_path).start(model, data())
    plain.wait(120)
    assert not [message for message in plain.messages if "shorter than a step" in message]


def test_nothing_is_said_of_admission_where_all_ids_get_rows() -> None:
    none = dict.fromkeys(("admitted", "refused_occurrences", "refused_gradients", "expired"), 0)
    assert rules_text({**none, "expired": 7}) == "7 rows expired"
    assert rules_text({**none, "admitted": 3}) == (
        "3 ids admitted; 0 occurrences of new ids refused (0 gradients)"
    )
    assert rules_text(none) == "0 rows expired"


def test_ids_without_a_row_may_have_been_seen(tmp_path: Path) -> None:
    """Features with a rule are left out of the warning that training never saw an id."""
    features = (Categorical("user_id", min_count=200), Categorical("item_id"))
    schema = Schema(features)
    batch = make_batch(schema, SIZE, vocabulary=50)
    rows = gs.read(batch, schema)
    report = (
        trainer(tmp_path, baseline=False)
        .fit(gs.models.build("deepfm", schema, seed=5, dim=4, hidden=[8]), rows, rows)
        .report
    )
    assert set(report["unseen_ids"]) == {"item_id"}


def test_a_feature_that_shares_an_embedding_may_repeat_its_rule() -> None:
    expire = gs.Expire(after=100)
    schema = Schema((Categorical("a", expire=expire), gs.Sequence("b", share_embedding="a", expire=expire)))
    assert Schema.from_dict(schema.to_dict()) == schema


CONFIG = """
data: {train: clicks.csv, label: click}
features:
- {name: user, type: categorical, min_count: 2, expire: {after: 4, occurrences_below: 100}}
- {name: site, type: categorical}
model: {name: lr}
train: {global_batch: 50, baseline: true}
checkpoint: {path: runs}
"""


def test_the_command_line_trains_and_shows_it(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    lines = [f"{random.integers(2)},u{random.integers(300) + i // 4},s{i % 7}" for i in range(1500)]
    (tmp_path / "clicks.csv").write_text("click,user,site\n" + "\n".join(lines) + "\n")
    (tmp_path / "clicks.yaml").write_text(CONFIG)

    def gearshift(*arguments: str) -> str:
        command = [sys.executable, "-m", "gearshift", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "ids admitted;" in gearshift("train", "clicks.yaml")
    assert "rows of   user: " in gearshift("inspect", "last")
