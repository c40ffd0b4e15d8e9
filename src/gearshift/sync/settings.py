"""Whether values fit a strategy's settings, by their declared types: a live run must not meet a wrong one later."""

from __future__ import annotations

from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from gearshift.errors import UserError

FROM_ONE = ("global_batch", "batch", "gradients_per_step")  # all other numbers may be 0


def check_values(kind: type[Any], settings: dict[str, Any]) -> None:
    hints = get_type_hints(kind)
    for key, value in settings.items():
        options = _options(hints[key])
        least = 1 if key in FROM_ONE else 0
        if not any(_fits(option, value, least) for option in options):
            wanted = " or ".join(_words(option, least) for option in options)
            raise UserError(f"strategy {kind.name}: {key}={value!r} must be {wanted}")


def _options(hint: Any) -> tuple[Any, ...]:
    return (hint,) if get_origin(hint) is Literal or not get_args(hint) else get_args(hint)


def _fits(option: Any, value: Any, least: int) -> bool:
    if get_origin(option) is Literal:
        return value in get_args(option)
    if option is NoneType:
        return value is None
    kind = Integral if option is int else Real
    return isinstance(value, kind) and not isinstance(value, bool) and bool(value >= least)  # type: ignore[operator]


def _words(option: Any, least: int) -> str:
    if get_origin(option) is Literal:
        return ", ".join(map(str, get_args(option)))
    if option is NoneType:
        return "none"
    return f"a {'whole ' if option is int else ''}number from {least} on"
