"""`gearshift sweep-batch`: finds the largest usable batch and its optimizer; prints a table and a recommendation."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from gearshift.cli import terminal
from gearshift.cli.compare import difference_text, interval_text, markdown_table
from gearshift.config import check_files, load_config
from gearshift.errors import UserError
from gearshift.experiments.largest_batch import FIRST_SEEDS, STEPS, Sweep, SweepRow
from gearshift.experiments.paired_runs import interval
from gearshift.run import folder as run_folder
from gearshift.settings.units import parse_share

if TYPE_CHECKING:
    from gearshift.experiments.batch_sweep import BatchSweep, SweepRequest

_HEADS = ("optimizer", "batch", "rates: dense, rows", "seeds", "AUC (95 %)", "vs best at {:,}", "within", "log loss",
          "gap", "steps", "time")  # fmt: skip
FILES = ("sweep.json", "sweep.md", "sweep.svg")
COIN = 0.52  # an AUC up to this value is close to chance
RatesOf = Callable[[SweepRow], tuple[float, float]]


def sweep_batch_command(request: SweepRequest, out: Path) -> None:
    check_files(load_config(request.config, request.settings))
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; choose a folder, which is created if necessary")

    from gearshift.experiments.batch_sweep import BatchSweep  # imports torch

    sweep = BatchSweep(request, terminal.say)
    terminal.say(
        f"{', '.join(sweep.arms)} at global batches {', '.join(map(terminal.count, sweep.batches))}. Rates are "
        f"searched on {terminal.percent(sweep.tune_share, 0)} of the training data (more, where that is fewer than "
        f"{STEPS} steps), then {_seeds(request.seeds)}."
    )
    result: Sweep | None = None
    try:
        for one in sweep:
            if result is None:  # only now, replace the results of an earlier sweep
                _set_aside(out)
            result = one
            _keep(result, sweep, out)
            terminal.say(_sentence(result, result.lines[-1], request.seeds))
    except KeyboardInterrupt:
        if result is not None:
            terminal.say(table(result, sweep.rates))
            terminal.say(f"Interrupted; the results so far are in {out / 'sweep.json'}.")
        raise
    assert result is not None
    _keep(result, sweep, out, finished=True)
    terminal.say(table(result, sweep.rates))
    for sentence in _notes(result, sweep):
        terminal.say(sentence)
    terminal.say(f"Wrote {', '.join(str(out / file) for file in FILES)}.")


def _seeds(count: int) -> str:
    if count <= FIRST_SEEDS:
        return f"{count} seed{'s' if count > 1 else ''} each"
    return f"{FIRST_SEEDS} seeds each, or {count} unless the first {FIRST_SEEDS} show that it is worse"


def factor(word: str) -> int:
    """16 or 16x"""
    number = word.removesuffix("x")
    if not number.isdecimal():
        raise UserError(f"--batches has `{word}`; write multiples of train.global_batch, such as 1,4,16,64")
    return int(number)


def parsed_share(option: str, word: str) -> float:
    """0.1 or 10%"""
    try:
        return parse_share(word)
    except ValueError as error:
        raise UserError(f"{option} is `{word}`: {error}") from None


def _sentence(result: Sweep, line: SweepRow, seeds: int) -> str:
    """One line of progress. The smallest batch can be judged only when all optimizers have finished it."""
    place = f", {'' if result.within(line) else 'NOT '}within the tolerance"
    place += f" after {len(line.scores)} of {seeds} seeds" if result.is_open(line, seeds) else ""
    auc = interval_text(interval(line.aucs))
    steps = f"{line.mean('steps'):,.0f} steps" if any(line.scores) else "diverged with every seed"
    text = f"{line.optimizer} at {line.batch:,}: AUC {auc}, {steps}"
    return text + (place if line.batch > result.reference.batch else "")


def table(result: Sweep, rates: RatesOf) -> str:
    rows = [_row(result, line, *rates(line)) for line in result.lines]
    return terminal.table(_heads(result), rows, right="lrlrllrrrrr")


def markdown(result: Sweep, rates: RatesOf) -> str:
    return markdown_table(_heads(result), [_row(result, line, *rates(line)) for line in result.lines])


def _heads(result: Sweep) -> list[str]:
    return [head.format(result.reference.batch) for head in _HEADS]


def _row(result: Sweep, line: SweepRow, dense_lr: float, row_lr: float) -> list[str]:
    diverged = line.scores.count(None)
    return [
        line.optimizer,
        terminal.count(line.batch),
        f"{dense_lr:.3g}, {row_lr:.3g}",
        str(len(line.scores)),
        interval_text(interval(line.aucs)),
        "-" if line is result.reference else difference_text(result.difference(line)),
        _within(result, line),
        terminal.figure(line.mean("logloss")),
        terminal.figure(line.mean("gap")),
        "-" if diverged == len(line.scores) else terminal.count(line.mean("steps")),
        "-" if diverged == len(line.scores) else terminal.clock(line.seconds),
    ]


def _within(result: Sweep, line: SweepRow) -> str:
    if diverged := line.scores.count(None):
        return f"no, {diverged} diverged"
    return "yes" if result.within(line) else "no" if result.without(line) else "not shown"


def _left_open(result: Sweep) -> list[str]:
    if not any(_within(result, line) == "not shown" for line in result.lines):
        return []
    more = [seeds for line in result.lines if (seeds := result.more_seeds(line)) is not None]
    settle = f"; about {min(more)} more seeds would likely settle one of them" if more else ""
    return [f'"not shown" = undecided with these seeds: the interval includes the bound{settle}.']


def _notes(result: Sweep, sweep: BatchSweep) -> list[str]:
    tolerance, best, seeds = terminal.figure(result.tolerance), result.recommended, sweep.request.seeds
    bound = "the difference" if seeds == 1 else "the lower 95 % bound of the paired difference"
    sentences = [
        f'"within" = {bound} to the best of the smallest batch is at least -{tolerance} (--tolerance); gap = AUC on '
        "training data minus AUC held out."
    ]
    sentences += _left_open(result)
    sentences += [
        f"{optimizer}: largest batch {'none' if batch is None else f'{batch:,}'}."
        for optimizer, batch in result.largest_batch().items()
    ]
    if seeds == 1:
        sentences.append("One seed gives no interval; --seeds 5 does.")
    if best is not None and mean(best.aucs) > COIN:
        sentences.append(f"Recommended: {best.optimizer} at global batch {best.batch:,}.")
        sentences.append(f"Train it: gearshift train {sweep.request.config} {shlex.join(best.settings)}")
    elif best is not None:
        sentences.append(
            f"Nothing is recommended: the best AUC is {terminal.figure(mean(best.aucs))}, close to chance. "
            "Use more data or a smaller train.global_batch."
        )
    else:
        sentences.append(
            "Nothing is recommended: the best run at the smallest batch diverged, even at much lower rates."
        )
    return sentences


def _set_aside(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        with suppress(FileNotFoundError):
            (out / file).replace(out / f"before.{file}")


def _keep(result: Sweep, sweep: BatchSweep, out: Path, *, finished: bool = False) -> None:
    """Write the results so far, in case the sweep is interrupted."""
    request = sweep.request
    inputs = {"config": str(request.config), "factors": list(request.factors), "seeds": request.seeds}
    run_folder.export_json(out / "sweep.json", {"finished": finished, **inputs, **result.as_json()})
    run_folder.export_text(out / "sweep.md", markdown(result, sweep.rates) + "\n")
    picture = result.picture(f"{sweep.config.name}: the cost of a larger batch")
    run_folder.export_text(out / "sweep.svg", picture)
