"""What variance reduction costs: a step of VR-x beside the same step of x, of the same gradients.

    python benchmarks/bench_vr_overhead.py        about two minutes

`vr_overhead_gba`: the gradients that wait in gba's buffer are there already; VR reads them once more.
`vr_overhead_sync`: two processes with half of the gradients each; x all-reduces their sum, VR the sums of g and of
squares about a shift in one buffer, by gloo, as the members of a ring do. Both are shares of the whole step of x: .04
is 4 % more; aims .10 and .15. A step is the forward and backward pass of 8 batches, the push of their rows, and the
dense step; a DeepFM of width 16, hidden 400-400 (.33 M dense weights), global batch 8,192 = 8 x 1,024 unless `--batch`
says otherwise.

Time is CPU time of the process, one thread of torch, so that what others do matters little. Both sides get the
gradients of the same step, one after the other, in an order that alternates; medians over the rounds. Of each the worst
of vr_sgd, vr_momentum, vr_adam, vr_lars and vr_lamb is reported, and all of them under `details`; there too, not among
them, what `row_trust` costs on top.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import gearshift as gs
from gearshift import optim
from gearshift.optim.first_order import DenseOptimizer
from gearshift.optim.layout import Layout, bind
from gearshift.optim.spread import SharedSums, ShiftedSums
from gearshift.optim.variance_reduced import VARIANCE_REDUCED, VarianceReduced
from gearshift.parameters.push import Push, ReplicaRowsPush
from gearshift.parameters.row_settings import RowPolicy
from gearshift.parameters.server import RowSettings, RowTrust, Server
from gearshift.training.learner import Learner
from gearshift.training.worker import Worker

GRADIENTS, PROCESSES = 8, 2
ROW_TRUSTS: tuple[RowTrust, ...] = ("touched", "row_wise")


class Gradients:
    """Those of a step, from real batches: each call computes the next `count`."""

    def __init__(self, batch: int, count: int, seed: int) -> None:
        log = gs.ClickLog(examples=batch * count * 8, seed=seed)
        self.data = gs.read(log.read(0, log.examples), log.schema).fitted()
        torch.manual_seed(1)
        model = gs.models.DeepFM(self.data.schema, dim=16, hidden=[400, 400])
        self.learner = Learner(
            Worker(model, self.data.schema), rows=RowSettings(gs.RowAdagrad()), optimizer=gs.SGD(lr=0.0)
        )
        self.found = [self.learner.find(batch) for batch in self.data.batches(batch)]
        self.count, self.position = count, 0
        dense = self.learner.worker.dense
        self.layout = Layout.of(dense.names, dense.shapes, dense.offsets)

    def next(self) -> list[Push]:
        first, self.position = self.position, (self.position + self.count) % len(self.found)
        chosen = self.found[first : first + self.count]
        return [self.learner.compute(found, i).kept() for i, found in enumerate(chosen)]

    def server(self, optimizer: DenseOptimizer, trust: RowTrust) -> Server:
        """Beside the learner's own, with its stores and a copy of its dense parameters."""
        server = self.learner.server
        return Server(
            server.flat.clone(), server.stores, optimizer, rows=RowPolicy(trust=trust), layout=self.layout
        )


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def interleaved(
    rounds: int, shared: Callable[[], list[Push]], sides: dict[str, Callable[[list[Push]], object]]
) -> tuple[float, dict[str, float]]:
    """Medians of what both have in common and of each side; the first three rounds warm up."""
    common: list[float] = []
    own: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(rounds + 3):
        began = time.process_time()
        pushes = shared()
        common.append(time.process_time() - began)
        for name in list(sides) if i % 2 else list(sides)[::-1]:
            own[name].append(seconds(lambda name=name, pushes=pushes: sides[name](pushes)))  # type: ignore[misc]
    return median(common[3:]), {name: median(times[3:]) for name, times in own.items()}


def gba(name: str, gradients: Gradients, rounds: int, trust: RowTrust = "dense_only") -> dict[str, float]:
    """Both sides push rows too: that is part of the step that the overhead is a share of."""
    rules = {"plain": optim.build(name.removeprefix("vr_")), "reduced": optim.build(name)}
    servers = {side: gradients.server(rule, trust) for side, rule in rules.items()}

    def apply(server: Server) -> Callable[[list[Push]], object]:
        return lambda pushes: server.apply_group([(push, 1.0) for push in pushes], lr_scale=1.0)

    common, own = interleaved(rounds, gradients.next, {side: apply(s) for side, s in servers.items()})
    return figures(common, own["plain"], own["reduced"])


def figures(common: float, plain: float, reduced: float) -> dict[str, float]:
    milliseconds = {"common_ms": common, "plain_ms": plain, "reduced_ms": reduced}
    share = (reduced - plain) / (common + plain)
    return {"overhead": round(share, 4)} | {key: round(1e3 * value, 2) for key, value in milliseconds.items()}


def sync(name: str, gradients: Gradients, rounds: int) -> dict[str, float]:
    """The dense part of a step in each of the processes; the rest of it is common to both sides."""
    flat, layout = gradients.learner.server.flat, gradients.layout
    plain = bind(optim.build(name.removeprefix("vr_")), layout)
    reduced = bind(optim.build(name), layout)
    assert isinstance(reduced, VarianceReduced)
    states = plain.init(flat.numel()), reduced.init(flat.numel())
    weights = flat.clone(), flat.clone()
    total, spare = torch.empty_like(flat), torch.empty_like(flat)
    shared, buffers = SharedSums(len(flat)), ShiftedSums(flat)

    def common() -> list[Push]:
        pushes = gradients.next()
        rows_alone = [(ReplicaRowsPush(push.rows, push.examples), 1.0) for push in pushes]
        Server(flat[:0], gradients.learner.server.stores, gs.SGD()).apply_group(rows_alone, lr_scale=1.0)
        return pushes

    def add_up(pushes: list[Push]) -> None:
        examples = PROCESSES * sum(push.examples for push in pushes)
        torch.mul(pushes[0].dense, 1 / examples, out=total)
        for push in pushes[1:]:
            total.add_(push.dense, alpha=1 / examples)

    @torch.no_grad()
    def of_x(pushes: list[Push]) -> None:
        add_up(pushes)
        dist.all_reduce(total)
        plain.step(weights[0], total, states[0])

    @torch.no_grad()
    def of_vr(pushes: list[Push]) -> None:
        shared.restart()
        for push in pushes:
            shared.add(push.dense, push.examples)
        dist.all_reduce(shared.packed)
        shared.settle(GRADIENTS)
        examples = PROCESSES * sum(push.examples for push in pushes)
        spread = buffers.of_total(shared.total, shared.variance, examples, GRADIENTS, GRADIENTS)
        ratios = reduced.gsnr.ratios(spread, layout)
        reduced.step(weights[1], spread.mean, states[1], ratio=ratios.values, spare=spare)

    together, own = interleaved(rounds, common, {"plain": of_x, "reduced": of_vr})
    return figures(together, own["plain"], own["reduced"])


def in_processes(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The slowest of them counts."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--meet", str(Path(folder) / "meet")]
        running = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(PROCESSES)
        ]
        said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process of the sync side failed; its traceback is above")
    each = [json.loads(text.splitlines()[-1]) for text in said]
    return {name: max((one[name] for one in each), key=lambda f: f["overhead"]) for name in each[0]}


def rank_main(options: argparse.Namespace) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{options.meet}", rank=options.rank, world_size=PROCESSES
    )
    gradients = Gradients(options.batch, GRADIENTS // PROCESSES, 1 + options.rank)
    print(json.dumps({name: sync(name, gradients, options.rounds) for name in VARIANCE_REDUCED}))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1024, help="examples of one gradient")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank is not None:
        rank_main(options)
        return
    gradients = Gradients(options.batch, GRADIENTS, 1)
    details = {"gba": {name: gba(name, gradients, options.rounds) for name in VARIANCE_REDUCED}}
    details["sync"] = in_processes(options)
    rows = {f"vr_sgd/{trust}": gba("vr_sgd", gradients, options.rounds, trust) for trust in ROW_TRUSTS}
    for side, found in details.items():
        for name, one in found.items():
            print(f"{side:5} {name:12} +{one['overhead']:.1%} of a step; {one}")
    for name, one in rows.items():
        print(f"gba   {name} +{one['overhead']:.1%} of a step; {one}")
    worst = {
        f"vr_overhead_{side}": max(f["overhead"] for f in found.values()) for side, found in details.items()
    }
    print(
        json.dumps(
            {
                **worst,
                "details": details | {"gba_rows": rows},
                "batch": options.batch,
                "rounds": options.rounds,
            }
        )
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
