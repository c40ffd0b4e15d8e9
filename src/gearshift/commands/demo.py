"""`gearshift demo`: a generated click log, a model, its AUC beside the best reachable, what comes next."""

from __future__ import annotations

import itertools
from pathlib import Path

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.commands.evaluate import evaluate
from gearshift.commands.predict import predict
from gearshift.commands.train import command_line, follow
from gearshift.config import Config, load_config

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


def demo(folder: Path, examples: str) -> int:
    """Returns the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "demo.yaml"
    run_folder.write_text(file, _CONFIG.format(examples=examples, runs=folder / "runs"))
    config = load_config(file)

    from gearshift.train import start

    _show(f"gearshift train {file}")
    run = start(config, command=command_line())
    ending = follow(run)
    if ending.exit_code:
        return ending.exit_code
    best = _teacher_auc(config)
    reached = terminal.figure(ending.result.report["auc"])
    terminal.say(f"The clicks were drawn from known probabilities: AUC {reached} of a reachable {best}.")
    _use(run.folder, config, folder)
    _next_steps(file, folder)
    return 0


def _show(command: str) -> None:
    terminal.say()
    terminal.say(f"$ {command}")


def _teacher_auc(config: Config) -> str:
    from gearshift.data.synthetic import ClickLog

    assert config.data.synthetic is not None
    return terminal.figure(ClickLog(**config.data.synthetic.model_dump()).teacher_auc().value)


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
    """Examples of the day after, which no model has seen, as a file like a user's own."""
    from gearshift.data.synthetic import ClickLog

    assert config.data.synthetic is not None
    settings = config.data.synthetic.model_dump()
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
  gearshift init {folder / "next-day.csv"}          a config from a file, as for your own click log
  gearshift runs {folder / "runs"}                  what was run"""
    )
