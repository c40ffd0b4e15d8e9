"""python -m tests.matrix.run --out FOLDER: the operator's matrix, or part of it, one case after the other.

    --python PATH     the interpreter of the checkout to harm (this one if not given)
    --cases PATTERN   names to run, as `short`, `coordinator/*`, `*/resize/*` or whole names; all if not given
    --out FOLDER      journal.jsonl (a case that stands there is not run again), table.txt, table.json
    --compare FOLDER  no runs: a table of this journal and an earlier one side by side

Prints a line per case. The exit code is 0 if every case went as it must.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from tests.matrix.case import carry_out
from tests.matrix.scenarios import IMPOSSIBLE, SHORT, Case, matrix
from tests.matrix.verdict import Result


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--python", default=sys.executable)
    parse.add_argument("--cases", nargs="*", default=["*"])
    parse.add_argument("--out", type=Path, required=True)
    parse.add_argument("--compare", type=Path)
    parse.add_argument("--minutes", type=float, default=120.0, help="no new case after so long")
    parse.add_argument("--keep", action="store_true", help="keep the work folder of each case in OUT")
    parse.add_argument("--list", action="store_true", help="only print the names")
    asked = parse.parse_args()
    cases = chosen(asked.cases)
    if asked.list:
        print("\n".join(case.name for case in cases))
        return 0
    if asked.compare:
        print(side_by_side(read(asked.compare), read(asked.out)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the case under way ends too
    asked.out.mkdir(parents=True, exist_ok=True)
    results = run_all(cases, asked.python, asked.out, asked.minutes, keep=asked.keep)
    write_tables(results, asked.out)
    print(table(results))
    return 0 if all(result.ok for result in results) and len(results) == len(cases) else 1


def chosen(patterns: list[str]) -> list[Case]:
    if patterns == ["short"]:
        return list(SHORT)
    return [case for case in matrix() if any(fnmatch(case.name, pattern) for pattern in patterns)]


def run_all(cases: list[Case], python: str, out: Path, minutes: float, *, keep: bool) -> list[Result]:
    known, began = {result.name: result for result in read(out)}, time.monotonic()
    for number, case in enumerate(cases, 1):
        if case.name in known or time.monotonic() - began > 60 * minutes:
            continue
        known[case.name] = result = carry_out(case, python, out if keep else None)
        with (out / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(asdict(result)) + "\n")
        print(
            f"{(time.monotonic() - began) / 60:5.1f} min  {number:2}/{len(cases)}  {line(result)}", flush=True
        )
    return [known[case.name] for case in cases if case.name in known]


def read(out: Path) -> list[Result]:
    journal = out / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [Result(**json.loads(one)) for one in lines]


# ---- tables ----


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def line(result: Result) -> str:
    verdict = "ok" if result.ok else "FAILED: " + "; ".join(result.failures)
    late = "" if result.in_time else "  (the moment was over)"
    return (
        f"{result.name:60} {result.outcome:8} {seconds(result.without_step):>6} s of {seconds(result.bound):>5}  "
        f"{result.redone:4} redone  {result.seconds:5.0f} s  {verdict}{late}"
    )


def table(results: list[Result]) -> str:
    heading = f"{'case':60} {'outcome':8} {'s without a step, bound':>17}"
    passed = sum(result.ok for result in results)
    left_out = [f"left out: {target}, {moment}: {why}" for (target, moment), why in IMPOSSIBLE.items()]
    total = f"{passed} of {len(results)} as they must, in {sum(r.seconds for r in results) / 60:.0f} min"
    return "\n".join([heading, *map(line, results), *left_out, total])


def write_tables(results: list[Result], out: Path) -> None:
    (out / "table.txt").write_text(table(results) + "\n")
    (out / "table.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def side_by_side(before: list[Result], after: list[Result]) -> str:
    """Per case: outcome, seconds without a step and verdict, before and after."""
    old = {result.name: result for result in before}
    rows = [f"{'case':60} {'before':26} after"]
    for new in after:
        rows.append(f"{new.name:60} {brief(old.get(new.name)):26} {brief(new)}")
    return "\n".join(rows)


def brief(result: Result | None) -> str:
    if result is None:
        return "-"
    gap = seconds(result.without_step) if result.outcome != "hangs" else "never"
    return f"{result.outcome:6} {gap:>6} s  {'ok' if result.ok else 'FAILED'}"


if __name__ == "__main__":
    sys.exit(main())
