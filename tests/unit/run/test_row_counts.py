"""Rows of a checkpoint by table, occurrences and age, against a plain count of the rows that the checkpoint has."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gearshift as gs
from examples import RAGGED, make_batch
from gearshift.cli import app as cli
from gearshift.embedding.cold_tier import ColdTier
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run.row_counts import AGES, OCCURRENCES, RowClass

SCHEMA = gs.Schema((*RAGGED.features[:4], gs.Categorical("user", min_count=2), *RAGGED.features[4:]))
PACKED = Path(__file__).parents[2] / "fixtures" / "old_runs"


def fit(path: Path, memory: int | None = None, **settings: object) -> gs.Result:
    trainer = gs.Trainer(
        global_batch=100,
        workers=gs.WorkerSettings(memory=memory),
        checkpoint=gs.CheckpointPolicy(None, path=path),
        **settings,
    )
    batch = make_batch(SCHEMA, 4000, vocabulary=4000)
    once_B = np.arange(4000) // 400 * 400  # one id per 400 examples
    apart = [batch.ids_BF[:, 0] ** 2 // 4000, 20_000 + batch.ids_BF[:, 1], 40_000 + once_B]
    ids_BF = np.stack(apart, 1).astype(np.int64)
    data = gs.read(replace(batch, ids_BF=ids_BF), SCHEMA)
    return trainer.fit(gs.models.build("wide_deep", SCHEMA, seed=5, dim=8, hidden=[8]), data)


@pytest.fixture(scope="module", params=["in memory", "with a disk tier"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> gs.Result:
    folder = tmp_path_factory.mktemp("runs")
    if request.param == "in memory":
        return fit(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=512))
        result = fit(folder, memory=1 << 20)
    assert result.report["tier"]["cold_rows"] > 0
    return result


def checkpoint_of(result: gs.Result) -> Path:
    return (result.folder / "checkpoints" / "last").resolve()


def class_of(number: int, most: tuple[int, ...]) -> int:
    return sum(number > limit for limit in most)


def counted(result: gs.Result) -> dict[tuple[int, int], tuple[Counter[int], Counter[int]]]:
    """Classes of occurrences and of age, by store and table."""
    opened = Checkpoint.open(checkpoint_of(result))
    found: dict[tuple[int, int], tuple[Counter[int], Counter[int]]] = {}
    for store in range(len(opened.facts["parts"])):
        for block in opened.rows(f"rows{store}"):
            rows = zip(block.tables_U, block.touches_U, block.last_step_U, strict=True)
            for table, touches, last in rows:
                occurrences, ages = found.setdefault((store, int(table)), (Counter(), Counter()))
                occurrences[class_of(int(touches), OCCURRENCES)] += 1
                ages[class_of(opened.facts["step"] - int(last), AGES) if last else -1] += 1
    return found


def rows_of(classes: tuple[RowClass, ...]) -> Counter[int]:
    return Counter({at: one.rows for at, one in enumerate(classes) if one.rows})


def test_rows_are_counted_by_table_occurrences_and_age(trained: gs.Result) -> None:
    counts = gs.count_rows(trained.folder)
    assert (counts.checkpoint, counts.step) == (checkpoint_of(trained), 40)
    expected = counted(trained)
    tables = {table.table: table for table in counts.tables}
    places = {"item": (0, 1), "user": (0, 2), "tags": (0, 3), "country": (1, 1)}
    assert tables.keys() == places.keys() and len(expected) == 4
    for name, place in places.items():
        occurrences, ages = expected[place]
        assert rows_of(tables[name].by_occurrences) == occurrences
        assert rows_of(tables[name].by_age) == Counter({at: n for at, n in ages.items() if at >= 0})
        assert tables[name].untrained == ages[-1]
        assert tables[name].rows == occurrences.total()
    assert counts.rows == trained.report["embedding_rows"]
    assert [table.rows for table in counts.tables] == sorted((t.rows for t in counts.tables), reverse=True)
    assert tables["item"].features == ("item", "history"), "both use the table"


def test_min_count_saves_the_rows_that_have_fewer_occurrences(trained: gs.Result) -> None:
    counts = {table.table: table for table in gs.count_rows(checkpoint_of(trained)).tables}
    country, (occurrences, _) = counts["country"], counted(trained)[1, 1]
    once, twice, all_rows = occurrences[1], occurrences[2], occurrences.total()
    assert 0 < country.seen_once == once / all_rows < 1
    assert country.saved_by(2) == once / all_rows
    assert country.saved_by(3) == (once + twice) / all_rows
    assert counts["user"].saved_by(2) is None, "it has a min_count, so earlier occurrences were not counted"
    with pytest.raises(ValueError, match="min_count=4 is not one of those"):
        country.saved_by(4)


def test_inspect_shows_and_writes_them(
    trained: gs.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    assert cli.run(["inspect", str(trained.folder), "--rows", "--json", str(file)]) == 0
    counts = gs.count_rows(trained.folder)
    head, _, heads, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith(f"step 40, {counts.rows:,} rows")
    assert heads.split()[:6] == ["rows", "of", "rows", "share", "seen", "once"]
    assert heads.endswith("  min_count=2 saves  min_count=3 saves  min_count=5 saves")
    shown = {line.split("  ")[0]: line for line in lines[: len(counts.tables)]}
    assert shown.keys() == {"item, history", "user", "tags", "country"}
    assert f"{counts.tables[0].rows:,}" in lines[0]
    assert shown["user"].split()[-3:] == ["-", "-", "-"] and shown["country"].split()[-1].endswith("%")
    assert "Share of the rows by occurrences of their id" in lines
    assert "Share of the rows by steps since they were trained" in lines
    assert sum(line.startswith("all ") for line in lines) == 2
    written = json.loads(file.read_text())
    assert written == json.loads(json.dumps(counts.as_dict()))
    (item,) = [table for table in written["tables"] if table["table"] == "item"]
    assert item["features"] == ["item", "history"] and item["saved_by_min_count"].keys() == {"2", "3", "5"}
    assert item["by_occurrences"][3] == {"least": 3, "most": 4, "rows": item["by_occurrences"][3]["rows"]}


def test_what_has_no_rows_to_count_is_refused(
    trained: gs.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clicks.yaml").write_text("model: lr")
    for arguments, sentence in (
        ([str(tmp_path / "clicks.yaml"), "--rows"], "takes no config and no settings"),
        ([str(trained.folder), "model.dim=4", "--rows"], "takes no config and no settings"),
        ([str(trained.folder), "--json", "rows.json"], "add --rows"),
        ([str(tmp_path), "--rows"], "is not a run folder"),
    ):
        assert cli.run(["inspect", *arguments]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(PACKED)).removesuffix(".tar.gz") for path in PACKED.glob("*/*.gz"))
)
def test_checkpoints_of_older_versions_are_counted(tmp_path: Path, name: str) -> None:
    with tarfile.open(PACKED / f"{name}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    counts = gs.count_rows(next(tmp_path.iterdir()))
    assert counts.rows == gs.load(counts.checkpoint).learner.rows > 0
    assert sum(table.rows for table in counts.tables if not table.features) in (0, counts.rows)


class Narrow(nn.Module):
    """A module of one's own: a checkpoint has no settings of it."""

    dim = 4

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(20, 1)

    def forward(self, x: gs.Inputs) -> torch.Tensor:
        return self.last(x.fields.flatten(1))


def test_the_tables_of_a_module_of_ones_own_are_named(tmp_path: Path) -> None:
    schema = gs.Schema((gs.Categorical("user"), gs.Categorical("ad", dim=16)))
    trainer = gs.Trainer(global_batch=100, checkpoint=gs.CheckpointPolicy(None, path=tmp_path))
    batch = make_batch(schema, 1000)
    ids_BF = np.stack([batch.ids_BF[:, 0], 1000 + batch.ids_BF[:, 1] % 7], 1)
    result = trainer.fit(Narrow(), gs.read(replace(batch, ids_BF=ids_BF), schema))
    assert [(t.table, t.rows) for t in gs.count_rows(result.folder).tables] == [("user", 50), ("ad", 7)]


def test_a_saved_model_and_one_without_embeddings_are_counted(tmp_path: Path) -> None:
    data = gs.read(gs.ClickLog(2000, days=1))
    trainer = gs.Trainer(global_batch=500, checkpoint=gs.CheckpointPolicy(None, path=tmp_path / "runs"))
    result = trainer.fit(gs.models.LR(data.schema), data)
    saved = gs.count_rows(result.save(tmp_path / "model"))
    assert saved.tables == gs.count_rows(result.folder).tables
    assert {table.table for table in saved.tables} == {field.name for field in data.schema.fields}
