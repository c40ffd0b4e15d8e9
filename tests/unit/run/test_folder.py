"""The run folder: names, states, and files that appear whole."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gearshift.errors import UserError
from gearshift.run import catalog
from gearshift.run import folder as run_folder
from gearshift.run import state as run_state

START = "import sys; from gearshift.run import folder as run_folder; f = run_folder.create(sys.argv[1], 'other'); "


class Resolved:
    def to_yaml(self) -> str:
        return "name: shop\n"


def change_owner(folder: Path, **process: object) -> None:
    """As if another process had made the newest claim."""
    claim = max((folder / "lease").glob("*.json"))
    said = json.loads(claim.read_text())
    said["process"] |= process
    claim.write_text(json.dumps(said))


def other_process(root: Path, then: str) -> subprocess.Popen[str]:
    """A process of its own that starts a run; returns when the run's name is known."""
    code = START + f"print(f.name, flush=True); {then}"
    process = subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_run_has_a_readable_unique_name_and_last_points_to_it(tmp_path: Path) -> None:
    first = run_folder.create(tmp_path / "runs", "shop clicks/2026")
    second = run_folder.create(tmp_path / "runs", "shop clicks/2026")
    stamp = time.strftime("%m%d-")
    assert first.name.startswith(f"shop-clicks-2026-{stamp}")
    assert second != first
    assert (tmp_path / "runs" / "last").resolve() == second
    assert (second / "checkpoints").is_dir()


def test_a_name_without_letters_still_gives_a_folder(tmp_path: Path) -> None:
    assert run_folder.create(tmp_path, "../..").parent == tmp_path


def test_find_by_path_last_name_and_beginning(tmp_path: Path) -> None:
    a, b = run_folder.create(tmp_path, "apple"), run_folder.create(tmp_path, "banana")
    assert catalog.find(a, tmp_path) == a
    assert catalog.find("last", tmp_path) == b
    assert catalog.find("app", tmp_path) == a
    assert catalog.find(b.name, tmp_path) == b


def test_a_checkpoint_is_named_after_its_run(tmp_path: Path) -> None:
    run = run_folder.create(tmp_path, "apple")
    checkpoints = run / run_folder.CHECKPOINTS
    for step in ("step-20", "step-100"):
        (checkpoints / step).mkdir()
    (checkpoints / "last").symlink_to("step-100")
    assert catalog.find_model("app", tmp_path) == run
    assert catalog.find_model("last@step-20", tmp_path) == checkpoints / "step-20"
    assert catalog.find_model("app@last", tmp_path) == checkpoints / "step-100"
    assert catalog.find_model(checkpoints / "last", tmp_path) == checkpoints / "step-100"
    assert catalog.resume_from("app@step-20", tmp_path) == checkpoints / "step-20"
    assert catalog.resume_from("app@last", tmp_path) == run, "it goes on"
    with pytest.raises(UserError, match=r"has no checkpoint `step-7`; it has: last, best, step-20, step-100"):
        catalog.find_model("app@step-7", tmp_path)


def test_a_whole_name_is_meant_even_if_it_is_the_beginning_of_another(tmp_path: Path) -> None:
    first, second = run_folder.create(tmp_path, "a"), run_folder.create(tmp_path, "a")
    assert second.name == f"{first.name}-2"
    assert catalog.find(first.name, tmp_path) == first


def test_last_without_the_link_is_the_newest(tmp_path: Path) -> None:
    run_folder.create(tmp_path, "a")
    newest = run_folder.create(tmp_path, "b")
    (tmp_path / "last").unlink()
    assert catalog.find("last", tmp_path) == newest


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a", "`a` is the beginning of 2 runs; name one: a-"),
        ("x", "no run `x` in "),
    ],
)
def test_names_that_do_not_say_which_run(tmp_path: Path, name: str, sentence: str) -> None:
    run_folder.create(tmp_path, "a")
    run_folder.create(tmp_path, "a")
    with pytest.raises(UserError) as caught:
        catalog.find(name, tmp_path)
    assert sentence in str(caught.value)


def test_no_runs_yet_and_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there are no runs in .* yet; start one: gearshift train CONFIG"):
        catalog.find("last", tmp_path)
    with pytest.raises(UserError, match=r"is not a run folder \(it has no run.json\)"):
        catalog.find(tmp_path, tmp_path)


def test_the_states_of_a_run(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a", command="gearshift train a.yaml")
    assert run_folder.read(folder).state == "starting"
    run_folder.set_state(folder, "running")
    assert run_folder.read(folder).state == "running"
    run_folder.finish(folder, "stopped")
    assert run_folder.read(folder).state == "stopped"
    run_folder.claim(folder, command="gearshift train --resume last")
    assert run_folder.read(folder).state == "starting"
    run_folder.finish(folder, "failed", "loss became NaN")
    assert (run_folder.read(folder).state, run_folder.read(folder).reason) == ("failed", "loss became NaN")
    run_folder.finish(folder, "done")
    record = run_folder.read(folder)
    assert (record.state, record.command) == ("done", "gearshift train --resume last")
    assert record.ended is not None and record.ended >= record.started


def test_a_run_that_ends_while_it_is_read_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder.create(tmp_path, "shop")
    owner_of = run_state.ownership.current

    def ends_first(folder: Path) -> object:
        monkeypatch.undo()
        run_folder.finish(folder, "stopped")
        return owner_of(folder)

    monkeypatch.setattr(run_state.ownership, "current", ends_first)
    assert run_folder.read(folder).state == "stopped"


def test_a_killed_process_leaves_a_failed_run(tmp_path: Path) -> None:
    process = other_process(tmp_path, "import time; time.sleep(60)")
    (record,) = catalog.list_runs(tmp_path)
    assert record.state == "starting"
    process.kill()
    process.wait()
    (record,) = catalog.list_runs(tmp_path)
    assert record.state == "failed"
    assert record.reason == "its process is gone (killed, or the machine restarted)"


def test_a_process_that_died_but_is_not_buried_runs_no_more(tmp_path: Path) -> None:
    process = other_process(tmp_path, "")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    (record,) = catalog.list_runs(tmp_path)
    assert record.state == "failed"
    process.wait()


def test_another_process_with_the_same_pid_is_not_the_run(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    change_owner(folder, process_start=-1)
    assert run_folder.read(folder).state == "failed"


def test_a_run_of_another_machine_is_not_judged_at_once(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    change_owner(folder, host="elsewhere", machine="another boot")
    assert (run_folder.read(folder).state, run_folder.read(folder).reason) == (
        "unknown",
        "started on elsewhere",
    )


def test_a_live_run_cannot_be_resumed_twice(tmp_path: Path) -> None:
    process = other_process(tmp_path, "import time; time.sleep(60)")
    (record,) = catalog.list_runs(tmp_path)
    with pytest.raises(UserError, match=rf"is still running \(process {process.pid}\); stop it before"):
        run_folder.claim(record.folder)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run_folder.claim(record.folder)
    assert run_folder.read(record.folder).state == "starting"


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    (folder / "run.json").write_text('{"state": "run')
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        run_folder.read(folder)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    run_folder.write_json(target, {"auc": 0.5})
    with pytest.raises(TypeError, match="not JSON serializable"):
        run_folder.write_json(target, {"auc": object()})
    assert json.loads(target.read_text()) == {"auc": 0.5}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_what_could_not_be_measured_is_null(tmp_path: Path) -> None:
    run_folder.write_json(tmp_path / "a.json", {"auc": float("nan"), "lr": {"se": [float("inf"), 0.5]}})
    assert json.loads((tmp_path / "a.json").read_text()) == {"auc": None, "lr": {"se": [None, 0.5]}}


def test_metrics_grow_by_lines_and_a_torn_one_spoils_no_other(tmp_path: Path) -> None:
    run_folder.append_metrics(tmp_path, {"step": 1, "auc": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "au')  # the process was killed here
    run_folder.append_metrics(tmp_path, {"step": 3, "auc": float("nan")})
    assert list(run_folder.metrics(tmp_path)) == [{"step": 1, "auc": 0.5}, {"step": 3, "auc": None}]


def test_there_may_be_no_metrics_yet(tmp_path: Path) -> None:
    assert list(run_folder.metrics(tmp_path)) == []


def test_the_config_says_what_made_it(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, Resolved(), "gearshift train a.yaml\nname=x")
    text = (tmp_path / "config.yaml").read_text()
    command, versions, body = text.split("\n", 2)
    assert command == "# gearshift train a.yaml name=x"
    assert versions.startswith("# gearshift ") and "torch " in versions and "python " in versions
    assert body == "name: shop\n"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(UserError, match=r"cannot create a run folder in .*/runs/: .*; set checkpoint\.path"):
        run_folder.create(tmp_path / "runs", "a")


def test_of_many_threads_that_claim_a_run_one_gets_it(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    run_folder.finish(folder, "stopped")
    ready, claimed, refused = threading.Barrier(8), [], []

    def claim() -> None:
        ready.wait()
        try:
            run_folder.claim(folder)
            claimed.append(1)
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(claimed), len(refused)) == (1, 7)
    assert refused[0].startswith(f"run {folder.name} is still running (process {os.getpid()})")
    run_folder.finish(folder, "done")
    run_folder.claim(folder)


def test_of_many_processes_that_take_over_a_dead_run_one_gets_it(tmp_path: Path) -> None:
    process = other_process(tmp_path, "")
    process.wait()
    (record,) = catalog.list_runs(tmp_path)
    assert record.state == "failed"
    code = (
        "import sys, time; from pathlib import Path; from gearshift.run import folder as run_folder\n"
        "sys.stdin.readline()\n"
        "try: run_folder.claim(Path(sys.argv[1])); print('mine', flush=True)\n"
        "except Exception as error: print(error, flush=True)\n"
        "sys.stdin.readline()"
    )
    command = [sys.executable, "-c", code, str(record.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    rivals = [subprocess.Popen(command, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    for rival in rivals:
        rival.stdin.write("go\n")
        rival.stdin.flush()
    said = sorted(rival.stdout.readline() for rival in rivals)
    for rival in rivals:
        rival.communicate("end\n", timeout=30)
    assert said[0] == "mine\n"
    assert all("is still running" in line for line in said[1:])


def test_what_a_dead_process_left_half_done_is_cleared(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a")
    run_folder.finish(folder, "failed")
    checkpoints = folder / "checkpoints"
    for name in (".step-30.99.part", ".step-20.99.old", "step-20", ".step-10.99.old"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "manifest.json").write_text(name)
    run_folder.claim(folder)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-10", "step-20"]
    assert (checkpoints / "step-20" / "manifest.json").read_text() == "step-20"
    assert (checkpoints / "step-10" / "manifest.json").read_text() == ".step-10.99.old"  # the only copy


def test_a_damaged_record_hides_no_other(tmp_path: Path) -> None:
    good, bad = run_folder.create(tmp_path, "good"), run_folder.create(tmp_path, "bad")
    (bad / "run.json").write_text('{"state": "running", "started": "yesterday"}')
    assert {record.name: record.state for record in catalog.list_runs(tmp_path)} == {
        good.name: "starting",
        bad.name: "damaged",
    }
    assert catalog.find("good", tmp_path) == good
