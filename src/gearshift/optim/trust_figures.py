"""Metrics about the ratios r of a step, for the log: by layer, for all dense layers, and for transport.

Layers with the same name are one layer: the rows of several shards. `trust_layers` has an entry for each layer;
`trust`, `trust_at_floor` and `noise_scale` are for all dense layers together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gearshift.optim.gsnr import LayerStatistics

ROWS = "rows "  # prefix of the names of layers that are embedding rows
PREFIX = "trust/"  # prefix of these metrics among those of a process: trust/FIELD/LAYER


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
        "trust_layers": [_layer_figures(layer) for layer in layers],
    }


def as_figures(lines: Iterable[LayerStatistics]) -> dict[str, float]:
    """Flat numbers, as processes report them."""
    return {
        f"{PREFIX}{name}/{line.layer}": value
        for line in lines
        for name, value in asdict(line).items()
        if name != "layer" and not math.isnan(value)
    }


def from_figures(processes: Mapping[str, Mapping[str, float]]) -> list[LayerStatistics]:
    """The statistics in the metrics of all processes."""
    statistics: list[LayerStatistics] = []
    for figures in processes.values():
        layers: dict[str, dict[str, Any]] = {}
        for key, value in figures.items():
            if key.startswith(PREFIX):
                name, layer = key.removeprefix(PREFIX).split("/", 1)
                layers.setdefault(layer, {})[name] = value
        statistics += [LayerStatistics(layer, **fields) for layer, fields in layers.items()]
    return statistics


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


def _layer_figures(layer: LayerStatistics) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "mean_ratio": layer.mean_ratio,
        "at_floor": layer.at_floor,
        "noise_scale": layer.noise_scale,
    }
