"""An optimizer and further optimizer settings in one command-line word: NAME[:KEY=VALUE...].

`lamb`, `vr_adam:row_trust=row_wise`, `adam:row_clip=cowclip:batch_rule=cowclip`: NAME is the optimizer of the dense
parameters; keys are those of the config's `optimizer` section.
"""

from __future__ import annotations

from gearshift.errors import UserError, unknown_name
from gearshift.optim.rule_settings import DENSE_RULES


def parse_optimizer(word: str) -> tuple[str, dict[str, str]]:
    """The name, and the settings as they are written."""
    name, *pieces = word.split(":")
    if name not in DENSE_RULES:
        raise unknown_name("optimizer", name, DENSE_RULES)
    written: dict[str, str] = {}
    for piece in pieces:
        key, _, value = piece.partition("=")
        if not (key and value):
            raise UserError(
                f"optimizer `{word}`: `{piece}` is not a setting; write key=value, such as {name}:row_clip=cowclip"
            )
        if key in written:
            raise UserError(f"optimizer `{word}`: `{key}` is set twice; remove one")
        written[key] = value
    return name, written
