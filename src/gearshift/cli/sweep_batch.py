"""`gearshift sweep-batch`: how large the batch may be, under which optimizer; a table, a recommendation, its files."""

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
from gearshift.config.units import parse_share
from gearshift.errors import UserError
from gearshift.experiments.largest_batch import FIRST_SEEDS, STEPS, Sweep, SweepRow
from gearshift.experiments.paired_runs import interval
from gearshift.run import folder as run_folder

if TYPE_CHECKING:
    from gearshift.experiments.batch_sweep import BatchSweep, SweepRequest

_HEADS = ("optimizer", "batch", "rates: dense, rows", "seeds", "AUC (95 %)", "vs best at {:,}", "within", "log loss",
          "gap", "steps", "time")  # fmt: skip
FILES = ("sweep.json", "sweep.md", "sweep.svg")
COIN = 0.52  # an AUC up to here is hardly more than chance
RatesOf = Callable[[SweepRow], tuple[float, float]]


def sweep_batch_command(asked: SweepRequest, out: Path) -> None:
    check_files(load_config(asked.config, asked.settings))
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder, which is made if need be")

    from gearshift.experiments.batch_sweep import BatchSweep  # imports torch

    swept = BatchSweep(asked, terminal.say)
    terminal.say(
        f"{', '.join(swept.arms)} at global batches {', '.join(map(terminal.count, swept.batches))}. Rates are "
        f"searched on {terminal.percent(swept.tune_share, 0)} of the training data (more, where that is fewer than "
        f"{STEPS} steps), then {_seeds(asked.seeds)}."
    )
    found: Sweep | None = None
    try:
        for one in swept:
            if found is None:  # only now is there something in the place of what an earlier sweep left
                _set_aside(out)
            found = one
            _keep(found, swept, out)
            terminal.say(_sentence(found, found.lines[-1], asked.seeds))
    except KeyboardInterrupt:
        if found is not None:
            terminal.say(table(found, swept.rates))
            terminal.say(f"Interrupted; what is done is in {out / 'sweep.json'}.")
        raise
    assert found is not None
    _keep(found, swept, out, finished=True)
    terminal.say(table(found, swept.rates))
    for sentence in _notes(found, swept):
        terminal.say(sentence)
    terminal.say(f"Wrote {', '.join(str(out / file) for file in FILES)}.")


def _seeds(count: int) -> str:
    if count <= FIRST_SEEDS:
        return f"{count} seed{'s' if count > 1 else ''} each"
    return f"{FIRST_SEEDS} seeds each, and {count} unless these say that it is worse"


def factor(word: str) -> int:
    """16 or 16x"""
    number = word.removesuffix("x")
    if not number.isdecimal():
        raise UserError(f"--batches has `{word}`; write factors of train.global_batch, such as 1,4,16,64")
    return int(number)


def parsed_share(option: str, word: str) -> float:
    """0.1 or 10%"""
    try:
        return parse_share(word)
    except ValueError as error:
        raise UserError(f"{option} is `{word}`: {error}") from None


def _sentence(found: Sweep, line: SweepRow, seeds: int) -> str:
    """Whether the smallest batch is within is not known before all optimizers had it."""
    place = f", {'' if found.within(line) else 'NOT '}within the tolerance"
    place += f" after {len(line.scores)} of {seeds} seeds" if found.is_open(line, seeds) else ""
    auc = interval_text(interval(line.aucs))
    steps = f"{line.mean('steps'):,.0f} steps" if any(line.scores) else "diverged with every seed"
    said = f"{line.optimizer} at {line.batch:,}: AUC {auc}, {steps}"
    return said + (place if line.batch > found.reference.batch else "")


def table(found: Sweep, rates: RatesOf) -> str:
    rows = [_row(found, line, *rates(line)) for line in found.lines]
    return terminal.table(_heads(found), rows, right="lrlrllrrrrr")


def markdown(found: Sweep, rates: RatesOf) -> str:
    return markdown_table(_heads(found), [_row(found, line, *rates(line)) for line in found.lines])


def _heads(found: Sweep) -> list[str]:
    return [head.format(found.reference.batch) for head in _HEADS]


def _row(found: Sweep, line: SweepRow, dense_lr: float, row_lr: float) -> list[str]:
    diverged = line.scores.count(None)
    return [
        line.optimizer,
        terminal.count(line.batch),
        f"{dense_lr:.3g}, {row_lr:.3g}",
        str(len(line.scores)),
        interval_text(interval(line.aucs)),
        "-" if line is found.reference else difference_text(found.difference(line)),
        _within(found, line),
        terminal.figure(line.mean("logloss")),
        terminal.figure(line.mean("gap")),
        "-" if diverged == len(line.scores) else terminal.count(line.mean("steps")),
        "-" if diverged == len(line.scores) else terminal.clock(line.seconds),
    ]


def _within(found: Sweep, line: SweepRow) -> str:
    if diverged := line.scores.count(None):
        return f"no, {diverged} diverged"
    return "yes" if found.within(line) else "no" if found.without(line) else "not shown"


def _left_open(found: Sweep) -> list[str]:
    if not any(_within(found, line) == "not shown" for line in found.lines):
        return []
    more = [seeds for line in found.lines if (seeds := found.more_seeds(line)) is not None]
    settle = f"; about {min(more)} more would likely settle one of them" if more else ""
    return [
        f'"not shown" = these seeds leave it open: the interval lies on both sides of that bound{settle}.'
    ]


def _notes(found: Sweep, swept: BatchSweep) -> list[str]:
    tolerance, best, seeds = terminal.figure(found.tolerance), found.recommended, swept.asked.seeds
    bound = "the difference" if seeds == 1 else "the lower 95 % bound of the paired difference"
    said = [
        f'"within" = {bound} to the best of the smallest batch is at least -{tolerance} (--tolerance); gap = AUC on '
        "training data minus AUC held out."
    ]
    said += _left_open(found)
    said += [
        f"{optimizer}: largest batch {'none' if batch is None else f'{batch:,}'}."
        for optimizer, batch in found.largest_batch().items()
    ]
    if seeds == 1:
        said.append("One seed gives no interval; --seeds 5 does.")
    if best is not None and mean(best.aucs) > COIN:
        said.append(f"Recommended: {best.optimizer} at global batch {best.batch:,}.")
        said.append(f"Train so: gearshift train {swept.asked.config} {shlex.join(best.settings)}")
    elif best is not None:
        said.append(
            f"Nothing is recommended: the best AUC is {terminal.figure(mean(best.aucs))}, hardly more than chance. "
            "More data or a smaller train.global_batch would tell more."
        )
    else:
        said.append(
            "Nothing is recommended: the best of the smallest batch diverged, also at far lower rates."
        )
    return said


def _set_aside(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        with suppress(FileNotFoundError):
            (out / file).replace(out / f"before.{file}")


def _keep(found: Sweep, swept: BatchSweep, out: Path, *, finished: bool = False) -> None:
    """What is known so far, should the rest not come."""
    asked = swept.asked
    wanted = {"config": str(asked.config), "factors": list(asked.factors), "seeds": asked.seeds}
    run_folder.export_json(out / "sweep.json", {"finished": finished, **wanted, **found.as_json()})
    run_folder.export_text(out / "sweep.md", markdown(found, swept.rates) + "\n")
    picture = found.picture(f"{swept.config.name}: what a larger batch costs")
    run_folder.export_text(out / "sweep.svg", picture)
