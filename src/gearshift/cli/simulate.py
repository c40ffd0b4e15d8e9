"""`gearshift simulate`: strategies on a hypothetical cluster, in virtual time; timing only, no torch.

It shows how fast each strategy would be, how stale its gradients, and which workers' data it would discard. It does not
show the effect on the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gearshift.cli import terminal
from gearshift.cli.simulate_options import SimulatedArm, SimulateOptions, arms_of, cluster_of, read_count
from gearshift.cluster_model.closed_forms import possible_rate, sync_rate
from gearshift.cluster_model.cluster import ClusterModel
from gearshift.engine.simulation.simulator import simulate
from gearshift.engine.simulation.tally import Outcome
from gearshift.run import folder as run_folder
from gearshift.sync.automatic import Automatic
from gearshift.sync.registry import SCHEDULED_AHEAD
from gearshift.sync.strategy import Strategy

MOST_CHANGES = 10  # maximum number of changes of auto that are printed
LARGE_SHARE = 0.2  # of a worker's examples; if it loses more, there is a warning
_HEADS = ("strategy", "ex/s", "x sync", "of possible", "staleness", "lag", "discarded", "")
_UNDER = ("", "", "", "", "mean / p99", "p99", "", "")
AFTER = 6  # position of columns that only some comparisons have


def simulate_command(options: SimulateOptions, *, json_file: Path | None) -> None:
    cluster, examples = cluster_of(options), read_count("--examples", options.examples)
    arms = arms_of(options, cluster.workers, examples)
    terminal.say(_opening(options, cluster, examples, arms[0].strategy))
    outcomes = [_simulated(cluster, arm, examples) for arm in arms]
    sync = next((o for a, o in zip(arms, outcomes, strict=True) if a.name == "sync"), None)
    rows = [_row(arm, outcome, sync) for arm, outcome in zip(arms, outcomes, strict=True)]
    lines, right = [_HEADS, _UNDER, *rows], "lrrrrrrl"
    for heads, texts in _further_columns(outcomes):
        lines = [
            (*row[:AFTER], text, *row[AFTER:]) for row, text in zip(lines, [*heads, *texts], strict=True)
        ]
        right = f"{right[:AFTER]}r{right[AFTER:]}"
    terminal.say(terminal.table(lines[0], lines[1:], right=right))
    for arm, outcome in zip(arms, outcomes, strict=True):
        for sentence in [*change_messages(arm, outcome), *warnings(arm, outcome)]:
            terminal.say(sentence)
    if json_file is not None:
        run_folder.export_json(json_file, _figures(options, cluster, examples, arms, outcomes, sync))


def _further_columns(outcomes: list[Outcome]) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Columns, from the right, that are shown only if a strategy has something there."""
    if any(outcome.duplicated for outcome in outcomes):
        yield ("duplicated", ""), [terminal.count(outcome.duplicated) for outcome in outcomes]
    if any(outcome.sync_gap for outcome in outcomes):
        yield ("sync gap", "batches"), [terminal.gap(outcome.sync_gap) for outcome in outcomes]


def _simulated(cluster: ClusterModel, arm: SimulatedArm, examples: int) -> Outcome:
    automatic = Automatic(arm.auto, arm.strategy.global_batch) if arm.auto else None
    return simulate(cluster, arm.strategy, examples, switches=arm.switches, automatic=automatic)


def change_messages(arm: SimulatedArm, outcome: Outcome) -> list[str]:
    """The first changes of auto, with reason and effect."""
    messages = []
    for change in outcome.automatic[:MOST_CHANGES]:
        came = "" if change.realised is None else f"; it became {change.realised:.2f}x as fast"
        messages.append(
            f"{arm.name}: {change.before} -> {change.strategy} at {change.at:.1f} s, step {change.step:,}: "
            f"{change.reason} ({change.predicted:.2f}x){came}"
        )
    more = len(outcome.automatic) - MOST_CHANGES
    return [*messages, f"{arm.name}: {more} more changes, all in --json"] if more > 0 else messages


def _opening(options: SimulateOptions, cluster: ClusterModel, examples: int, first: Strategy) -> str:
    cut = f"{first.global_batch:,} = {first.global_batch / first.batch:g} x {first.batch:,}"
    disturbed = [
        f"{name} {' '.join(words)}"
        for name, words in (
            ("slow", options.slow),
            ("lognormal", options.lognormal),
            ("bursts", options.bursts),
            ("fail", options.fail),
            ("preempt", options.preempt),
        )
        if words
    ]
    possible, sync = possible_rate(cluster, first.batch), _sync_rate(cluster, first)
    limit = f"; no strategy beats {possible / sync:.2f} x sync" if sync else ""
    return (
        f"Simulated, timing only: {cluster.workers:,} workers, global batch {cut}, {examples:,} examples, "
        f"seed {cluster.seed}; {', '.join(disturbed) or 'no disturbances'}.\n"
        f"Possible = sum of worker rates = {terminal.count(possible)} ex/s while all are present{limit}."
    )


def _sync_rate(cluster: ClusterModel, strategy: Strategy) -> float | None:
    """By closed form; None if it does not apply: shared cores, absences, several leases per worker and round."""
    away = cluster.crashes or cluster.failures or cluster.preemptions or cluster.slow_periods
    if away or cluster.cores is not None or strategy.batch * cluster.workers != strategy.global_batch:
        return None
    return sync_rate(cluster, strategy.batch)


def _row(arm: SimulatedArm, outcome: Outcome, sync: Outcome | None) -> tuple[str, ...]:
    names = {arm.strategy.name, *(switch.strategy for switch in arm.switches)}
    names |= {change.strategy for change in outcome.automatic}
    speed = outcome.examples_per_second
    reasons = outcome.discarded_by_reason
    discards = ", ".join(
        f"{reason} {terminal.percent(n / outcome.examples)}"
        for reason, n in sorted(reasons.items(), key=lambda item: -item[1])
    )
    has_lag = bool(names & set(SCHEDULED_AHEAD))  # for other strategies it equals the staleness
    return (
        arm.name,
        terminal.count(speed),
        f"{speed / sync.examples_per_second:.2f}" if sync else "-",
        terminal.percent(speed / outcome.possible, 0),
        f"{outcome.staleness.mean:.1f} / {outcome.staleness.p99:g}",
        f"{outcome.lag.p99:g}" if has_lag else "-",
        terminal.count(outcome.discarded),
        discards,
    )


def warnings(arm: SimulatedArm, outcome: Outcome) -> list[str]:
    """What a user should know before choosing this strategy."""
    sentences = []
    losers = losing(outcome)
    if losers:
        worst = terminal.percent(max(share for _, share in losers), 0)
        who = (
            f"worker {losers[0][0]} loses {worst}"
            if len(losers) == 1
            else f"{_several(losers)} up to {worst}"
        )
        sentences.append(
            f"{arm.name}: {who} of the examples computed there, because the gradients arrive too late; if this "
            "data is different, the model will not learn it. "
            f"{'Raise max_lag' if arm.auto or 'gba' in arm.name else 'Use gba'}, or give slow workers smaller batches."
        )
    gradients = arm.strategy.global_batch / arm.strategy.batch
    if arm.strategy.name == "gba" and outcome.workers > 2 * gradients:
        sentences.append(
            f"{arm.name}: {outcome.workers:,} workers for {gradients:g} gradients per step; the accuracy of sync is "
            "claimed for at most one worker per gradient."
        )
    return sentences


def losing(outcome: Outcome) -> list[tuple[int, float]]:
    """(worker, share) for each worker that loses a large share of its examples."""
    pairs = zip(outcome.applied_by_worker, outcome.discarded_by_worker, strict=True)
    shares = [discarded / max(1, applied + discarded) for applied, discarded in pairs]
    return [(worker, share) for worker, share in enumerate(shares) if share >= LARGE_SHARE]


def _several(losers: list[tuple[int, float]]) -> str:
    shown = ", ".join(str(worker) for worker, _ in losers[:3])
    more = f" and {len(losers) - 3:,} more" if len(losers) > 3 else ""
    return f"workers {shown}{more} lose"


def _figures(
    options: SimulateOptions,
    cluster: ClusterModel,
    examples: int,
    arms: list[SimulatedArm],
    outcomes: list[Outcome],
    sync: Outcome | None,
) -> dict[str, Any]:
    return {
        "simulated": "timing only",
        "examples": examples,
        "cluster": cluster.as_json(),
        "possible": possible_rate(cluster, arms[0].strategy.batch),
        "sync_by_arithmetic": _sync_rate(cluster, arms[0].strategy),
        "strategies": [
            {
                **outcome.as_json(),
                "strategy": arm.name,
                "global_batch": arm.strategy.global_batch,
                "batch": arm.strategy.batch,
                "vs_sync": outcome.examples_per_second / sync.examples_per_second if sync else None,
                "of_possible": outcome.examples_per_second / outcome.possible,
                "losing_workers": dict(losing(outcome)),
            }
            for arm, outcome in zip(arms, outcomes, strict=True)
        ],
    }
