"""What the models here share: a record of how each was made, so that a file of numbers can become one again."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


class Model(nn.Module):
    """Remembers its constructor's arguments beside the schema, as `params`."""

    params: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        model = super().__new__(cls)
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments  # none when a copy is made
        object.__setattr__(model, "params", {k: v for k, v in given.items() if k != "schema"})
        return model
