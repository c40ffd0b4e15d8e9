"""Advice for a label that cannot be read: the setting that would read it, or a line to correct.

If other labels can be read, an unknown word is an error in that line. If none can, the label needs a rule.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gearshift.data.label_rule import is_negative_word, likely_click, literal
from gearshift.data.readers.bad_lines import ALLOW_SOME
from gearshift.data.readers.sniff import is_number
from gearshift.data.schema import Label

IF_NOT = f"If not: f{ALLOW_SOME[1:]}"
COUNTS = '"> 0"'
SHOWN = 5


def label_advice(label: Label, text: str, values: Sequence[str], some_read: bool) -> str:
    """Advice for the label `text`. `values` is a sample of the column; `some_read`: some of them can be read now."""
    if not text:
        rule = f"data.label={{column: {label.column}{_stated(label)}, missing: no_click}}"
        return f"If an example without a label was not clicked, set {rule}. {IF_NOT}"
    setting = f"data.label={{column: {label.column}, positive: %s}}"
    if label.positive is not None:
        return ALLOW_SOME if some_read else "List the values that mean a click: " + setting % "[...]"
    if is_number(text):
        return f"{_about_number(text, setting)} {IF_NOT}"
    if some_read:
        return ALLOW_SOME
    click = likely_click(values) or (None if is_negative_word(text) else text)
    if click is None:
        return f"Name the value that means a click: {setting % 'VALUE'}"
    if likely_click(values) is None and len(values) > 1:
        shown = ", ".join(repr(value[:40]) for value in values[:SHOWN])
        return f"It holds {shown}: set the value that means a click, such as {setting % _quoted(click)}"
    return "Set the value that means a click: " + setting % _quoted(click)


def _about_number(text: str, setting: str) -> str:
    if float(text.replace(",", ".")) == -1:
        return f"If -1 means no click, set the value that means a click: {setting % _quoted('1')}."
    return f"If these are counts, set which of them mean a click: {setting % COUNTS}."


def _stated(label: Label) -> str:
    """The existing rule of the label, in the syntax of a setting."""
    if label.positive is None:
        return ""
    rules = (label.positive,) if isinstance(label.positive, str) else label.positive
    words = ", ".join(map(_in_yaml, rules))
    return f", positive: {words}" if isinstance(label.positive, str) else f", positive: [{words}]"


def _quoted(value: str) -> str:
    return _in_yaml(value) if isinstance(literal(value), str) else f"[{_in_yaml(value)}]"


def _in_yaml(text: str) -> str:
    """The text in double quotes, with a backslash before quotes inside it."""
    return json.dumps(text, ensure_ascii=False)
