"""The base class of the models here: it records how each was created, so that it can be created again."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Records its constructor arguments other than the schema (`params`), and the random state of its weights."""

    params: dict[str, Any]
    born: (
        Tensor | None
    )  # torch's random state before the first weight was drawn; None: the weights have a separate seed
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        model = super().__new__(cls)
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments  # empty when a copy is made
        object.__setattr__(model, "_arguments", dict(given))
        object.__setattr__(model, "params", {k: v for k, v in given.items() if k != "schema"})
        object.__setattr__(model, "born", torch.get_rng_state())
        return model

    @property
    def is_built_in(self) -> bool:
        """False for a user's subclass, whose constructor may do anything."""
        return type(self).__module__.startswith("gearshift.models.")

    def made_again(self) -> Model:
        """A new model with the same arguments and with weights from torch's current random state."""
        return type(self)(**self._arguments)
