"""`gearshift sweep-batch`: how large the batch may be, under which optimizer; a table, a recommendation, its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gearshift import run_folder
from gearshift.commands import terminal
from gearshift.commands.compare import difference_text, interval_text, markdown_table
from gearshift.comparison import interval
from gearshift.config import check_files, load_config
from gearshift.errors import UserError
from gearshift.largest_batch import Line, Sweep

_HEADS = ("optimizer", "batch", "rates: dense, rows", "AUC (95 %)", "vs best at {:,}", "within", "log loss", "gap",
          "steps", "time")  # fmt: skip


RatesOf = Callable[[Line], tuple[float, float]]


@dataclass(frozen=True)
class Asked:
    config: str
    settings: list[str]
    optimizers: list[str]
    batches: list[str]
    seeds: int
    tolerance: float
    tune_share: float
    out: Path


def sweep_batch_command(asked: Asked) -> None:
    config = load_config(asked.config, asked.settings)
    check_files(config)
    factors = [_factor(word) for word in asked.batches]

    from gearshift.sweep import BatchSweep  # imports torch

    swept = BatchSweep(
        asked.config,
        asked.settings,
        asked.optimizers,
        factors,
        asked.seeds,
        asked.tolerance,
        asked.tune_share,
        terminal.say,
    )
    terminal.say(
        f"{', '.join(swept.optimizers)} at global batches {', '.join(map(terminal.count, swept.batches))}. Rates are "
        f"searched on {terminal.percent(asked.tune_share, 0)} of the training data, then {asked.seeds} seeds each."
    )
    found = None
    try:
        for found in swept:
            _keep(asked, found)
            terminal.say(_sentence(found, found.lines[-1]))
    except KeyboardInterrupt:
        if found is not None:
            terminal.say(table(found, swept.rates))
            terminal.say(f"Interrupted; what is done is in {asked.out / 'sweep.json'}.")
        raise
    assert found is not None
    terminal.say(table(found, swept.rates))
    for sentence in _notes(found, asked):
        terminal.say(sentence)
    best = found.recommended
    if best is not None:
        chosen = " ".join(f"'{word}'" if "{" in word else word for word in swept.chosen(best))
        terminal.say(f"Train so: gearshift train {asked.config} {chosen}")
    run_folder.write_text(asked.out / "sweep.md", markdown(found, swept.rates) + "\n")
    terminal.say(f"Wrote {asked.out / 'sweep.json'}, {asked.out / 'sweep.md'}.")


def _factor(word: str) -> int:
    """16 or 16x"""
    number = word.removesuffix("x")
    if not number.isdecimal():
        raise UserError(f"--batches has `{word}`; write factors of train.global_batch, such as 1,4,16,64")
    return int(number)


def _sentence(found: Sweep, line: Line) -> str:
    place = "within" if found.within(line) else "NOT within"
    auc = interval_text(interval(line.aucs))
    return f"{line.optimizer} at {line.batch:,}: AUC {auc}, {line.mean('steps'):,.0f} steps, {place} the tolerance"


def table(found: Sweep, rates: RatesOf) -> str:
    rows = [_row(found, line, *rates(line)) for line in found.lines]
    return terminal.table(_heads(found), rows, right="lrlllrrrrr")


def markdown(found: Sweep, rates: RatesOf) -> str:
    return markdown_table(_heads(found), [_row(found, line, *rates(line)) for line in found.lines])


def _heads(found: Sweep) -> list[str]:
    return [head.format(found.reference.batch) for head in _HEADS]


def _row(found: Sweep, line: Line, dense_lr: float, row_lr: float) -> list[str]:
    diverged = line.scores.count(None)
    return [
        line.optimizer,
        terminal.count(line.batch),
        f"{dense_lr:.3g}, {row_lr:.3g}",
        interval_text(interval(line.aucs)),
        "-" if line is found.reference else difference_text(found.difference(line)),
        "yes" if found.within(line) else f"no, {diverged} diverged" if diverged else "no",
        terminal.figure(line.mean("logloss")),
        terminal.figure(line.mean("gap")),
        "-" if diverged == len(line.scores) else terminal.count(line.mean("steps")),
        "-" if diverged == len(line.scores) else terminal.clock(line.seconds),
    ]


def _notes(found: Sweep, asked: Asked) -> list[str]:
    tolerance, best = terminal.figure(asked.tolerance), found.recommended
    bound = "the difference" if asked.seeds == 1 else "the lower 95 % bound of the paired difference"
    said = [
        f'"within" = {bound} to the best of the smallest batch is at least -{tolerance} (--tolerance); gap = AUC on '
        "training data minus AUC held out."
    ]
    said += [
        f"{optimizer}: largest batch {'none' if batch is None else f'{batch:,}'}."
        for optimizer, batch in found.largest_batch().items()
    ]
    if asked.seeds == 1:
        said.append("One seed gives no interval; --seeds 5 does.")
    if best is not None:
        said.append(f"Recommended: {best.optimizer} at global batch {best.batch:,}.")
    return said


def _keep(asked: Asked, found: Sweep) -> None:
    """What is known so far, should the rest not come."""
    asked.out.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(asked.out / "sweep.json", found.as_json())
