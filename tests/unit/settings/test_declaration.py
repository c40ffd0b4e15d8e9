"""A setting is declared once, and what the config makes of it follows from the declaration."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from gearshift.config.choices import ChoiceSection, rules_of
from gearshift.config.section import Section, is_section, keys_of, section_of
from gearshift.config.tree import Config
from gearshift.settings.declaration import (
    REQUIRED,
    ComparedOnResume,
    Meaning,
    declarations,
    kept_values,
    setting,
    values_of,
)
from gearshift.settings.units import Count, Number, Seconds

RATE = Meaning("Learning rate.", above=0)


@dataclass(frozen=True)
class Slow:
    name: ClassVar[str] = "slow"
    lr: Number = setting(0.1, RATE)
    order: Literal["a", "b"] = setting("a", "Which end is first.")


@dataclass(frozen=True)
class Fast:
    name: ClassVar[str] = "fast"
    lr: Number = setting(0.5, RATE)
    order: Literal["a", "c"] | None = setting(None, "Which end is first.")
    pause: Seconds = setting(2.0, "Between two steps.")


class Choice(ChoiceSection, rules=rules_of({"slow": (Slow,), "fast": (Fast,)})):
    name: str = Field(default="slow", description="Which rule.")


class Root(Section):
    value: Fast = Field(default=Fast(), description="A value.")
    choice: Choice = Field(default=Choice(), description="A choice.")


def test_a_declaration_has_default_sentence_and_bounds() -> None:
    lr = declarations(Slow)["lr"]
    assert (lr.default, lr.sentence, dict(lr.bounds)) == (0.1, "Learning rate.", {"gt": 0})
    assert Slow().lr == 0.1 and Slow(0.2).lr == 0.2


def test_a_dataclass_without_declarations_is_a_plain_value() -> None:
    @dataclass(frozen=True)
    class Plain:
        number: Count = 1

    assert not declarations(Plain) and not is_section(Plain)
    assert is_section(Slow) and section_of(Slow | None) is Slow


def test_a_required_setting_has_no_default() -> None:
    @dataclass(frozen=True)
    class Split:
        by: str = setting(REQUIRED, "By what.")

    assert declarations(Split)["by"].default is REQUIRED
    with pytest.raises(TypeError):
        Split()


def test_a_config_reads_units_and_refuses_what_is_out_of_bounds() -> None:
    assert Root.model_validate({"value": {"pause": "2min"}}).value == Fast(pause=120.0)
    assert TypeAdapter(Fast).dump_python(Fast(pause=120.0), mode="json")["pause"] == "2min"
    for wrong in ({"lr": 0}, {"order": "b"}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            Root.model_validate({"value": wrong})


def test_values_go_from_a_section_to_the_dataclass_by_name() -> None:
    assert Fast(**values_of(Fast(lr=3.0), Fast)) == Fast(lr=3.0)


def test_a_choice_has_the_settings_of_all_its_rules() -> None:
    keys = keys_of(Choice)
    assert [*keys] == ["name", "lr", "order", "pause"]
    assert keys["lr"].sentence == "Learning rate. Not set: 0.1 (slow), 0.5 (fast)."
    assert keys["pause"].sentence == "fast: between two steps. Not set: 2.0."
    assert Root.model_validate({"choice": "fast"}).choice.settings() == {}
    assert Root.model_validate({"choice": {"name": "fast", "order": "b"}}).choice.settings() == {"order": "b"}
    for wrong in ("other", {"order": "d"}, {"lr": 0}):
        with pytest.raises(ValidationError):
            Root.model_validate({"choice": wrong})


def test_every_field_of_a_section_of_the_config_is_declared() -> None:
    """A field without a sentence would be a key that the reference does not show."""
    todo, seen = [Config], set[type]()
    while todo:
        section = todo.pop()
        if section in seen:
            continue
        seen.add(section)
        fields = getattr(section, "model_fields", None) or section.__dataclass_fields__
        assert set(keys_of(section)) == {
            name for name, field in fields.items() if "ClassVar" not in str(getattr(field, "type", ""))
        }
        todo += [inner for key in keys_of(section).values() if (inner := section_of(key.annotation))]
    assert len(seen) > 12


def test_what_a_resumed_run_must_keep_is_declared_with_the_setting() -> None:
    @dataclass(frozen=True)
    class Steps(ComparedOnResume):
        size: Count = setting(4, "Examples of a step.", key="step_size", kept=True)
        pause: Seconds = setting(2.0, "Between two steps.")

    assert kept_values("train", Steps(8)) == {"train.step_size": "8"}


def test_a_kept_setting_that_no_resume_would_compare_is_refused_when_its_class_is_defined() -> None:
    with pytest.raises((TypeError, RuntimeError)) as raised:  # Python 3.11 wraps it

        @dataclass(frozen=True)
        class Elsewhere:
            size: Count = setting(4, "Examples of a step.", kept=True)

    reason = raised.value.__cause__ or raised.value
    assert "Elsewhere.size: kept=True has no effect here" in str(reason)
