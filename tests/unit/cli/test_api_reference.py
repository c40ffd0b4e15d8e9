"""docs/api.md is up to date, and everything public has a docstring in plain English."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gearshift as gs
from gearshift import models
from gearshift.cli import api_reference as reference
from gearshift.models import losses
from gearshift.sync.registry import STRATEGIES

ROOT = Path(__file__).parents[3]
DIALECT = re.compile(r"\b(anew|heed|heeds|seat|seats|behoves|whither)\b")


def public() -> Iterator[tuple[str, Any]]:
    """Every public name, and every public method and property of the classes among them."""
    for module, prefix in ((gs, "gs"), (models, "gs.models"), (losses, "gs.losses")):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.ismodule(thing) or isinstance(thing, dict):
                continue
            yield f"{prefix}.{name}", thing
            members = reference.public_members(thing) if inspect.isclass(thing) else {}
            yield from (
                (f"{prefix}.{name}.{member}", m) for member, m in members.items() if member != "forward"
            )


def test_it_is_up_to_date() -> None:
    made = reference.markdown()
    assert reference.DOCS_FILE.read_text() == made, "run: python -m gearshift.cli.api_reference"
    assert made.count("```") % 2 == 0


def test_every_public_name_stands_there_once() -> None:
    listed = " ".join(reference.SECTIONS.values()).split()
    assert sorted(listed) == sorted(name for name in gs.__all__ if name not in ("models", "losses"))
    text = reference.DOCS_FILE.read_text()
    for name, thing in public():
        if name.count(".") == 1 or inspect.isclass(thing):
            assert f"### {name}\n" in text or f"### gs.{name.split('.')[-1]}\n" in text, name


@pytest.mark.parametrize(
    ("name", "thing"), list(public()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_it_has_a_docstring(name: str, thing: Any) -> None:
    text = inspect.cleandoc(thing.__doc__ or "")
    assert text and not text.startswith(f"{name.split('.')[-1]}("), "a docstring of its own"
    assert len(text.split()) >= 2 and text.split("\n\n")[0].rstrip().endswith((".", ":", "`", ")")), text
    assert not DIALECT.search(text), text


def test_every_setting_of_a_trainer_is_explained() -> None:
    explained = set(re.findall(r"^ {4}(\w+)(?:, (\w+))?  ", inspect.cleandoc(gs.Trainer.__doc__ or ""), re.M))
    names = {name for pair in explained for name in pair if name}
    assert names == set(inspect.signature(gs.Trainer).parameters) - {"removed"}


def test_the_glossary_has_every_strategy_and_is_linked() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    for name in (*STRATEGIES, "auto"):
        assert f"| `{name}` |" in glossary
    for word in (
        "lag",
        "staleness",
        "possible",
        "lease",
        "shard",
        "token",
        "global batch",
        "progressive AUC",
    ):
        assert re.search(rf"^\| {word}", glossary, re.M), word
    readme = (ROOT / "README.md").read_text()
    for link in ("docs/api.md", "docs/glossary.md", "examples/quickstart.ipynb"):
        assert f"]({link})" in readme, link
