"""Histograms as a plain SVG file: outlines of several distributions over one logarithmic axis, and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gearshift.experiments.svg_plot import COLOURS, document, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 60, 20, 60, 60
BINS = 40


def histograms(file: Path, title: str, label: str, groups: Mapping[str, Sequence[float]]) -> None:
    """The share of each group's values per bin; all groups have the same bins."""
    values = np.concatenate([np.asarray(group) for group in groups.values()])
    low, high = np.log10(values[values > 0].min()), np.log10(values.max())
    edges = np.linspace(low, high, BINS + 1)
    shares = {name: np.histogram(np.log10(group), edges)[0] / len(group) for name, group in groups.items()}
    most = max(float(share.max()) for share in shares.values())

    def x(exponent: float) -> float:
        return LEFT + (exponent - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - share / most * (HEIGHT - TOP - BOTTOM)

    parts = [text(LEFT, 24, title, size=15, anchor="start")]
    parts += [_tick(x(np.log10(value)), f"{value:g}") for value in _round_values(low, high)]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, label))
    parts.append(f'<path d="M{LEFT},{y(0):.1f} H{WIDTH - RIGHT}" stroke="#333"/>')
    for share in np.linspace(0, most, 5)[1:]:
        parts.append(text(LEFT - 6, y(share) + 4, f"{100 * share:.0f} %", anchor="end"))
        parts.append(f'<path d="M{LEFT},{y(share):.1f} H{WIDTH - RIGHT}" stroke="#ddd"/>')
    for i, (name, share) in enumerate(shares.items()):
        colour = COLOURS[i % len(COLOURS)]
        steps = " ".join(f"L{x(edges[k]):.1f},{y(s):.1f} H{x(edges[k + 1]):.1f}" for k, s in enumerate(share))
        outline = f"M{x(low):.1f},{y(0):.1f} {steps} L{x(high):.1f},{y(0):.1f}"
        parts.append(
            f'<path d="{outline}" fill="{colour}" fill-opacity=".12" stroke="{colour}" stroke-width="1.6"/>'
        )
        parts.append(f'<rect x="{LEFT + 160 * i}" y="36" width="12" height="12" fill="{colour}"/>')
        parts.append(text(LEFT + 160 * i + 18, 46, name, anchor="start"))
    file.write_text(document(WIDTH, HEIGHT, parts))


def _round_values(low: float, high: float) -> list[float]:
    """1, 2, 5 of each power of ten that lies within."""
    values = [m * 10.0**e for e in range(int(np.floor(low)), int(np.ceil(high)) + 1) for m in (1, 2, 5)]
    return [value for value in values if low <= np.log10(value) <= high]


def _tick(x: float, words: str) -> str:
    bottom = HEIGHT - BOTTOM
    return f'<path d="M{x:.1f},{bottom} v5" stroke="#333"/>' + text(x, bottom + 20, words)
