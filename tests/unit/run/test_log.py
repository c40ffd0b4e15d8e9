"""What is kept of a run: every sentence with its time, and every fault with what it cost."""

from __future__ import annotations

from pathlib import Path

from gearshift.run import folder as run_folder
from gearshift.run import log as run_log


def test_every_sentence_is_in_the_log_and_faults_add_up(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, "a", command="gearshift train a.yaml")
    messages = run_log.Messages(folder, ["before the folder is known"])
    messages += ["two", "lines\nin one"]
    for fault in (
        run_log.Fault("start", "worker", 1),
        run_log.Fault("start", "worker", 1),
        run_log.Fault("end", "worker", 1),
        run_log.Fault("start", "worker", 1),
        run_log.Fault("start", "shard"),
        run_log.Fault("lost", "shard", 0, "killed", "restarted", seconds_lost=2.5, redone_steps=12),
        run_log.Fault("save failed", "run", reason="no space left"),
    ):
        run_log.record(folder, fault)
    with (folder / run_log.FAULTS).open("a") as file:
        file.write('{"kind": "lo')  # cut short
    run_log.record(folder, run_log.Fault("start", "shard"))
    found = run_log.totals(folder)
    assert found.restarts == {"shard": 1, "worker": 1}
    assert (found.redone_steps, found.seconds_lost, found.failed_saves, found.faults) == (12, 2.5, 1, 2)
    run_folder.finish(folder, "stopped", "asked to")
    text = (folder / run_log.LOG).read_text()
    for sentence in (
        "gearshift train a.yaml: gearshift",
        "owns the run (lease 1)",
        "before the folder",
        "asked to",
    ):
        assert sentence in text
    assert "  lines\n    in one\n" in text
    run_folder.claim(folder)
    assert run_log.totals(folder).restarts == {}  # of this session
    run_folder.finish(folder, "done")
