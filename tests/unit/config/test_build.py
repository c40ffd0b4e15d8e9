"""From a config file to a finished run: what is built, what is refused before anything is written."""

from __future__ import annotations

import errno
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from gearshift.cli import compare
from gearshift.config import Config, load_config
from gearshift.config.build import build, make_trainer, start
from gearshift.errors import DataWarning, UserError
from gearshift.models.losses import LOSSES
from gearshift.run import control_socket_server, ownership
from gearshift.run import folder as run_folder
from gearshift.run.local_run import Run
from gearshift.run.storage_watch import figures_here
from gearshift.training import estimate
from gearshift.training.estimate import Estimate, refuse_too_large

CSV = """\
data: {{train: {train}, label: click, time: ts{more}}}
features:
  - {{name: user, type: categorical}}
  - {{name: price, type: numeric, transform: standardize, missing: mean}}
model: {{name: deepfm, dim: 4, hidden: [8]}}
train: {{global_batch: 64}}
checkpoint: {{path: {runs}}}
"""


def write_log(path: Path, lines: int = 600, first: int = 0, price: str = "{i}.5") -> Path:
    text = "click,ts,user,price\n" + "".join(
        f"{int(i % 3 == 0)},{1_700_000_000 + 600 * i},u{i % 97},{price.format(i=i % 5)}\n"
        for i in range(first, first + lines)
    )
    path.write_text(text)
    return path


def configured(tmp_path: Path, more: str = "", settings: list[str] | None = None, **log):
    data = write_log(tmp_path / "clicks.csv", **log)
    file = tmp_path / "clicks.yaml"
    file.write_text(CSV.format(train=data, more=more, runs=tmp_path / "runs"))
    return load_config(file, settings or [])


def test_a_run_from_a_csv_file(tmp_path: Path) -> None:
    run = start(configured(tmp_path, ", split: {by: time, valid: 20%}"), command="test")
    result = run.wait(120)
    assert result.report["examples"] + result.report["measured_examples"] == 600
    assert result.report["baselines"]["lr"]["examples"] == result.report["measured_examples"]
    assert (run.folder / "config.yaml").is_file() and (run.folder / "report.json").is_file()
    assert any("embedding rows expected" in line for line in run.header)
    assert str(run.folder) in run.header[0]


def with_a_copy(tmp_path: Path) -> Config:
    """Of the file that it trains on."""
    configured(tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "logs" / name).write_bytes((tmp_path / "clicks.csv").read_bytes())
    return load_config(tmp_path / "clicks.yaml", [f"data.train={tmp_path / 'logs'}"])


def test_what_is_said_of_the_data_is_a_message_of_the_run_and_in_its_log(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        run = start(with_a_copy(tmp_path), command="test")
        run.wait(120)
    (said,) = [line for line in run.messages if "seems to hold the same examples as" in line]
    assert (run.folder / "run.log").read_text().count(said) == 1


def test_what_is_said_of_the_data_of_compared_runs_is_warned_of(tmp_path: Path) -> None:
    """Their messages are not shown."""
    asked = cast(compare.CompareOptions, SimpleNamespace(config="clicks.yaml"))
    with pytest.warns(DataWarning, match="seems to hold the same examples as"):
        compare._run(with_a_copy(tmp_path), asked)


def test_only_the_first_process_of_a_cluster_looks_for_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_a_copy(tmp_path)
    first = build(config, rows_elsewhere=True)
    assert any("seems to hold the same examples as" in line for line in first.messages)
    monkeypatch.setattr(
        "gearshift.data.readers.source_opener.copy_remarks", lambda files: pytest.fail("again")
    )
    other = build(config, schema=first.training.learner.schema, rows_elsewhere=True)
    assert other.messages == []


def test_what_is_said_of_data_that_fail_is_warned_of(tmp_path: Path) -> None:
    """There is no run that could tell it."""
    config = with_a_copy(tmp_path)
    with pytest.warns(DataWarning, match="seems to hold the same examples as"), pytest.raises(UserError):
        build(config, resume=tmp_path / "nothing")


@pytest.mark.parametrize("breaks", ["config.yaml", "control", "run.json"])
def test_a_run_that_cannot_start_has_failed_and_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    real = run_folder.write_text

    def full(path: Path, text: str) -> None:
        if path.name == breaks and '"failed"' not in text:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(run_folder, "write_text", full)
    if breaks == "control":
        monkeypatch.setattr(control_socket_server, "serve", lambda *_: full(Path("control"), ""))
    with pytest.raises(OSError, match="No space"):
        start(configured(tmp_path), command="test")
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    assert ownership.held(folder) is None and list((folder / "lease").glob("*.released"))
    if breaks != "run.json":
        record = run_folder.read(folder)
        assert record.state == "failed" and "No space left on device" in record.reason


def test_the_header_says_what_a_batch_rule_did(tmp_path: Path) -> None:
    settings = [
        "global_batch=64",
        "micro_batches=4",
        "base_batch=16",
        "batch_rule=cowclip",
        "embeddings.l2=1e-6",
    ]
    run = start(configured(tmp_path, settings=settings))
    run.wait(120)
    assert "sync, 1 worker, global batch 64 = 4 x 16" in run.header[0]
    grown = "Rates  tuned for batch 16, cowclip to 64: dense x2"
    assert run.header[1] == f"{grown}, L2 of rows x4, warm-up over the first 10 %"
    plain = start(configured(tmp_path, settings=[*settings[:-1], "strategy=async"]))
    plain.wait(120)
    small = "But a step of async has 16 examples: these rates may be too large for it"
    assert plain.header[1] == f"{grown}, warm-up over the first 10 %. {small}"
    assert any("Steps  only about" in line for line in plain.header)


def test_a_batch_that_leaves_no_steps_is_told(tmp_path: Path) -> None:
    headers = []
    for batch in (2, 100_000, 32):  # one after the other: each writes the same log before it starts
        run = start(configured(tmp_path, settings=[f"global_batch={batch}"]))
        run.wait(120)
        headers.append(run.header)
    told = [[line for line in header if line.startswith("Steps")] for header in headers]
    assert told[:2] == [[], ["Steps  only about 1 in all, too few to learn much: lower train.global_batch"]]
    assert re.fullmatch(
        r"Steps  only about \d+ in all: there are few examples; raise train.epochs", told[2][0]
    )


def test_the_loss_of_the_config_is_that_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(logits_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        return (logits_BT - labels_BT).square().sum(1)

    monkeypatch.setitem(LOSSES, "bce", another)
    assert make_trainer(configured(tmp_path, settings=["train.loss=bce"])).loss is another


def test_too_little_memory_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="set at least memory="):
        start(configured(tmp_path, settings=["memory=100B"]), command="test")
    monkeypatch.setattr(estimate, "machine_memory", lambda: 100)
    proposal = r"needs about .* Options:\n  memory=64MiB: rows that do not fit go to disk\n(.*\n)*.*rowwise_adagrad: "
    with pytest.raises(UserError, match=proposal):
        start(configured(tmp_path), command="test")
    assert not (tmp_path / "runs").exists()


def needs(rows: int, memory: int, process: int = 0) -> Estimate:
    return Estimate(rows=rows // 100, stores=(rows,), seconds=1.0, memory=memory, process=process)


def test_the_process_itself_needs_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fill 0.9 of the machine leave too little for everything else."""
    training = build(configured(tmp_path)).training
    machine = 4 << 30
    monkeypatch.setattr(estimate, "machine_memory", lambda: machine)
    monkeypatch.setattr(estimate, "resident_bytes", lambda: 300 << 20)
    own = estimate.estimate(training).process
    assert own == 1 << 30, "it has taken less so far, but will take more in training"
    refuse_too_large(needs(int(0.65 * machine), machine, own), training)
    sentence = r"needs about 3\.9 GB for .* rows\. They may take 2\.9 GB here: 90% of what is left of 4\.3 GB of memory"
    with pytest.raises(UserError, match=sentence):
        refuse_too_large(needs(int(0.9 * machine), machine, own), training)
    monkeypatch.setattr(estimate, "resident_bytes", lambda: 3 << 30)
    own = estimate.estimate(training).process
    assert own == (3 << 30) - training.learner.row_bytes
    monkeypatch.setattr(type(training.learner), "row_bytes", 1 << 30)
    assert estimate.estimate(training).process == 2 << 30, "a resumed run has its rows in memory already"
    monkeypatch.setattr(estimate, "machine_memory", lambda: 1 << 30)
    monkeypatch.setattr(estimate, "resident_bytes", lambda: 100 << 20)
    assert estimate.estimate(training).process == 256 << 20, "a small machine has room for a small table"


def test_too_little_memory_proposes_a_min_count_that_the_command_line_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "clicks.csv"
    monkeypatch.setattr(estimate, "machine_memory", lambda: 100)
    with pytest.raises(UserError) as few:
        start(configured(tmp_path), command="test")
    assert "min_count" not in str(few.value), "97 users come again and again"
    once = "".join(f"{int(i % 3 == 0)},{1_700_000_000 + 600 * i},u{i},1\n" for i in range(600))
    data.write_text("click,ts,user,price\n" + once)
    with pytest.raises(UserError) as many:
        start(load_config(tmp_path / "clicks.yaml"), command="test")
    proposal = re.search(r"\n  (\S+): [\d.]+ k?B; ids that occur less often get no row\n", str(many.value))
    assert proposal is not None and proposal[1] == "features[user].min_count=3"
    config = load_config(tmp_path / "clicks.yaml", [proposal[1]])
    assert config.features is not None and config.features[0].column().min_count == 3
    without, with_it = (
        estimate.estimate(build(one).training).rows for one in (load_config(tmp_path / "clicks.yaml"), config)
    )
    assert with_it < 0.2 * without, "the same message would come again"


def test_rows_beyond_the_memory_go_to_the_storage_folder(tmp_path: Path) -> None:
    settings = ["memory=32MiB", f"storage.path={tmp_path / 'rows'}"]
    result = start(configured(tmp_path, settings=settings), command="test").wait(120)
    assert result.report["tier"]["hot_rows"] == result.report["embedding_rows"] > 0
    assert (tmp_path / "rows").is_dir()


def test_a_bad_storage_path_is_found_before_there_is_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = configured(tmp_path, settings=["memory=32MiB", f"storage.path={tmp_path / 'file'}"])
    with pytest.raises(UserError, match=r"storage\.path: rows cannot be written .*/file is a file\. Choose"):
        start(config, command="test")
    assert not (tmp_path / "runs").exists()


def test_the_plan_names_the_optimizer_and_what_the_memory_is_for(tmp_path: Path) -> None:
    settings = ["memory=1GB", "optimizer.embeddings.name=rowwise_adagrad"]
    training = build(configured(tmp_path, settings=settings)).training
    text = estimate.estimate(training).text(training)
    assert "(4 rowwise_adagrad + 1 rowwise_adagrad), which need " in text
    assert (
        "room for 787.5 MB (memory=1GB, less 125MB for batches that are read ahead and a tenth for the baseline): all"
        in text
    )
    config = configured(
        tmp_path, settings=["memory=64MiB", "train.baseline=false", "features[user].min_count=2"]
    )
    training = build(config).training
    text = estimate.estimate(training).text(training)
    assert (
        "room for 47.9 MB (memory=64MiB, less 19.2MB to count ids for min_count): all of them in memory"
        in text
    )


def test_metrics_leave_the_baseline_out(tmp_path: Path) -> None:
    run = start(configured(tmp_path, settings=["memory=64MiB"]), command="test")
    run.wait(120)
    assert run.training.baseline.learner is not None
    figures = figures_here(run.training)["shard-0"]
    assert figures["tier_hot_rows"] + figures["tier_cold_rows"] == run.training.learner.rows
    assert figures["tier_unwritten"] == 0


def test_validation_before_training_ends_is_told(tmp_path: Path) -> None:
    valid = write_log(tmp_path / "valid.csv", 100, first=50)
    with pytest.raises(UserError, match="future data would leak"):
        build(configured(tmp_path, f", valid: {valid}"))
    build(configured(tmp_path, f", valid: {valid}, allow_overlap: true"))


def test_a_loss_that_is_not_finite_is_told_with_file_and_lines(tmp_path: Path) -> None:
    config = configured(tmp_path, settings=["optimizer.dense.lr=1e30", "train.shuffle=false"])
    with pytest.raises(UserError, match=r"at step \d+ \(.*clicks\.csv line \d+-\d+\)"):
        start(config, command="test").wait(120)


def test_skipped_lines_are_listed_in_the_run_folder(tmp_path: Path) -> None:
    config = configured(tmp_path, ", bad_lines: {skip: 10}")
    with (tmp_path / "clicks.csv").open("a") as file:
        file.write("1,2,3\n")
    run = start(config, command="test")
    assert run.wait(120).report["skipped_lines"] == 1
    assert "line 602" in (run.folder / "bad_lines.txt").read_text()


def test_a_list_of_skipped_lines_that_cannot_be_written_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, ", bad_lines: {skip: 10}", ["checkpoint.retry_for=1s"])
    with (tmp_path / "clicks.csv").open("a") as file:
        file.write("1,2,3\n")
    real, written = run_folder.write_text, list[str]()

    def full(path: Path, text: str) -> None:
        written.append(path.name)
        if path.name == "bad_lines.txt":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(run_folder, "write_text", full)
    run = start(config, command="test")
    assert run.wait(120).report["skipped_lines"] == 1
    assert run_folder.read(run.folder).state == "done"
    assert any("bad_lines.txt was not written: no space left" in said for said in run.messages)
    assert written.index("bad_lines.txt") < written.index("report.json")


def test_a_run_that_was_taken_over_while_a_write_is_retried_does_not_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried = run_folder.write_text, list[str]()

    def taken_over(path: Path, text: str) -> None:
        if path.name == "report.json" and not tried:  # then there is room again
            tried.append(path.name)
            (path.parent / "lease" / "99.json").write_text('{"session": "another"}')
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(run_folder, "write_text", taken_over)
    run = start(configured(tmp_path), command="test")
    with pytest.raises(ownership.Fenced, match="was taken over"):
        run.wait(120)
    assert tried == ["report.json"] and not (run.folder / "report.json").exists()
    assert isinstance(run, Run)
    link = run.folder / "checkpoints" / "best"
    before = link.readlink()
    with pytest.raises(ownership.Fenced):
        run.parts.saving.saver.link("best", run.folder / "checkpoints" / "step-1")
    assert link.readlink() == before
    mine = ownership.held(run.folder)
    assert mine is not None
    mine.release()


@pytest.mark.parametrize("by", ["time", "hash(user)"])
def test_three_parts(tmp_path: Path, by: str) -> None:
    run = build(configured(tmp_path, f", split: {{by: {by}, valid: 25%, test: 25%}}"))
    sizes = [len(list(part.batches(1))) for part in (run.training.train, run.training.valid, run.test)]
    assert sum(sizes) == 600 and all(sizes)
