"""What the models here share: a record of how each was made, so that one can be made again."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Remembers its constructor's arguments beside the schema, as `params`, and what it drew its weights from."""

    params: dict[str, Any]
    born: (
        Tensor | None
    )  # torch's random state before the first weight was drawn; None: they have a seed of their own
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        model = super().__new__(cls)
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments  # none when a copy is made
        object.__setattr__(model, "_arguments", dict(given))
        object.__setattr__(model, "params", {k: v for k, v in given.items() if k != "schema"})
        object.__setattr__(model, "born", torch.get_rng_state())
        return model

    @property
    def is_built_in(self) -> bool:
        """Not a subclass of a user's own, whose constructor may do anything."""
        return type(self).__module__.startswith("gearshift.models.")

    def made_again(self) -> Model:
        """Another one with the same arguments, its weights from torch's generator as it is now."""
        return type(self)(**self._arguments)
