"""`gearshift compare`: trains the same run with several strategies and seeds; prints a table with verdicts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearshift.cli import terminal
from gearshift.config import Config, check_files, load_config
from gearshift.config.strategy_argument import parse_strategy
from gearshift.errors import UserError, warn
from gearshift.experiments.paired_runs import Interval, StrategyRuns, compare
from gearshift.run import folder as run_folder

_HEADS = ("strategy", "AUC (95 %)", "vs {}, paired", "verdict", "ex/s", "x {}", "of possible", "staleness", "lag",
          "discarded")  # fmt: skip
_UNDER = ("", "", "", "", "", "", "", "mean / p99", "p99", "")


@dataclass(frozen=True)
class CompareOptions:
    config: str
    settings: list[str]
    strategies: list[str]
    seeds: int
    inject: list[str]  # overrides that slow workers down
    margin: float
    price: float | None
    out: Path


def compare_command(options: CompareOptions) -> None:
    if options.seeds < 1:
        raise UserError(f"--seeds is {options.seeds}; it must be at least 1, and 5 for a useful interval")
    if not options.strategies or len(set(options.strategies)) < len(options.strategies):
        raise UserError("--strategies must be distinct, such as sync,gba,async")
    runs = [
        (name, seed, _config(options, name, seed))
        for seed in range(1, options.seeds + 1)
        for name in options.strategies
    ]
    check_files(runs[0][2])
    terminal.say(_opening(options, runs[0][2]))
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in options.strategies}
    for number, (name, seed, config) in enumerate(
        runs, 1
    ):  # seeds in the outer loop, so that strategies alternate
        report = _run(config, options)
        reports[name].append(report)
        _keep(options, reports)
        terminal.say(
            f"  {number}/{len(runs)}  seed {seed}  {name:18} AUC {terminal.figure(report['auc'])}  "
            f"{report['examples_per_second']:,.0f} ex/s"
        )
    arms = compare(reports, margin=options.margin, price=options.price)
    terminal.say(table(arms, options))
    for sentence in notes(arms, reports, options):
        terminal.say(sentence)
    _write(options, arms, reports)


def _config(options: CompareOptions, strategy: str, seed: int) -> Config:
    name, written = parse_strategy(strategy)
    words = [
        *options.settings,
        *options.inject,
        f"strategy={name}",
        *(f"strategy.{key}={value}" for key, value in written.items()),
        f"train.seed={seed}",
        "train.baseline=false",
    ]
    return load_config(options.config, words)


def _run(config: Config, options: CompareOptions) -> dict[str, Any]:
    from gearshift.config import build  # imports torch

    run = build.start(config, command=f"gearshift compare {shlex.quote(options.config)}")
    for sentence in getattr(run, "remarks", ()):  # the messages of single runs are not shown
        warn(sentence)
    report = dict(run.wait().report)
    if report["auc"] is None:
        raise UserError(
            f"{run.folder}: the AUC is undefined, because the {report['measured_on']} data has only one class"
        )
    return report


def _opening(options: CompareOptions, config: Config) -> str:
    cluster = config.cluster
    text = "Same data, model, settings and seeds; "
    text += f"{cluster.counts.count} workers, global batch {config.train.global_batch:,}."
    if cluster.inject is not None:
        words = (
            ", ".join([*cluster.inject.slow, *cluster.inject.lognormal, *cluster.inject.bursts])
            or "nothing slow"
        )
        text += f" Batches take {cluster.inject.step:g} s, injected ({words})."
    return text


def table(arms: Sequence[StrategyRuns], options: CompareOptions) -> str:
    heads, rows = _lines(arms, options, "$ / 1 B examples")
    under = [*_UNDER, *[""] * (len(heads) - len(_UNDER))]
    return terminal.table(heads, [under, *rows], right="lll" + "r" * (len(heads) - 3))


def _lines(
    arms: Sequence[StrategyRuns], options: CompareOptions, price: str
) -> tuple[list[str], list[list[str]]]:
    """Table headers and rows, including columns for metrics that only some comparisons have."""
    heads, rows = [head.format(arms[0].strategy) for head in _HEADS], [_row(arm) for arm in arms]
    if any(arm.duplicated_share for arm in arms):
        heads.append("duplicated")
        for row, arm in zip(rows, arms, strict=True):
            row.append(terminal.percent(arm.duplicated_share))
    if any(arm.sync_gap is not None for arm in arms):
        heads.append("sync gap")
        for row, arm in zip(rows, arms, strict=True):
            row.append("-" if arm.sync_gap is None else f"{arm.sync_gap:.1f}")
    if options.price is not None:
        heads.append(price)
        for row, arm in zip(rows, arms, strict=True):
            row.append(f"{arm.price_per_billion:,.2f}")
    return heads, rows


def _row(arm: StrategyRuns) -> list[str]:
    lost = f"{arm.discarded:,}" + (f" ({terminal.percent(arm.discarded_share)})" if arm.discarded else "")
    return [
        arm.strategy,
        interval_text(arm.auc),
        "-" if arm.difference is None else difference_text(arm.difference),
        arm.verdict,
        terminal.count(arm.examples_per_second),
        f"{arm.speedup:.2f}",
        "-" if arm.of_possible is None else f"{100 * arm.of_possible:.0f} %",
        f"{arm.staleness_mean:.1f} / {arm.staleness_p99:.0f}",
        f"{arm.lag_p99:.0f}",
        lost,
    ]


def interval_text(interval: Interval) -> str:
    """.7712 +- .0004"""
    half = "" if math.isnan(interval.half) else f" +- {terminal.figure(interval.half)}"
    return terminal.figure(interval.mean) + half


def difference_text(interval: Interval) -> str:
    """-.0006 [-.0011, -.0001]"""
    mean, low, high = (
        f"{bound:+.4f}".replace("0.", ".", 1) for bound in (interval.mean, interval.low, interval.high)
    )
    return mean if math.isnan(interval.half) else f"{mean} [{low}, {high}]"


def notes(
    arms: Sequence[StrategyRuns], reports: dict[str, list[dict[str, Any]]], options: CompareOptions
) -> list[str]:
    sentences = [
        f'"same" = the whole interval lies within +-{terminal.figure(options.margin, 3)} (--margin); '
        '"worse"/"better" = all of it lies outside, on that side; otherwise "unclear".'
    ]
    for arm in arms:
        if arm.more_seeds:
            sentences.append(f"{arm.strategy}: about {arm.more_seeds} more seeds would likely settle it.")
    if options.seeds == 1:
        sentences.append("One seed gives no interval; --seeds 5 does.")
    first = reports[arms[0].strategy][0]
    if first["injected"]:
        overrun = max(report["injected"]["overrun"] for runs in reports.values() for report in runs)
        sentences.append(
            f"Slowness is injected. Possible = sum of worker rates = {first['injected']['possible']:,.0f} ex/s."
        )
        if overrun > 0.05:
            sentences.append(
                f"In {100 * overrun:.0f} % of the batches the work itself took longer than the injected duration, "
                "so the speeds are not meaningful; raise cluster.inject.step"
            )
    return sentences


def _keep(options: CompareOptions, reports: dict[str, list[dict[str, Any]]]) -> None:
    """Write the results so far, in case the comparison is interrupted."""
    options.out.mkdir(parents=True, exist_ok=True)
    run_folder.export_json(options.out / "compare.json", {"reports": reports, "margin": options.margin})


def _write(
    options: CompareOptions, arms: Sequence[StrategyRuns], reports: dict[str, list[dict[str, Any]]]
) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    results = {"arms": [arm.as_json() for arm in arms], "reports": reports, "margin": options.margin}
    run_folder.export_json(options.out / "compare.json", results)
    run_folder.export_text(options.out / "compare.md", markdown(arms, options) + "\n")
    terminal.say(f"Wrote {options.out / 'compare.json'}, {options.out / 'compare.md'}.")


def markdown(arms: Sequence[StrategyRuns], options: CompareOptions) -> str:
    heads, rows = _lines(arms, options, "$ / 1 B")
    return markdown_table(heads, rows)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
