"""`gearshift demo`: a generated click log, a model, its AUC next to the best possible, and next steps.

Then the same model runs on four workers, one of which becomes slow, with a switch during the training.
"""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

from gearshift.cli import terminal
from gearshift.cli.evaluate import evaluate
from gearshift.cli.predict import predict
from gearshift.cli.train import command_line, follow
from gearshift.config import Config, load_config
from gearshift.run import folder as run_folder
from gearshift.settings.units import parse_count

NEW_EXAMPLES = 20_000
_CONFIG = """\
# Made by `gearshift demo`: a generated log whose truth is known. Change it and run it again.
name: demo
data:
  synthetic: {{examples: {examples}, days: 4, seed: 1}}   # the last day is for validation
model: {{name: deepfm, dim: 16, hidden: [256, 128]}}
optimizer:
  dense: {{name: adam, lr: 1e-3}}
  embeddings: {{name: adam, lr: 1e-3}}
train: {{global_batch: 1024, epochs: 1, seed: 1, eval_every: none}}
checkpoint: {{path: {runs}}}
"""


_UNEVEN = """\
# Made by `gearshift demo`: four workers; after {slow}s one of them is 5x slower; at {switch}s the strategy changes.
name: uneven
data:
  synthetic: {{examples: {examples}, days: 1, seed: 1}}
model: {{name: deepfm, dim: 16, hidden: [256, 128]}}
optimizer:
  dense: {{name: adam, lr: 1e-3}}
  embeddings: {{name: adam, lr: 1e-3}}
train: {{global_batch: 1024, seed: 1, eval_every: none, baseline: false}}
strategy: {{name: sync, switch: [{{at: {switch}s, to: gba}}]}}
cluster:
  workers: 4
  inject: {{step: 0.05, slow: ["3=5x@{slow}s"]}}   # padded: real work stays a small share
checkpoint: {{path: {runs}}}
"""
SLOW, SWITCH = 6, 13  # seconds
UNEVEN = 300_000  # examples


def demo(folder: Path, examples: str) -> int:
    """Run the demo; returns the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "demo.yaml"
    run_folder.export_text(file, _CONFIG.format(examples=examples, runs=folder / "runs"))
    config = load_config(file)

    from gearshift.config.build import start

    _show(f"gearshift train {file}")
    run = start(config, command=command_line())
    ending = follow(run)
    if ending.exit_code:
        return ending.exit_code
    best = _teacher_auc(config)
    reached = terminal.figure(ending.result.report["auc"])
    terminal.say(f"The clicks were drawn from known probabilities: AUC {reached} of a reachable {best}.")
    _use(run.folder, config, folder)
    ended = _change_gear(folder, examples)
    if not ended:
        _next_steps(file, folder)
    return ended


def _change_gear(folder: Path, examples: str) -> int:
    """One worker becomes slow and the run switches its strategy. Prints the speed of each phase."""
    from gearshift.config.build import start

    if parse_count(examples) < UNEVEN:
        terminal.say(
            f"\nThe slow worker and the switch need {UNEVEN:,} examples: omit --examples to see them."
        )
        return 0
    file = folder / "uneven.yaml"
    text = _UNEVEN.format(examples=UNEVEN, slow=SLOW, switch=SWITCH, runs=folder / "runs")
    run_folder.export_text(file, text)
    _show(f"gearshift train {file}")
    run = start(load_config(file), command=command_line())
    seen = [(0.0, 0)]

    def watch() -> None:
        while not run.finished:
            status = run.status()
            seen.append((status.seconds, status.examples))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    ending = follow(run)
    watcher.join()
    if not ending.exit_code:
        _say_speeds(seen)
    return ending.exit_code


def _say_speeds(seen: list[tuple[float, int]]) -> None:
    phases = {
        "four equal workers, sync": (0.5, SLOW),
        "worker 3 is 5x slower": (SLOW + 1, SWITCH),
        "switched to gba": (SWITCH + 1, seen[-1][0]),
    }
    lines = []
    for name, (begin, end) in phases.items():
        inside = [moment for moment in seen if begin <= moment[0] <= end]
        if len(inside) < 2 or inside[-1][0] == inside[0][0]:
            return  # it ended earlier
        (before, some), (after, more) = inside[0], inside[-1]
        lines.append(f"  {name:24} {(more - some) / (after - before):>8,.0f} examples/s")
    terminal.say(
        "One slow worker delayed the others; after the switch no worker waits. No rate was changed (injected delay):"
    )
    for line in lines:
        terminal.say(line)


def _show(command: str) -> None:
    terminal.say()
    terminal.say(f"$ {command}")


def _teacher_auc(config: Config) -> str:
    from gearshift.data.synthetic import ClickLog

    assert config.data.synthetic is not None
    return terminal.figure(ClickLog(**vars(config.data.synthetic)).teacher_auc().value)


def _use(run: Path, config: Config, folder: Path) -> None:
    new, scores = folder / "next-day.csv", folder / "scores.csv"
    _write_next_day(config, new)
    _show(f"gearshift evaluate {run} {new}")
    evaluate([str(run), str(new)], by=None, json_file=None)
    _show(f"gearshift predict {run} {new} -o {scores} --keep user --keep ad")
    predict(str(run), [str(new)], scores, keep=["user", "ad"])
    with scores.open() as file:
        for _ in range(3):
            terminal.say(f"  {file.readline().rstrip()}")


def _write_next_day(config: Config, path: Path) -> None:
    """Write examples of the next day, which the model has not seen, like a user's file."""
    from gearshift.data.synthetic import ClickLog

    assert config.data.synthetic is not None
    settings = vars(config.data.synthetic)
    days = settings["days"] + 1
    whole = path.with_name(f".{path.name}.all")
    ClickLog(**{**settings, "days": days, "examples": days * NEW_EXAMPLES}).write_csv(whole)
    with whole.open() as lines, path.open("w") as file:
        file.write(next(lines))
        file.writelines(itertools.islice(lines, (days - 1) * NEW_EXAMPLES, None))
    whole.unlink()


def _next_steps(file: Path, folder: Path) -> None:
    terminal.say(
        f"""
Next
  gearshift train {file} model=dcnv2 seed=2       another model: any setting is key=value
  gearshift compare {file} workers=4 --slow 3=5x   speed and AUC of each, side by side
  gearshift init {folder / "next-day.csv"}          a config from a file, as for your own click log
  gearshift runs {folder / "runs"}                  what was run"""
    )
