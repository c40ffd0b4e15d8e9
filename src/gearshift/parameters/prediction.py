"""Predicted pulls: a server's dense parameters as they will probably be some steps later.

The prediction starts from the optimizer's state and the gradients that already wait for a step
(`optim/prediction.py`). It is made on copies: the parameters themselves, snapshots and evaluations never see it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from gearshift.optim.first_order import clip_norm
from gearshift.optim.prediction import Ahead, Extrapolates, State
from gearshift.parameters.push import AnyPush, Push
from gearshift.parameters.server import Server


class PredictedPulls:
    """Predictions of one server's parameters, from any thread; one at a time, so they share their memory."""

    def __init__(self, server: Server) -> None:
        self._server, self._lock = server, threading.Lock()
        self._waiting = WaitingGradients()
        self._flat, self._state = torch.empty(0), State()  # copies

    @torch.no_grad()
    def dense(self, waiting: Mapping[int, AnyPush], steps: int, share: float) -> Tensor:
        """The parameters after `steps` more steps. Those waiting (by lease) are this share of the first step."""
        server, rule = self._server, self._server.rule
        with self._lock:
            rate = self._copy()
            # Before the first step the factor of the learning rate is not known.
            if steps > 0 and rate and isinstance(rule, Extrapolates):
                known = self._waiting.mean(waiting)
                if known is not None and server.dense_policy.clip_norm is not None:
                    clip_norm(known, server.dense_policy.clip_norm)
                rule.extrapolate(self._flat, self._state, Ahead(steps, known, share, rate))
            return self._flat.clone()

    def _copy(self) -> float:
        """Copies parameters and state. Returns the factor of the dense learning rate in the last step."""
        server = self._server
        if not len(self._flat):
            self._flat = torch.empty_like(server.flat)
            self._state = {name: torch.empty_like(v) for name, v in server.optimizer_state.items()}
        with server.dense_lock:
            self._flat.copy_(server.flat)
            for name, values in server.optimizer_state.items():
                self._state[name].copy_(values)
            return server.rate


class WaitingGradients:
    """The mean of the dense gradients that wait for a step. Each is added once, however often the mean is needed."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._counted: set[int] = set()  # leases
        self._sum: Tensor | None = None
        self._examples = 0.0

    def mean(self, waiting: Mapping[int, AnyPush]) -> Tensor | None:
        """None if there are none. The sum is in the order of `waiting`, whatever was asked before."""
        if not self._counted <= waiting.keys():  # a step was made of them
            self._forget()
        for lease, push in waiting.items():
            if lease not in self._counted and isinstance(push, Push):
                self._add(lease, push)
        return None if self._sum is None or self._examples <= 0 else self._sum / self._examples

    def _add(self, lease: int, push: Push) -> None:
        self._counted.add(lease)
        self._examples += push.examples
        self._sum = push.dense.clone() if self._sum is None else self._sum.add_(push.dense)
