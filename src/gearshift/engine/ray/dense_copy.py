"""The dense part of a model as a worker holds it: brought by the shards, or stepped beside them on a ring's sum.

It has a server for each shard's part, so norms and layers are those of the shards: the same sum, divided and applied by
the same code, gives the same bits. When it steps is for the shards to say: an answer that has no dense values
tells that they have applied the sum, with what rate and over how many examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gearshift.engine.protocol.messages import Rows
from gearshift.engine.wire.limits import StatePart
from gearshift.optim.variance_reduced import VarianceReduced
from gearshift.parameters.push import NO_VALUES
from gearshift.parameters.server import Server
from gearshift.parameters.shard import ShardLayout, shard_server


class DenseCopy:
    def __init__(self, whole: Server, layout: ShardLayout) -> None:
        """`whole` is of this worker alone; its values move."""
        self._layout = layout
        self._servers = [shard_server(whole, layout, shard) for shard in range(layout.shards)]

    @torch.no_grad()
    def take(self, answers: Sequence[Rows], sum_P: Tensor | None, variance_P: Tensor = NO_VALUES) -> None:
        """The dense state that these answers are of; `sum_P` is what the ring has made last, of such gradients."""
        for server, own, answer in zip(self._servers, self._layout.dense, answers, strict=True):
            if answer.made is None:
                server.flat.copy_(answer.dense)
                for name, values in answer.state.items():
                    server.optimizer_state[name].copy_(values)
            elif (made := answer.made).ring:
                assert sum_P is not None, "a step on a sum that nobody made"
                server.step_beside(sum_P[own], variance_P[own], made.examples, made.gradients, made.lr_scale)


def state_of(server: Server) -> tuple[StatePart, ...]:
    """Of the dense optimizer: what travels to a dense copy, or to a replica."""
    return tuple(
        StatePart(name, bool(values.dim()), not values.is_floating_point())
        for name, values in server.optimizer_state.items()
    )


def wants_spread(server: Server) -> bool:
    """Whether a ring must find the variance of the gradients beside their sum."""
    return isinstance(server.optimizer, VarianceReduced)


def why_not_copied(server: Server) -> str:
    """Why a worker cannot make the steps of this server from a sum; empty: it can."""
    known = all(
        values.dtype == (torch.float32 if values.dim() else torch.int64)
        and values.shape in (server.flat.shape, ())
        for values in server.optimizer_state.values()
    )
    return "" if known else "the state of its optimizer is not one number for each weight"
