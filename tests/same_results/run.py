"""python -m tests.same_results.run record FILE | compare FILE: does this code train as an earlier version did?

    record FILE [--python PATH]     runs every case twice with that interpreter's Gearshift and keeps what both agree on
    compare FILE [--python PATH]    runs every case once and prints what differs; the exit code is 1 if anything does
    --cases PATTERN                 only cases whose name matches

Compared are the final parameters and optimizer state (digests of each tensor file), the report without its timings, and
the steps of the event log without the wording of reasons. A fact that differs between two runs of the same code, such
as the staleness of asynchronous workers, is recorded as "varies" and not compared.

Parameters are comparable on one kind of CPU only. On another one, OPENBLAS_CORETYPE=SkylakeX makes BLAS add up as on
the one that recorded; or record again with the interpreter of the old checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors import safe_open

from gearshift.parameters.checkpoint import ROWS, Checkpoint
from tests.same_results.cases import BASE, CASES, Case

VARIES = "varies"
ROWS_NAME = re.compile(r"((?:baseline-)?rows\d+(?:-s\d+)?)-")
TIMEOUT = 300.0  # seconds for one run
TIMINGS = re.compile(
    r"seconds|per_second|memory|wall|_at$|rate_of|checkpoint_age|possible|utili|busy|wait|network|bytes|message|by_worker"
)
ACCOUNTS = (
    "strategy",
    "engine",
    "workers",
    "global_batch",
    "examples",
    "global_steps",
    "applied",
    "discarded",
)


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("command", choices=["record", "compare"])
    parse.add_argument("file", type=Path)
    parse.add_argument("--python", default=sys.executable)
    parse.add_argument("--cases", default="*")
    options = parse.parse_args()
    cases = [case for case in CASES if fnmatch(case.name, options.cases)]
    if options.command == "record":
        facts = json.loads(options.file.read_text()) if options.file.exists() else {}
        for case in cases:
            facts[case.name] = agreed(facts_of(case, options.python), facts_of(case, options.python))
            options.file.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"recorded {len(facts)} cases in {options.file}")
        return 0
    recorded = json.loads(options.file.read_text())
    failed = 0
    for case in cases:
        found = differences(recorded[case.name], facts_of(case, options.python))
        print(f"{case.name:50} {'same' if not found else 'DIFFERS'}", flush=True)
        for line in found:
            print(f"    {line}")
        failed += bool(found)
    return 1 if failed else 0


def facts_of(case: Case, python: str) -> dict[str, Any]:
    """Trains the case in a temporary folder and reads what its run folder says."""
    with tempfile.TemporaryDirectory(prefix="same-results-") as folder:
        root = Path(folder)
        (root / "config.yaml").write_text(yaml.safe_dump(BASE))
        train(python, root, "config.yaml", *case.overrides, "checkpoint.path=runs")
        run = (root / "runs" / "last").resolve()
        if case.resume_step is not None:
            first = run / "checkpoints" / f"step-{case.resume_step}"
            train(
                python, root, "config.yaml", *case.overrides, "checkpoint.path=again", "--resume", str(first)
            )
            run = (root / "again" / "last").resolve()
        if case.free_running:
            return {"report": {key: value for key, value in report(run).items() if key in ACCOUNTS}}
        return {"parameters": digests(run), "report": report(run), "steps": steps(run)}


def train(python: str, root: Path, *arguments: str) -> None:
    command = [python, "-m", "gearshift", "train", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def digests(run: Path) -> dict[str, str]:
    """A digest of each tensor file of the last checkpoint, and of the rows of each store.

    Names, types, shapes and bits count, not the layout: rows were safetensors once and are row files now. The table of
    a row is left out, because earlier versions did not keep it.
    """
    path = (run / "checkpoints" / "last").resolve()
    found = {}
    for file in sorted(path.glob("*.safetensors")):
        if not ROWS_NAME.match(file.name):
            with safe_open(file, framework="np") as opened:
                found[file.name] = digest({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118
    checkpoint = Checkpoint.open(path)
    for name in sorted({match[1] for file in checkpoint.files if (match := ROWS_NAME.match(file))}):
        blocks = list(checkpoint.rows(name))
        columns = {key: [getattr(block, of_block) for block in blocks] for key, of_block in ROWS.items()}
        kept = {key: np.concatenate(parts) for key, parts in columns.items() if key != "tables"}
        found[f"{name}-0000.safetensors"] = digest(kept)
    return found


def digest(arrays: dict[str, NDArray[Any]]) -> str:
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()[:16]


def report(run: Path) -> dict[str, Any]:
    return flat(json.loads((run / "report.json").read_text()))


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists as one mapping of dotted keys, without timings."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for key, inner in pairs:
        name = f"{prefix}{key}"
        if TIMINGS.search(name):
            continue
        if isinstance(inner, dict | list):
            found |= flat(inner, f"{name}.")
        else:
            found[name] = inner
    return found


def steps(run: Path) -> str:
    """A digest of the steps in the event log: which leases formed each, with which weight."""
    total = hashlib.sha256()
    for path in sorted(run.glob("events-*.jsonl")):
        for line in path.read_text().splitlines():
            for action in json.loads(line).get("do", ()):
                if action[0] == "apply":
                    total.update(json.dumps(without_words(action)).encode())
    return total.hexdigest()[:16]


def without_words(value: Any) -> Any:
    if isinstance(value, list):
        return [without_words(inner) for inner in value if not (isinstance(inner, str) and " " in inner)]
    return value


def agreed(first: Any, second: Any) -> Any:
    """What two runs of the same code have in common."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: agreed(first[key], second[key]) for key in first if key in second}
    return first if first == second else VARIES


def differences(recorded: Any, now: Any, where: str = "") -> list[str]:
    if isinstance(recorded, dict) and isinstance(now, dict):
        return [
            line
            for key in recorded
            for line in differences(recorded[key], now.get(key, "(missing)"), f"{where}{key}: ")
        ]
    if recorded in (VARIES, now):
        return []
    return [f"{where}{recorded} -> {now}"]


if __name__ == "__main__":
    sys.exit(main())
