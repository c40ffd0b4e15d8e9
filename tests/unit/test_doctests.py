"""The examples in docstrings are true: every module that has some is run here."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import gearshift

ROOT = Path(gearshift.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(("gearshift", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


def test_the_measures_have_examples() -> None:
    assert "gearshift.metrics.exact" in WITH_EXAMPLES


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module(name: str) -> None:
    failed, attempted = doctest.testmod(import_module(name))
    assert attempted > 0 and failed == 0
