"""A strategy and its settings in one command-line word: NAME[:KEY=VALUE[:KEY=VALUE...]].

`gba`, `gba:max_lag=2`, `mine:LateBus`, `mine:LateBus:seats=2`: a part with `=` is a setting, a part without it belongs
to the name. The strategy interprets the values.
"""

from __future__ import annotations

from itertools import takewhile

from gearshift.errors import UserError
from gearshift.sync.registry import STRATEGIES


def parse_strategy(word: str) -> tuple[str, dict[str, str]]:
    """The name, and the settings as they are written."""
    pieces = word.split(":")
    name = list(takewhile(lambda piece: "=" not in piece, pieces))
    if not name or (len(name) > 1 and name[0] in (*STRATEGIES, "auto")):
        raise UserError(f"strategy `{word}`: settings are written {name[0] if name else 'gba'}:key=value")
    written: dict[str, str] = {}
    for piece in pieces[len(name) :]:
        key, equals, value = piece.partition("=")
        if not (key and equals and value):
            raise UserError(f"strategy `{word}`: `{piece}` is not a setting; write key=value, after the name")
        if key in written:
            raise UserError(f"strategy `{word}`: `{key}` is set twice; remove one")
        written[key] = value
    return ":".join(name), written
