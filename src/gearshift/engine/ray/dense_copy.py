"""A worker's copy of the dense parameters: sent by the shards, or updated locally with the sum of an all-reduce group.

It has a server for each shard's part, so norms and layers are those of the shards: the same sum, applied by the same
code, gives the same bits. The shards decide when it steps: an answer without dense values means that they have applied
the sum, and has the learning-rate factor and the number of examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gearshift.engine.protocol.messages import DenseValues, Rows
from gearshift.engine.wire.limits import StatePart
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ShardLayout, StepOnSum, shard_server


class DenseCopy:
    def __init__(self, whole: Server, layout: ShardLayout) -> None:
        """`whole` belongs to this worker alone; its values are updated."""
        self._layout = layout
        self._servers = [shard_server(whole, layout, shard) for shard in range(layout.shards)]

    @torch.no_grad()
    def take(self, answers: Sequence[Rows], sum_P: Tensor | None, variance_P: Tensor | None = None) -> None:
        """Updates the copy to the state of these answers; `sum_P` is the newest sum of the all-reduce group."""
        for server, columns, answer in zip(self._servers, self._layout.dense, answers, strict=True):
            match answer.dense:
                case DenseValues(flat, state):
                    server.flat.copy_(flat)
                    for name, values in state.items():
                        server.optimizer_state[name].copy_(values)
                case StepOnSum(group, lr_scale, examples, gradients) if group:
                    assert sum_P is not None, "the shards applied a sum that this worker does not have"
                    variance = None if variance_P is None else variance_P[columns]
                    server.step_beside(sum_P[columns], variance, examples, gradients, lr_scale)


def state_of(server: Server) -> tuple[StatePart, ...]:
    """The state of the dense optimizer that is sent to a dense copy or a replica."""
    return tuple(
        StatePart(name, bool(values.dim()), not values.is_floating_point())
        for name, values in server.optimizer_state.items()
    )


def wants_spread(server: Server) -> bool:
    """Whether an all-reduce group must compute the variance of the gradients besides their sum."""
    return isinstance(server.optimizer, VarianceReduced)


def why_not_copied(server: Server) -> str:
    """The reason why a worker cannot repeat the steps of this server from a sum; empty if it can."""
    known = all(
        values.dtype == (torch.float32 if values.dim() else torch.int64)
        and values.shape in (server.flat.shape, ())
        for values in server.optimizer_state.values()
    )
    return "" if known else "the state of its optimizer is not one number for each weight"
