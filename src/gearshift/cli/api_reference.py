"""Generates docs/api.md from the docstrings of all public names.

python -m gearshift.cli.api_reference      writes it; a test fails if it is out of date

The public names are those in `gearshift.__all__`, `gearshift.models.__all__` and `gearshift.models.losses.__all__`.
Each of them must be listed in one of the sections below.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import gearshift
from gearshift import models
from gearshift.embedding import row_optimizers
from gearshift.models import losses
from gearshift.settings.declaration import declarations

DOCS_FILE = Path(__file__).parents[3] / "docs" / "api.md"

_HEAD = """\
# The Python API

<!-- Generated from the docstrings in src/gearshift: python -m gearshift.cli.api_reference -->

    import gearshift as gs

Import it before torch. Start with [tutorial.md](tutorial.md) or the notebook
[quickstart.ipynb](../examples/quickstart.ipynb); [glossary.md](glossary.md) explains the terms. An error in your data,
settings or calls raises `gs.UserError` with a message that says how to fix it.
"""

SECTIONS = {
    "Data": "read infer_schema Dataset Schema Label Numeric Bucketized Categorical Bag Sequence Vector Expire "
    "CsvFormat Batch ClickLog",
    "Training": "Trainer WorkerSettings TrainingSettings EvaluationSettings EarlyStopping Plateau OptimizerSettings "
    "RowSettings BatchScaling ClusterSettings CheckpointPolicy Every Run Callback Result Switch Status attach "
    "RemoteRun sweep_batch",
    "Trained models": "load TrainedModel Evaluation Delta write_delta apply_deltas count_rows RowCounts TableRows "
    "write_rows WrittenRows FrozenRows",
    "Optimizers of dense weights": "SGD Momentum Adagrad Adam AdamW Schedule",
    "Optimizers of embedding rows": " ".join(row_optimizers.__all__),
    "Custom training loops": "Embeddings Inputs",
    "Errors and warnings": "UserError DataWarning",
}
# Called by the engine and the coordinator, not by users.
INTERNAL = {
    "Run": "notify over ending",
    "RemoteRun": "ended",
    "OptimizerSettings": "scaled_to row_settings",
    "BatchScaling": "factors",
    "TrainingSettings": "loss",  # a function by default, which looks like a method
    "Trainer": "prepare in_cluster_process",
    "TrainedModel": "learner facts",
    "Result": "learner facts",
    "Dataset": "blocks",
    "Embeddings": "forward push get_extra_state set_extra_state extra_repr",
    "ClusterSettings": "transport",
    "Every": "due",
    "Schedule": "factor",
    **dict.fromkeys(("SGD", "Momentum", "Adagrad", "Adam", "AdamW"), "init step"),
}


def markdown() -> str:
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(f"gs.{name}", getattr(gearshift, name)) for name in names.split()]
    parts.append(f"## Losses: `gs.losses`\n\n{_text(losses)}\n")
    parts += [_entry(f"gs.losses.{name}", getattr(losses, name)) for name in losses.__all__]
    parts.append(f"## Models: `gs.models`\n\n{_MODELS}\n")
    others = [name for name in models.__all__ if name not in gearshift.__all__ and name != "MODELS"]
    parts += [_entry(f"gs.models.{name}", getattr(models, name)) for name in sorted(others)]
    return "\n".join(parts)


_MODELS = """\
Plain modules that map `gs.Inputs` to logits; [models.md](models.md) explains them. `gs.models.MODELS` has the class of
each name that a config may use."""


def _entry(name: str, thing: Any) -> str:
    lines = [f"### {name}\n", *filter(None, [_signature(name, thing)]), _text(thing), ""]
    if inspect.isclass(thing):
        lines += [*_fields(thing), *_methods(thing)]
    return "\n".join(lines)


def _refuses(parameter: inspect.Parameter) -> bool:
    """Whether it accepts keywords only to report that they were removed."""
    return bool(parameter.annotation == "Never")


def _text(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and (issubclass(thing, Exception) or not _is_made_by_users(thing)):
        return ""
    parameters = list(inspect.signature(thing).parameters.values())
    parameters = [p for p in parameters if p.name != "self" and not _refuses(p)]
    declared = declarations(thing) if inspect.isclass(thing) else {}
    plain = {name: _plain_type(one.annotation) for name, one in declared.items()}
    shown = [_parameter(p.replace(annotation=plain.get(p.name, p.annotation))) for p in parameters]
    if any(p.kind is p.KEYWORD_ONLY for p in parameters) and not any(
        p.kind is p.VAR_POSITIONAL for p in parameters
    ):
        first = next(i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY)
        shown.insert(first, "*")
    returned = "" if inspect.isclass(thing) else _returned(inspect.signature(thing).return_annotation)
    line = f"{name}({', '.join(shown)}){returned}"
    if len(line) > 110:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){returned}"
    return f"```python\n{line}\n```\n"


def _returned(annotation: Any) -> str:
    return "" if annotation in (inspect.Signature.empty, "None") else f" -> {_type(annotation)}"


def _is_made_by_users(kind: type) -> bool:
    """False for runs, results and evaluations, which a trainer or a model returns."""
    return kind.__name__ not in (
        "Run",
        "Result",
        "TrainedModel",
        "Evaluation",
        "RemoteRun",
        "Dataset",
        "Callback",
        "Status",
        "Switch",
    )


def _plain_type(annotation: Any) -> str:
    """The type without units, which only configs need: `int | None` of `Count | None`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain_type(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(_plain_type(part) for part in parts)
    if origin is tuple:
        return f"tuple[{', '.join('...' if part is ... else _plain_type(part) for part in parts)}]"
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    return "None" if annotation is NoneType else _type(annotation)


def _parameter(p: inspect.Parameter) -> str:
    star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
    kind = "" if p.annotation is p.empty else f": {_type(p.annotation)}"
    default = "" if p.default is p.empty else f" = {_default(p.default)}"
    return f"{star}{p.name}{kind}{default}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    if inspect.isfunction(value):
        return "..." if value.__name__ == "<lambda>" else value.__name__
    if "factory" in repr(value):  # a field of a dataclass
        return "..."
    if is_dataclass(value) and not isinstance(value, type):
        given = [f"{f.name}={part!r}" for f in fields(value) if (part := getattr(value, f.name)) != f.default]
        return f"{type(value).__name__}({', '.join(given)})"
    return repr(value)


def _fields(kind: type) -> Iterator[str]:
    """The descriptions of a dataclass's fields: from declared settings, or from the comments next to the fields."""
    if not is_dataclass(kind):
        return
    sentences = dict(re.findall(r"^    (\w+): [^#\n]+#\s*(.+)$", inspect.getsource(kind), re.M))
    sentences |= {name: declared.sentence for name, declared in declarations(kind).items()}
    known = [(field.name, sentences[field.name]) for field in fields(kind) if field.name in sentences]
    if known:
        yield (
            "\n".join(["| field | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in known)])
            + "\n"
        )


def public_members(kind: type) -> dict[str, Callable[..., Any] | property]:
    """Methods and properties of a class, including those of our base classes; base classes first."""
    members: dict[str, Callable[..., Any] | property] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("gearshift"):
            continue
        for name, member in vars(base).items():
            plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
                members[name] = plain
    return members


def _methods(kind: type) -> Iterator[str]:
    hidden = INTERNAL.get(kind.__name__, "").split()
    if kind.__module__.startswith("gearshift.models.") and kind.__name__ not in (
        "Fields",
        "Inputs",
        "SequenceRows",
    ):
        hidden += ["forward", "is_built_in", "made_again"]
    for name, member in public_members(kind).items():
        if name in hidden:
            continue
        if isinstance(member, property):
            yield f"**`.{name}`** {_text(member)}\n"
        else:
            line = _signature(f".{name}", member).removeprefix("```python\n").removesuffix("\n```\n")
            yield f"**`{' '.join(line.split()).replace('( ', '(').replace(', )', ')')}`**\n\n{_text(member)}\n"


def main() -> None:
    DOCS_FILE.write_text(markdown())


if __name__ == "__main__":
    main()
