"""python -m tests.storage_kills.run --kills 50: kill -9 at random moments of runs whose rows do not fit in memory.

The memory is so small that rows are evicted, written, merged and saved all the time. A run is killed again and again:
in one process (`inline`, `threads`) all of it, on `ray` a random shard, worker or the coordinator. In one process, rows
are read ahead in chunks until the first kill, then one batch at a time until the second, and so on. After each kill the
last checkpoint is read and verified, block by block; a killed process is resumed. At the end the run has the parameters
of an undisturbed one, bit for bit (on Ray at least the same accounts), and no file is left behind. Prints a table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from gearshift.parameters.checkpoint import Checkpoint
from tests.matrix import processes

EXAMPLES, START_SECONDS, END_SECONDS, RECOVERY_SECONDS = 40_000, 240.0, 600.0, 90.0
CONFIG = """\
name: kills
data: {{synthetic: {{examples: {examples}, days: 1}}}}
model: {{name: deepfm, dim: 8, hidden: [16]}}
train: {{global_batch: 512, eval_every: none, baseline: false}}
cluster: {cluster}
memory: 3MiB
storage: {{path: rows}}
checkpoint: {{every: 4, keep: 2, path: runs}}
"""
CLUSTERS = {
    "inline": "{workers: 1, threads: 1}",
    "threads": "{workers: 2, threads: 2}",
    "ray": "{engine: ray, address: local, workers: 2, shards: 2, threads: 1, patience: 10s, "
    "resources: {coordinator_cpus: 0.1, shard_cpus: 0.1, worker_cpus: 0.1}}",
}
LOOKAHEADS = ("3000", "auto")  # of one start after another; with so little memory, auto means no chunks
VICTIMS = ("shard", "shard", "worker", "coordinator")


@dataclass
class Outcome:
    """What became of one run."""

    engine: str
    kills: int = 0
    in_chunks: int = 0  # kills in the middle of a chunk
    verified: int = 0  # checkpoints that were read after a kill
    while_saving: int = 0  # kills with a half written checkpoint
    while_writing: int = 0  # kills with a half written row file: of an eviction or a merge
    seconds: float = 0.0
    same_bits: bool = False
    accounts: bool = False
    left_behind: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        exact = self.same_bits or self.engine == "ray"
        return exact and self.accounts and not self.failures and not self.left_behind


class KilledRun:
    """A run in a folder of its own, with all of its processes marked."""

    def __init__(self, engine: str, work: Path, examples: int) -> None:
        self.engine, self.work, self.marker, self.examples = engine, work, secrets.token_hex(8), examples
        self.starts = 0
        work.mkdir()
        (work / "kills.yaml").write_text(CONFIG.format(cluster=CLUSTERS[engine], examples=examples))
        self.environment = {
            **os.environ,
            processes.VARIABLE: self.marker,
            "TMPDIR": tempfile.mkdtemp(prefix="k-"),  # paths of sockets are short
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def out(self) -> str:
        return (self.work / "out.txt").read_text(errors="replace")

    @property
    def lookahead(self) -> str:
        """That of the last start. On Ray there are no chunks."""
        return "auto" if self.engine == "ray" else LOOKAHEADS[(self.starts - 1) % len(LOOKAHEADS)]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.starts += 1
        arguments = (*arguments, f"storage.lookahead={self.lookahead}")
        with (self.work / "out.txt").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "gearshift", "train", *arguments],
                cwd=self.work,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def resume_or_start(self) -> subprocess.Popen[bytes]:
        return (
            self.start("--resume", str(self.runs[0])) if self.last is not None else self.start("kills.yaml")
        )

    @property
    def runs(self) -> list[Path]:
        return sorted(
            path.parent for path in self.work.glob("runs/*/run.json") if not path.parent.is_symlink()
        )

    @property
    def last(self) -> Path | None:
        """The last checkpoint, if there is one."""
        return next(
            (run / "checkpoints/last" for run in self.runs if (run / "checkpoints/last").exists()), None
        )

    @property
    def saved(self) -> Path | None:
        """The last checkpoint under its own name."""
        return self.last and self.last.resolve()

    def wait_for_save(
        self, process: subprocess.Popen[bytes], before: Path | None, seconds: float = START_SECONDS
    ) -> None:
        """Until there is another checkpoint than this one, or the process has ended."""
        end = time.monotonic() + seconds
        while self.saved == before and process.poll() is None:
            assert time.monotonic() < end, f"no checkpoint after {before} in {seconds:.0f} s"
            time.sleep(0.02)

    def close(self) -> None:
        processes.end_all(self.marker)
        shutil.rmtree(self.environment["TMPDIR"], ignore_errors=True)


def verify(checkpoint: Path) -> str:
    """A digest of all parameters; raises if any block of any file is damaged."""
    saved, digest = Checkpoint.open(checkpoint), hashlib.sha256()
    for name in sorted(name for name in saved.files if not name.startswith("rows")):
        for key, array in sorted(saved.arrays(name.removesuffix(".safetensors")).items()):
            digest.update(f"{name} {key}".encode() + np.ascontiguousarray(array).tobytes())
    for store in sorted({name.split("-")[0] for name in saved.files if name.startswith("rows")}):
        blocks = list(saved.rows(store))
        order = np.argsort(np.concatenate([block.ids_U for block in blocks]), kind="stable")
        for column in fields(blocks[0]):
            values = np.concatenate([getattr(block, column.name) for block in blocks])[order]
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def undisturbed(engine: str, work: Path, examples: int) -> tuple[str, float]:
    """The digest of the last checkpoint, and the seconds from the first checkpoint to the end."""
    run = KilledRun(engine, work, examples)
    try:
        process = run.start("kills.yaml")
        run.wait_for_save(process, None)
        began = time.monotonic()
        assert process.wait(END_SECONDS) == 0, run.out[-3000:]
        assert run.last is not None
        return verify(run.last), time.monotonic() - began
    finally:
        run.close()


def disturbed(
    engine: str, work: Path, kills: int, expected: str, seconds: float, dice: random.Random, examples: int
) -> Outcome:
    run, outcome, began = KilledRun(engine, work, examples), Outcome(engine), time.monotonic()
    try:
        attack = _kill_members if engine == "ray" else _kill_whole
        code = attack(run, outcome, kills, seconds, dice)
        if code != 0:
            outcome.failures.append(f"exit code {code}: {run.out[-1500:]}")
        else:
            _judge(run, outcome, expected, examples)
    except Exception as error:
        outcome.failures.append(f"{type(error).__name__}: {error}")
    finally:
        run.close()
        outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def _kill_whole(run: KilledRun, outcome: Outcome, kills: int, seconds: float, dice: random.Random) -> int:
    while outcome.kills < kills:
        before = run.saved
        process = run.resume_or_start()
        run.wait_for_save(process, before)
        with suppress(subprocess.TimeoutExpired):  # never mind if it ends before
            process.wait(dice.uniform(0, seconds / (kills + 1)))
        if process.poll() is not None:
            return process.returncode
        _note_moment(run, outcome)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _verify_last(run, outcome)
    return run.resume_or_start().wait(END_SECONDS)


def _kill_members(run: KilledRun, outcome: Outcome, kills: int, seconds: float, dice: random.Random) -> int:
    process = run.start("kills.yaml")
    run.wait_for_save(process, None)
    while outcome.kills < kills and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(0, seconds / (kills + 1)))
        victims = processes.by_role(run.marker, run.runs[0])[dice.choice(VICTIMS)]
        if not victims:
            continue
        _note_moment(run, outcome)
        processes.send([dice.choice(victims)], signal.SIGKILL)
        _verify_last(run, outcome)
        with suppress(AssertionError):  # it recovers before the next one
            run.wait_for_save(process, run.saved, RECOVERY_SECONDS)
    return process.wait(END_SECONDS)


def _note_moment(run: KilledRun, outcome: Outcome) -> None:
    outcome.kills += 1
    outcome.in_chunks += run.engine != "ray" and run.lookahead != "auto"
    outcome.while_saving += any(run.work.glob("runs/*/checkpoints/.*.part"))
    outcome.while_writing += any(run.work.glob("rows/*/*.part"))


def _verify_last(run: KilledRun, outcome: Outcome) -> None:
    """On Ray a live run may replace it meanwhile: then the next one is verified."""
    for _ in range(5):
        if run.last is None:
            return
        path = run.last.resolve()
        try:
            verify(path)
            outcome.verified += 1
            return
        except Exception as error:
            if path.exists():
                outcome.failures.append(f"{path.name}: {error}")
                return


def _judge(run: KilledRun, outcome: Outcome, expected: str, examples: int) -> None:
    assert run.last is not None
    outcome.same_bits = verify(run.last) == expected
    report = json.loads((run.runs[0] / "report.json").read_text())
    outcome.accounts = report["examples"] == examples and report["discarded"] == 0
    if run.engine == "ray":  # its shards are killed at the end; the next run would do this
        subprocess.run(
            [sys.executable, "-m", "gearshift", "clean", "runs"],
            cwd=run.work,
            check=True,
            env=run.environment,
        )
    outcome.left_behind = [str(path.relative_to(run.work)) for path in _leftovers(run)]


def _leftovers(run: KilledRun) -> Iterator[Path]:
    yield from run.work.glob("rows/*")
    yield from run.work.glob("runs/*/checkpoints/.*")


def carry_out(
    kills: dict[str, int], each: int, seed: int, work: Path, examples: int = EXAMPLES
) -> list[Outcome]:
    """`kills` by engine, `each` of them in one run."""
    dice, outcomes = random.Random(seed), []
    for engine, count in kills.items():
        if not count:
            continue
        expected, seconds = undisturbed(engine, work / f"{engine}-undisturbed", examples)
        done = 0
        while done < count:
            in_this = min(each, count - done)
            name = f"{engine}-{len(outcomes)}"
            outcome = disturbed(engine, work / name, in_this, expected, seconds, dice, examples)
            outcomes.append(outcome)
            print(json.dumps(asdict(outcome)), flush=True)
            if outcome.failures or not outcome.kills:
                break
            done += outcome.kills
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    names = ("kills", "in_chunks", "verified", "while_saving", "while_writing", "same_bits", "accounts")
    listed = ("left_behind", "failures")
    titles = [name.replace("_", " ") for name in ("runs", *names, *listed)]
    lines = ["  ".join(["engine  ", *titles])]
    for engine in dict.fromkeys(o.engine for o in outcomes):
        of = [o for o in outcomes if o.engine == engine]
        sums = [len(of), *(sum(getattr(o, name) for o in of) for name in names)]
        sums += [sum(len(getattr(o, name)) for o in of) for name in listed]
        cells = (f"{number:{len(title)}}" for number, title in zip(sums, titles, strict=True))
        lines.append("  ".join([f"{engine:8}", *cells]))
    return "\n".join(lines)


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--kills", type=int, default=50)
    parse.add_argument("--each", type=int, default=5, help="kills in one run")
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--engines", default="inline,threads,ray")
    parse.add_argument("--examples", type=int, default=EXAMPLES)
    asked = parse.parse_args()
    engines = asked.engines.split(",")
    kills = {engine: asked.kills // len(engines) for engine in engines}
    kills[engines[0]] += asked.kills - sum(kills.values())
    with tempfile.TemporaryDirectory(prefix="kills-") as work:
        outcomes = carry_out(kills, asked.each, asked.seed, Path(work), asked.examples)
    print(table(outcomes))
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
