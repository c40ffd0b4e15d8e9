import json
from pathlib import Path

from gearshift.cli.inspect import memory_text
from gearshift.run import folder as run_folder

from .conftest import Shell


def test_runs_shows_state_and_newest_figures(shell: Shell) -> None:
    first = run_folder.create("runs", "apple")
    run_folder.append_metrics(first, {"step": 10, "auc_so_far": 0.6, "examples_per_second": 1000.4})
    run_folder.append_metrics(first, {"step": 20, "auc": 0.65})
    run_folder.finish(first, "failed", "loss became NaN")
    second = run_folder.create("runs", "banana")
    report = {"strategy": "sync", "global_steps": 1030, "auc": 0.7712, "examples_per_second": 78000.0}
    run_folder.write_json(second / "report.json", report)
    run_folder.finish(second, "done")
    code, out, err = shell("runs")
    assert (code, err) == (0, "")
    heads, newest, oldest = out.splitlines()
    assert heads.split() == ["RUN", "STATE", "STRATEGY", "STEP", "EX/S", "AUC", "STARTED"]
    assert newest.split() == [second.name, "done", "sync", "1,030", "78,000", ".7712", "just", "now"]
    assert oldest.split()[:6] == [first.name, "failed", "-", "20", "1,000", ".6500"]
    assert oldest.endswith("loss became NaN")


def test_a_live_run_shows_its_newest_measurements(shell: Shell) -> None:
    folder = run_folder.create("runs", "apple")
    run_folder.append_metrics(folder, {"step": 10, "time": 100.0, "examples": 1000, "auc_so_far": 0.6})
    run_folder.append_metrics(folder, {"step": 20, "time": 102.0, "examples": 2000, "auc_so_far": 0.61})
    assert shell("runs")[1].splitlines()[1].split()[1:6] == ["starting", "-", "20", "500", ".6100"]
    run_folder.append_metrics(folder, {"step": 20, "time": 103.0, "examples": 2000, "valid_auc": 0.7})
    assert shell("runs")[1].splitlines()[1].split()[1:6] == ["starting", "-", "20", "500", ".7000"]


def test_a_step_that_is_saved_is_shown_though_it_was_not_measured(shell: Shell) -> None:
    folder = run_folder.create("runs", "apple")
    run_folder.append_metrics(folder, {"step": 10, "time": 100.0, "examples": 1000})
    (folder / "checkpoints" / "step-17").mkdir()
    (folder / "checkpoints" / "last").symlink_to("step-17")
    assert shell("runs")[1].splitlines()[1].split()[3] == "17"
    run_folder.write_json(folder / "report.json", {"global_steps": 12, "auc": 0.7})  # of before it went on
    assert shell("runs")[1].splitlines()[1].split()[3:6] == ["17", "-", "-"]


def test_a_damaged_run_hides_no_other(shell: Shell) -> None:
    run_folder.create("runs", "apple")
    broken = run_folder.create("runs", "banana")
    (broken / "run.json").write_text('{"state": "ru')
    (broken / "report.json").write_text("{")
    code, out, err = shell("runs")
    assert (code, err) == (0, "")
    states = {line.split()[0]: line for line in out.splitlines()}
    assert states[broken.name].split()[1] == "damaged"
    assert states[broken.name].endswith("run.json is damaged; the run's checkpoints may still be intact")
    assert "starting" in next(line for name, line in states.items() if name.startswith("apple"))


def test_init_into_a_folder_that_is_not_there(shell: Shell) -> None:
    Path("log.csv").write_text("click,user\n" + "".join(f"{i % 2},u{i % 9}\n" for i in range(100)))
    code, _, err = shell("init", "log.csv", "-o", "nodir/x.yaml")
    assert (code, err) == (2, "cannot write nodir/x.yaml: there is no folder nodir/\n")


def test_no_runs(shell: Shell) -> None:
    assert shell("runs") == (2, "", "there is no folder runs/ with runs; start one: gearshift train CONFIG\n")
    Path("runs").mkdir()
    assert shell("runs") == (2, "", "there are no runs in runs/ yet; start one: gearshift train CONFIG\n")


def test_inspect_a_run_without_a_checkpoint(shell: Shell) -> None:
    folder = run_folder.create("runs", "apple", command="gearshift train clicks.yaml")
    report = {
        "model": "DeepFM",
        "auc": 0.7712,
        "embedding_rows": 1000,
        "embedding_bytes": 144_000,
        "global_steps": 7,
    }
    run_folder.write_json(folder / "report.json", report)
    run_folder.finish(folder, "stopped")
    code, out, _ = shell("inspect")
    assert code == 0
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    shown = {line[0]: line[1] for line in lines}
    assert shown["run"] == str(folder)
    assert shown["state"].startswith("stopped, started 20")
    assert shown["command"] == "gearshift train clicks.yaml"
    assert shown["metrics"] == "model DeepFM  step 7  auc .7712"
    assert shown["memory"] == "1,000 embedding rows in 144 kB (144 bytes each)"


def test_inspect_tells_rows_in_memory_from_all_rows_and_from_what_counts_ids() -> None:
    known = {"embedding_rows": 1000, "embedding_bytes": 20_000_000, "sketch_bytes": 16_000_000}
    assert memory_text(known) == (
        "1,000 embedding rows in 4 MB (4000 bytes each), and 16 MB to count ids for min_count"
    )
    tiered = {**known, "sketch_bytes": 0, "tier": {"hot_rows": 300}}
    assert memory_text(tiered) == "300 of 1,000 embedding rows in 20 MB"
    expired = {**tiered, "tier": {"hot_rows": 1200}}
    sentence = "1,000 embedding rows, and 200 or more that have expired and are not freed yet, in 20 MB"
    assert memory_text(expired) == sentence


def test_a_step_that_is_no_number(shell: Shell) -> None:
    assert shell("delta", "--since", "abc")[2] == (
        "--since: expected a whole number. See gearshift delta --help\n"
    )


def test_inspect_a_config_shows_its_schema_and_all_defaults(shell: Shell) -> None:
    code, out, _ = shell("inspect", "clicks.yaml", "model.dim=8")
    assert code == 0
    assert "label click" in out
    assert ["user", "categorical", "user", "8"] in [line.split() for line in out.splitlines()]
    assert "global_batch: 4096" in out


def test_inspect_what_is_nothing_of_ours(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert shell("inspect", "x")[2] == "x is not a run folder (it has no run.json)\n"
    (tmp_path / "x" / "manifest.json").write_text(json.dumps({"other": 1}))
    assert shell("inspect", "x")[2] == "x/manifest.json was not written by Gearshift\n"
    (tmp_path / "x" / "manifest.json").write_text("{")
    assert shell("inspect", "x")[2] == "x/manifest.json is damaged; the folder cannot be used\n"
