"""The base class of the models here: it records how each was created, so that it can be created again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gearshift.errors import UserError
from gearshift.settings.declaration import declarations


class Model(nn.Module):
    """Records its constructor arguments other than the schema (`params`), and the random state of its weights."""

    moved: ClassVar[Mapping[str, str]] = {}  # keywords of earlier versions, and their replacements
    params: dict[str, Any]  # as a config names them
    born: (
        Tensor | None
    )  # torch's random state before the first weight was drawn; None: the weights have a separate seed
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        for name in kwargs.keys() & cls.moved.keys():
            raise UserError(f"{cls.__name__} has no {name} any more: {cls.moved[name]}")
        model = super().__new__(cls)
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments  # empty when a copy is made
        object.__setattr__(model, "_arguments", dict(given))
        object.__setattr__(model, "params", as_keys({k: v for k, v in given.items() if k != "schema"}))
        object.__setattr__(model, "born", torch.get_rng_state())
        return model

    @property
    def is_built_in(self) -> bool:
        """False for a user's subclass, whose constructor may do anything."""
        return type(self).__module__.startswith("gearshift.models.")

    def made_again(self) -> Model:
        """A new model with the same arguments and with weights from torch's current random state."""
        return type(self)(**self._arguments)


def as_keys(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a model as a config names them: `attention=AttentionSettings(...)` becomes two keys."""
    keys: dict[str, Any] = {}
    for name, value in arguments.items():
        declared = declarations(type(value)).values()
        keys |= {one.key: getattr(value, one.name) for one in declared} if declared else {name: value}
    return keys
