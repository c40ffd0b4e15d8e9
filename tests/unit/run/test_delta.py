"""A base and its deltas give the full checkpoint, bit for bit; anything else is refused."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gearshift as gs
from gearshift.cli import app as cli
from gearshift.embedding.cold_tier import ColdTier
from gearshift.embedding.row_files import NO_IDS, changes_in, write_changes
from gearshift.embedding.store import RowBlock
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.parameters.row_changes import RowDigest, applied, by_partition, changes
from gearshift.run.folder import RUN
from gearshift.training.timing import Every

DATA = gs.read(gs.ClickLog(8000))


def run_with_checkpoints(folder: Path, memory: int | None = None) -> gs.Result:
    trainer = gs.Trainer(
        global_batch=512,
        workers=gs.WorkerSettings(memory=memory),
        checkpoint=gs.CheckpointPolicy(Every(steps=4), keep=20, path=folder),
    )
    return trainer.fit(gs.models.DeepFM(DATA.schema, dim=4, hidden=[8]), DATA)


def steps(result: gs.Result) -> list[int]:
    folders = (result.folder / "checkpoints").glob("step-*")
    return sorted(int(folder.name.removeprefix("step-")) for folder in folders)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> gs.Result:
    return run_with_checkpoints(tmp_path_factory.mktemp("runs"))


def assert_same_checkpoint(left: Path, right: Path) -> None:
    a, b = Checkpoint.open(left), Checkpoint.open(right)
    assert a.facts["step"] == b.facts["step"]
    for name in ("dense", "optimizer"):
        for key, values in a.arrays(name).items():
            np.testing.assert_array_equal(values, b.arrays(name)[key])
    for (_, x), (_, y) in zip(by_partition(a.rows("rows0")), by_partition(b.rows("rows0")), strict=True):
        for field in fields(x):
            np.testing.assert_array_equal(getattr(x, field.name), getattr(y, field.name))


def test_a_base_and_its_deltas_give_the_full_checkpoint(trained: gs.Result, tmp_path: Path) -> None:
    first, middle, *_, last = steps(trained)
    one = gs.write_delta(trained.folder, first, to=middle, path=tmp_path / "one")
    two = gs.write_delta(trained.folder, middle, path=tmp_path / "two")
    assert (one.since, one.step, two.since, two.step) == (first, middle, middle, last)
    assert 0 < one.changed < one.rows
    base = trained.folder / "checkpoints" / f"step-{first}"
    full = gs.apply_deltas(base, [one.path, two.path], tmp_path / "full")
    assert_same_checkpoint(full, trained.folder / "checkpoints" / f"step-{last}")
    newest = gs.load(trained.folder / "checkpoints" / f"step-{last}")
    np.testing.assert_array_equal(gs.load(full).predict(DATA.head(500)), newest.predict(DATA.head(500)))


def test_rows_on_disk_have_deltas_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ColdTier, "share", lambda tier, part: replace(tier, hot_rows=1024))
    result = run_with_checkpoints(tmp_path, memory=1 << 20)
    assert result.report["tier"]["cold_rows"] > 0
    first, *_, last = steps(result)
    delta = gs.write_delta(result.folder, first)
    full = gs.apply_deltas(result.folder / "checkpoints" / f"step-{first}", [delta.path], tmp_path / "full")
    assert_same_checkpoint(full, result.folder / "checkpoints" / f"step-{last}")


def test_what_does_not_fit_together_is_refused(trained: gs.Result, tmp_path: Path) -> None:
    first, middle, *_, last = steps(trained)
    checkpoints = trained.folder / "checkpoints"
    delta = gs.write_delta(trained.folder, middle, path=tmp_path / "delta").path
    with pytest.raises(UserError, match=f"applies to step {middle}, but .* is from step {first}"):
        gs.apply_deltas(checkpoints / f"step-{first}", [delta], tmp_path / "full")
    with pytest.raises(UserError, match="is a delta: apply it to its base first"):
        gs.load(delta)
    with pytest.raises(UserError, match="is a checkpoint, not a delta"):
        gs.apply_deltas(checkpoints / f"step-{first}", [checkpoints / f"step-{last}"], tmp_path / "full")
    with pytest.raises(
        UserError, match=rf"no checkpoint of step 999999 .*: there are those of steps {first}, "
    ):
        gs.write_delta(trained.folder, 999_999)
    with pytest.raises(UserError, match="is not newer than"):
        gs.write_delta(trained.folder, last)
    other = run_with_checkpoints(tmp_path / "other").folder
    changed = next((other / "checkpoints" / f"step-{middle}").glob("rows0-*.gsr"))
    content = bytearray(changed.read_bytes())
    content[100] ^= 1
    changed.write_bytes(content)
    with pytest.raises(
        UserError, match=r"^checkpoint .*: rows0-00-000\.gsr is damaged: .*; use another checkpoint$"
    ):
        gs.apply_deltas(other / "checkpoints" / f"step-{middle}", [delta], tmp_path / "full")
    assert not (tmp_path / "full").exists() and not list(tmp_path.glob(".*"))


def test_a_damaged_delta_is_copied_or_written_again(trained: gs.Result, tmp_path: Path) -> None:
    first, *_ = steps(trained)
    base, delta = trained.folder / "checkpoints" / f"step-{first}", tmp_path / "delta"
    gs.write_delta(trained.folder, first, path=delta)
    file = next(delta.glob("rows0-*.gsr"))
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    told = rf"^delta {delta}: {file.name} is damaged: .*; copy the delta again, or write it again$"
    with pytest.raises(UserError, match=told):
        gs.apply_deltas(base, [delta], tmp_path / "full")
    file.unlink()
    with pytest.raises(UserError, match=rf"^delta {delta}: {file.name} is missing; copy the delta again"):
        gs.apply_deltas(base, [delta], tmp_path / "full")


def test_the_command_line(
    trained: gs.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *_, last = steps(trained)
    run = str(trained.folder)
    assert cli.run(["delta", run, "--since", str(first), "--out", "changes"]) == 0
    assert f"delta   step {first} to {last}: " in capsys.readouterr().out
    base = str(trained.folder / "checkpoints" / f"step-{first}")
    assert cli.run(["apply-delta", base, "changes", "--out", "full"]) == 0
    assert "wrote   full, verified" in capsys.readouterr().out
    assert_same_checkpoint(tmp_path / "full", trained.folder / "checkpoints" / f"step-{last}")
    assert cli.run(["apply-delta", f"{run}@step-{first}", "changes", "--out", "again"]) == 0
    assert_same_checkpoint(tmp_path / "again", tmp_path / "full")
    Path("clicks.csv").write_text("click,user\n")
    capsys.readouterr()
    assert cli.run(["apply-delta", base, "clicks.csv", "--out", "other"]) == 2
    told = "clicks.csv is not a delta, which gearshift delta writes: it has no manifest.json\n"
    assert capsys.readouterr().err == told
    assert cli.run(["apply-delta", base, "changes", "--out", "full"]) != 0
    assert "full exists: name a new folder" in capsys.readouterr().err
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    assert cli.run(["delta", run, "--since", str(first), "--out", "precious"]) != 0
    assert "precious exists: name a new folder" in capsys.readouterr().err
    assert (tmp_path / "precious" / "file").exists()
    assert cli.run(["delta", run]) != 0
    assert "--since STEP" in capsys.readouterr().err


def block(values: dict[int, int]) -> RowBlock:
    ids_U = np.array(sorted(values), np.int64)
    weights_UW = np.array([[values[int(i)]] for i in ids_U], np.float32).reshape(-1, 1)
    zeros_U = np.zeros(len(ids_U), np.uint32)
    return RowBlock(ids_U, weights_UW, weights_UW[:, :0], zeros_U, zeros_U, zeros_U)


tables = st.dictionaries(st.integers(0, 3000), st.integers(0, 2), max_size=200)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=tables, new=tables)
def test_applied_changes_give_the_new_rows(old: dict[int, int], new: dict[int, int], tmp_path: Path) -> None:
    """Through a file: a row of zeros is a row, and what is gone is a tombstone."""
    difference = changes(by_partition([block(old)]), by_partition([block(new)]))
    folder = Path(mkdtemp(dir=tmp_path))
    found = [each for stack in write_changes(folder, "rows0", difference) for each in changes_in(stack)]
    erased_U = np.concatenate([NO_IDS, *(each.erased_U for each in found)])
    assert set(erased_U.tolist()) == set(old) - set(new)
    assert sum(len(each.changed.ids_U) for each in found) == sum(old.get(i) != v for i, v in new.items())
    result, expected = RowDigest(), RowDigest()
    rows = applied(by_partition([block(old)]), iter(found))
    assert {int(i) for _, each in result.reading(rows) for i in each.ids_U} == set(new)
    list(expected.reading(by_partition([block(new)])))
    assert result.facts == expected.facts


def test_a_store_may_get_its_first_row_between_two_deltas(trained: gs.Result, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    shutil.copy(trained.folder / RUN, run)
    for step, stores in ((1, ["rows0"]), (2, ["rows0"]), (3, ["rows0", "rows1"])):
        rows = {name: [block({step: step, 10 + step: 1})] for name in stores}
        checkpoint.write(run / "checkpoints" / f"step-{step}", {"step": step}, {}, rows)
    (run / "checkpoints" / "last").symlink_to("step-3")
    deltas = [gs.write_delta(run, step, to=step + 1, path=tmp_path / f"from-{step}").path for step in (1, 2)]
    full = gs.apply_deltas(run / "checkpoints" / "step-1", deltas, tmp_path / "full")
    ids = [int(id_) for rows in Checkpoint.open(full).rows("rows1") for id_ in rows.ids_U]
    assert sorted(ids) == [3, 13]
