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
from gearshift.models.model import Model
from gearshift.models.settings import MODEL_SETTINGS
from gearshift.models.shallow import FM, LR

MODELS: dict[str, type[nn.Module]] = dict(
    zip(MODEL_SETTINGS, (LR, FM, DNN, WideDeep, DeepFM, DCN, DCNv2, DLRM, DIN), strict=True)
)


def build(name: str, schema: Schema, *, seed: int | None = None, **params: Any) -> nn.Module:
    """A model by its name in a config; a seed gives the same weights each time and leaves torch's alone."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    known = parameters(name)
    for param in params:
        if param not in known:
            if not known:
                raise UserError(
                    f"model {name} has no `{param}`: remove it, or write model={name} for its defaults"
                )
            raise unknown_name(f"parameter of model {name}:", param, known)
    if seed is None:
        return MODELS[name](schema, **params)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[name](schema, **params)
    object.__setattr__(model, "born", None)  # this seed stays, whatever that of the run is
    return model


def parameters(name: str) -> dict[str, Any]:
    """What a model can be given beside the schema, with the defaults."""
    arguments = inspect.signature(MODELS[name]).parameters.values()
    return {a.name: a.default for a in arguments if a.name != "schema"}


def recipe(model: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """(name, params) that `build` makes such a model from; None for a user's own module."""
    names_of = {kind: name for name, kind in MODELS.items()}
    return (
        (names_of[type(model)], model.params)
        if isinstance(model, Model) and type(model) in names_of
        else None
    )
