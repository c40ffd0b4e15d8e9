"""Rows last trained before a horizon are over, if their table has a rule of expiry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Horizons:
    """New horizons, and a new mark: a step that a later horizon may be."""

    mark: int
    steps: tuple[tuple[int, int], ...]  # the number of a period, and its horizon
