"""What a process's rules of admission and expiry have done as its metrics, and the sum over several processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gearshift.embedding.row_rules import COUNTS, RowRule, counts_by_table
from gearshift.embedding.store import RowStore

RuleCounts = dict[str, dict[str, int]]  # by table


def rule_counts(stores: Iterable[RowStore]) -> RuleCounts:
    """Of all tables that have a rule."""
    counts: RuleCounts = {}
    for lifetimes in (store.lifetimes for store in stores):
        counts |= counts_by_table(lifetimes.rules, lifetimes.counts()) if lifetimes.rules else {}
    return counts


def rule_figures(stores: Iterable[RowStore]) -> dict[str, float]:
    """By names such as `rules_0_3_expired`: table 3 of the first store."""
    return {
        _name(number, table, what): float(count)
        for number, store in enumerate(stores)
        if store.lifetimes.rules
        for table, counts in enumerate(store.lifetimes.counts())
        if _has_rule(store.lifetimes.rules[table])
        for what, count in zip(COUNTS, counts, strict=True)
    }


def summed_rule_counts(
    figures: Iterable[Mapping[str, float]], rules: Iterable[tuple[RowRule, ...]]
) -> RuleCounts:
    """Of all processes; `rules` are those of each store."""
    known = list(figures)
    return {
        rule.table: {
            what: int(sum(one.get(_name(number, table, what), 0) for one in known)) for what in COUNTS
        }
        for number, of_store in enumerate(rules)
        for table, rule in enumerate(of_store)
        if _has_rule(rule)
    }


def rules_line(counts: RuleCounts) -> str:
    """`rows   3 ids admitted; 5 occurrences of new ids refused (4 gradients); 2 rows expired`, over all tables."""
    return f"rows   {rules_text(rule_totals(counts))}"


def rules_text(counts: Mapping[str, int]) -> str:
    """What happened: nothing is said of admission where all ids get rows, or of expiry where no row has expired."""
    parts = []
    if counts["admitted"] or counts["refused_occurrences"]:
        parts.append(
            f"{counts['admitted']:,} ids admitted; {counts['refused_occurrences']:,} occurrences of new ids refused "
            f"({counts['refused_gradients']:,} gradients)"
        )
    if counts["expired"] or not parts:
        parts.append(f"{counts['expired']:,} rows expired")
    return "; ".join(parts)


def rule_totals(counts: RuleCounts) -> dict[str, int]:
    """Over all tables; empty without rules."""
    return {what: sum(of_table[what] for of_table in counts.values()) for what in COUNTS} if counts else {}


def _has_rule(rule: RowRule) -> bool:
    return rule.is_gated or rule.expire is not None


def _name(store: int, table: int, what: str) -> str:
    return f"rules_{store}_{table}_{what}"
