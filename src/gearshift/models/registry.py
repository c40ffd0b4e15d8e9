"""The models by name: the class of each, and `build`, which makes one from a name and settings."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from gearshift.data.schema import Schema
from gearshift.errors import UserError, unknown_name
from gearshift.models.cross import DCN, DCNv2
from gearshift.models.deep import DNN, DeepFM, WideDeep
from gearshift.models.din import DIN
from gearshift.models.dlrm import DLRM
from gearshift.models.model import Model, as_keys
from gearshift.models.settings import MODEL_SETTINGS
from gearshift.models.shallow import FM, LR
from gearshift.settings.declaration import declarations

MODELS: dict[str, type[nn.Module]] = dict(
    zip(MODEL_SETTINGS, (LR, FM, DNN, WideDeep, DeepFM, DCN, DCNv2, DLRM, DIN), strict=True)
)


def build(name: str, schema: Schema, *, seed: int | None = None, **params: Any) -> nn.Module:
    """A model by its name in a config; a seed gives the same weights each time and leaves torch's alone."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    known, given = parameters(name), as_keys(params)
    for param in given:
        if param not in known:
            if not known:
                raise UserError(
                    f"model {name} has no `{param}`: remove it, or write model={name} for its defaults"
                )
            raise unknown_name(f"parameter of model {name}:", param, known)
    arguments = _arguments(name, given)
    if seed is None:
        return MODELS[name](schema, **arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[name](schema, **arguments)
    object.__setattr__(model, "born", None)  # a run keeps these weights, whatever its seed
    return model


def parameters(name: str) -> dict[str, Any]:
    """The arguments of a model besides the schema, with their defaults."""
    return as_keys(_defaults(name))


def _defaults(name: str) -> dict[str, Any]:
    arguments = inspect.signature(MODELS[name]).parameters.values()
    return {a.name: a.default for a in arguments if a.name != "schema"}


def _arguments(name: str, keys: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the model's class: keys that form one argument are combined."""
    arguments = dict(keys)
    for argument, default in _defaults(name).items():
        declared = declarations(type(default)).values()
        if grouped := {one.name: arguments.pop(one.key) for one in declared if one.key in keys}:
            arguments[argument] = type(default)(**grouped)
    return arguments


def recipe(model: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """(name, params) that `build` makes such a model from; None for a user's own module."""
    names_of = {kind: name for name, kind in MODELS.items()}
    return (
        (names_of[type(model)], model.params)
        if isinstance(model, Model) and type(model) in names_of
        else None
    )
