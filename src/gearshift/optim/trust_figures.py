"""What r did in a step, as figures for the log: by layer, over all dense layers, and on the way between processes.

Layers of one name are one layer: the rows of several shards. `trust_layers` has a line for each, `trust`,
`trust_at_floor` and `noise_scale` are of the dense ones together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gearshift.optim.gsnr import LayerStatistics

ROWS = "rows "  # so begin the names of layers that are embedding rows
PREFIX = "trust/"  # and so the figures of a process that are these: trust/FIELD/LAYER


def trust_figures(lines: Iterable[LayerStatistics]) -> dict[str, Any]:
    by_layer: dict[str, list[LayerStatistics]] = {}
    for line in lines:
        by_layer.setdefault(line.layer, []).append(line)
    layers = [_together(name, parts) for name, parts in by_layer.items()]
    dense = [layer for layer in layers if not layer.layer.startswith(ROWS)]
    if not dense:
        return {}
    whole = _together("", dense)
    return {
        "trust": whole.mean_ratio,
        "trust_at_floor": whole.at_floor,
        "noise_scale": whole.noise_scale,
        "trust_layers": [_told(layer) for layer in layers],
    }


def as_figures(lines: Iterable[LayerStatistics]) -> dict[str, float]:
    """One number each, as processes tell of themselves."""
    return {
        f"{PREFIX}{name}/{line.layer}": value
        for line in lines
        for name, value in asdict(line).items()
        if name != "layer" and not math.isnan(value)
    }


def from_figures(processes: Mapping[str, Mapping[str, float]]) -> list[LayerStatistics]:
    """Of all processes that have some."""
    found: list[LayerStatistics] = []
    for own in processes.values():
        layers: dict[str, dict[str, Any]] = {}
        for key, value in own.items():
            if key.startswith(PREFIX):
                name, layer = key.removeprefix(PREFIX).split("/", 1)
                layers.setdefault(layer, {})[name] = value
        found += [LayerStatistics(layer, **fields) for layer, fields in layers.items()]
    return found


def _together(name: str, parts: Sequence[LayerStatistics]) -> LayerStatistics:
    size = max(1, sum(part.size for part in parts))
    return LayerStatistics(
        name,
        size,
        sum(part.mean_ratio * part.size for part in parts) / size,
        sum(part.at_floor * part.size for part in parts) / size,
        sum(part.noise for part in parts),
        sum(part.signal for part in parts),
    )


def _told(layer: LayerStatistics) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "mean_ratio": layer.mean_ratio,
        "at_floor": layer.at_floor,
        "noise_scale": layer.noise_scale,
    }
