"""Names that a user chooses from (models, optimizers, parameters): an unknown one is told the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gearshift.errors import UserError


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error to raise: "unknown model `depfm`. Did you mean `deepfm`? (deepfm, dnn, lr)"."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return UserError(f"unknown {kind} `{name}`.{hint} ({', '.join(names) or 'none exist'})")
