"""The metrics of a finished run: one flat mapping with stable keys, and the printed summary.

Durations in seconds, sizes in bytes. Keys are a contract: add, never rename.
"""

from __future__ import annotations

import math
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gearshift.data.readers.bad_lines import lines_lost
from gearshift.data.schema import Schema
from gearshift.embedding.row_rules import sketch_bytes
from gearshift.embedding.rule_figures import rules_line
from gearshift.embedding.tier_figures import TierSummary
from gearshift.metrics import Metric, day_name
from gearshift.metrics.measures import SHOWN
from gearshift.metrics.warning_rules import Scored, one_label, too_good, warnings_of
from gearshift.training.evaluation import Evaluation
from gearshift.training.training import Training

LARGE_SHARE = 0.2  # share of a worker's examples; if it loses more, there is a message


def report(
    training: Training,
    steps: int,
    valid: Evaluation | None,
    test: Evaluation | None = None,
    baseline: Evaluation | None = None,
    *,
    engine: str,
    seconds: float,
    data_warning: str | None = None,
    tier: TierSummary | None = None,
) -> dict[str, Any]:
    """`steps` is the number of steps made; the parameters may be those of an earlier step that scored best.

    `seconds` is wall time, `data_warning` a message about how the validation data were cut. `tier` is from the end of
    the training, if other rows have been loaded since.
    """
    progress, learner = training.progress, training.learner
    measures = valid.measures if valid else progress.measures
    automatic = training.active_strategy.automatic
    return {
        "model": type(learner.model).__name__,
        "strategy": training.strategy.name,
        "automatic": automatic and automatic.outcomes,
        "engine": engine,
        "workers": training.workers,
        "global_batch": training.plan.global_batch,
        "examples": progress.examples,
        "seconds": progress.seconds,
        "wall_seconds": seconds,
        "examples_per_second": progress.examples / progress.seconds if progress.seconds else 0.0,
        "global_steps": steps,
        "applied": progress.applied,
        "discarded": sum(progress.discarded.values()),
        "discarded_by_reason": progress.discarded,
        "duplicated_examples": progress.duplicated,
        "examples_by_worker": progress.examples_by_worker,
        "discarded_examples_by_worker": progress.lost_by_worker,
        "injected": _injected(training),
        "measured_on": "valid" if valid else "training data, before each example was trained",
        "measured_examples": measures.examples,
        **{k: v for k, v in measures.as_dict().items() if k not in ("examples", "positives")},
        "grouped_auc": valid.grouped_auc if valid else None,
        "grouped_auc_weighted_by": "examples of the group",
        "calibration_table": [row.as_dict() for row in measures.calibration_table],
        "task_names": [label.task for label in learner.schema.labels],
        "tasks": _tasks(learner.schema, valid) if valid else {},
        "test": test.task_figures(0) | {"tasks": _tasks(learner.schema, test)} if test else None,
        "progressive": progress.measures.as_dict(),
        "progressive_by_day": {day_name(d): m.as_dict() for d, m in progress.days.measures.items()},
        "best_step": progress.best_step if training.plan.keep_best and valid else steps,
        "evaluated_weights": learner.evaluated_weights,
        "evaluations": progress.evaluations,
        "baselines": _baselines(training, valid, baseline),
        "staleness": spread(progress.staleness),
        "lag": spread(progress.lag),
        "sync_gap": training.replicas.sync_gap(training.strategy.batch * training.workers),
        "plain_steps": progress.plain_steps,
        "embedding_rows": learner.rows,
        "embedding_bytes": learner.row_bytes,
        "sketch_bytes": sum(
            sketch_bytes(store.lifetimes.rules) for store in learner.server.stores
        ),  # of these
        "tier": tier_report(tier or learner.tier, learner.schema),
        "row_rules": learner.rule_counts,  # by table: what was admitted, refused and expired
        "skipped_lines": lines_lost(training.train.skipped),
        "unseen_ids": dict(valid.unseen) if valid else {},  # by field: the share of examples with a new id
        "warnings": ([data_warning] if data_warning else []) + _warnings(training, valid, test),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def tier_report(tier: TierSummary | None, schema: Schema) -> dict[str, Any] | None:
    """Rows in memory and on disk, and the lookups of each table; None if there is no disk tier."""
    if tier is None:
        return None
    tables = {
        table: {"features": schema.users_of(table), **asdict(lookups), **lookups.ratios()}
        for table, lookups in tier.tables.items()
    }
    return asdict(tier.counts) | tier.counts.ratios() | {"tables": tables}


def _tasks(schema: Schema, evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """The metrics of every task, by its name."""
    return {label.task: evaluation.task_figures(i) for i, label in enumerate(schema.labels)}


def _warnings(training: Training, valid: Evaluation | None, test: Evaluation | None) -> list[str]:
    """Warnings about suspicious data and metrics."""
    before = training.progress.measures
    tasks = [label.task for label in training.learner.schema.labels]
    one = one_label(Scored("training", before))
    warnings = [one] if one else []
    for part, evaluation in (("valid", valid), ("test", test)):
        for t, measures in enumerate(evaluation.tasks if evaluation else ()):
            named = tasks[t] if len(tasks) > 1 else ""
            unseen = evaluation.unseen if evaluation and t == 0 else {}
            warnings += warnings_of(Scored(part, measures, named, before if t == 0 else None, unseen))
    if valid is None:
        warnings += too_good(Scored("training", before))
    return warnings


def _injected(training: Training) -> dict[str, Any] | None:
    """The injected slowness, and the speed that no strategy could exceed under it."""
    pacer = training.pacer
    if pacer is None:
        return None
    possible = pacer.possible(training.strategy.batch)
    return {"cluster": pacer.cluster.as_json(), "possible": possible, "overrun": pacer.overrun}


def spread(counts: dict[str, int]) -> dict[str, float]:
    """Mean, 99th percentile and maximum of whole numbers, from how often each occurred."""
    total = sum(counts.values())
    if not total:
        return {"mean": 0.0, "p99": 0.0, "max": 0.0}
    values = sorted((int(value), count) for value, count in counts.items())
    below, p99 = 0, values[-1][0]
    for value, count in values:
        below += count
        if below >= 0.99 * total:
            p99 = value
            break
    mean = sum(value * count for value, count in values) / total
    return {"mean": mean, "p99": float(p99), "max": float(values[-1][0])}


def _baselines(training: Training, valid: Evaluation | None, lr: Evaluation | None) -> dict[str, Any]:
    rate = training.progress.measures.mean_label
    baselines: dict[str, Any] = {"constant_rate": rate}
    if valid:
        baselines["constant_logloss"] = cross_entropy(valid.measures.mean_label, rate)
    if lr:
        baselines["lr"] = lr.measures.as_dict()
    return baselines


def cross_entropy(truth: float, guess: float) -> float:
    """The log loss of always predicting `guess` if the true rate is `truth`."""
    guess = min(max(guess, 1e-12), 1 - 1e-12)
    return -(truth * math.log(guess) + (1 - truth) * math.log(1 - guess))


def closing_lines(figures: dict[str, Any], folder: Path) -> list[str]:
    """The summary that is printed at the end; +- is a 95 % interval."""
    f = figures
    seconds = f["wall_seconds"]
    done = (
        f"done   {f['examples']:,} examples in {int(seconds // 60)}:{int(seconds % 60):02d} "
        f"({f['examples_per_second']:,.0f} ex/s while training); {f['global_steps']:,} steps"
    )
    if f["discarded"]:
        reasons = ", ".join(f["discarded_by_reason"])
        leases = f["applied"] + f["discarded"]
        done += f"; {leases:,} batches = {f['applied']:,} applied + {f['discarded']:,} discarded ({reasons})"
    if copied := f.get("duplicated_examples"):
        done += f"; {copied:,} examples were computed a second time, so that nobody waited for a late worker"
    if gap := f.get("sync_gap"):
        every = "-" if gap["mean"] is None else f"{gap['mean']:.1f}"
        done += (
            f"; a replica exchanged every {every} batches, {100 * gap['in_flight']:.0f} % of them during an exchange, "
            f"{gap['bytes'] / 1e6:,.1f} MB"
        )
    if f.get("plain_steps"):
        steps = f"{f['plain_steps']:,} step{'' if f['plain_steps'] == 1 else 's'}"
        done += f"; vr_* had no effect in {steps} with too few gradients"
    lines = [done, *_losses(f), *_scores(f)]
    if f["best_step"] != f["global_steps"]:
        lines.append(
            f"best   step {f['best_step']:,} of {f['global_steps']:,}: the best of {f['evaluations']} evaluations "
            "on the validation data, so its metrics there are slightly optimistic"
        )
    if f.get("row_rules"):
        lines.append(rules_line(f["row_rules"]))
    lines += [f"Warning: {sentence}" for sentence in f.get("warnings", ())]
    if f["skipped_lines"]:
        lines.append(
            f"data   {f['skipped_lines']:,} bad line(s) were skipped; they are listed in {folder}/bad_lines.txt"
        )
    lines.append(f"saved  {folder}/checkpoints/best")
    return lines


def _scores(f: dict[str, Any]) -> list[str]:
    """A line for each part of the data and each task."""
    names = f.get("task_names") or list(f.get("tasks", ()))
    width = max(map(len, names), default=0)
    tasks = [f"{name.ljust(width)}  " if len(names) > 1 else "" for name in names] or [""]

    def others(figures: dict[str, Any]) -> list[str]:
        scores = [figures["tasks"][name] for name in names[1:]] if figures.get("tasks") else []
        return [f"       {task}{_score_text(score)}" for task, score in zip(tasks[1:], scores, strict=False)]

    if f["measured_on"] != "valid":
        return [f"so far {tasks[0]}{_score_text(f)}"]
    before = (
        f"so far {tasks[0]}{_score_text(f['progressive'])}     (each training example, before it was trained)"
    )
    lines = [f"valid  {tasks[0]}{_score_text(f)}{_beside(f)}", *others(f), before]
    if test := f["test"]:
        lines += [f"test   {tasks[0]}{_score_text(test)}", *others(test)]
    return lines


def _losses(f: dict[str, Any]) -> list[str]:
    """Workers that lost a large share of their examples: a bias, if their data differs from that of the others."""
    lines = []
    why = (
        "they came too late"
        if "too late" in f["discarded_by_reason"]
        else "see discarded_by_reason in report.json"
    )
    help = (
        "; raise max_lag, or give this worker smaller batches"
        if "too late" in f["discarded_by_reason"]
        else ""
    )
    for worker, lost in f["discarded_examples_by_worker"].items():
        share = lost / f["examples_by_worker"][worker]
        if share > LARGE_SHARE:
            lines.append(
                f"data   worker {worker} lost {100 * share:.0f} % of the examples it computed: {why}. If this data "
                f"is different, the model has not learned it{help}"
            )
    return lines


def _score_text(f: dict[str, Any]) -> str:
    """Every metric that is shown, the grouped AUC after the AUC."""
    auc, *others = (_metric_text(shown, f) for shown in SHOWN)
    grouped = f"gAUC {short(f['grouped_auc'])} (weighted by examples)" if f.get("grouped_auc") else ""
    return "  ".join(filter(None, (auc, grouped, *others)))


def _metric_text(shown: Metric, f: dict[str, Any]) -> str:
    """`AUC .7712 +- .0041`; nothing if the report is older than the metric."""
    value = f.get(shown.name)
    if shown.name not in f or (shown.ratio and value is None):
        return ""
    text = f"{value:.{shown.digits}f}" if shown.ratio else short(value, shown.digits)
    error = f" +- {short(1.96 * f[shown.error])}" if f.get(shown.error) else ""
    return f"{shown.heading} {text}{error}"


def _beside(f: dict[str, Any]) -> str:
    """Which weights were evaluated, and the scores of simple models."""
    baselines = f["baselines"]
    known = [f"weights: {f['evaluated_weights']}"] if f.get("evaluated_weights") else []
    if baselines.get("constant_logloss") is not None:
        known.append(f"constant rate: logloss {short(baselines['constant_logloss'])}")
    if baselines.get("lr"):
        known.append(f"LR on the same data: AUC {short(baselines['lr']['auc'])}")
    return f"     ({'; '.join(known)})" if known else ""


def short(value: float | None, digits: int = 4) -> str:
    """.7712, as tables of AUCs are printed; "-" for what could not be measured."""
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text
