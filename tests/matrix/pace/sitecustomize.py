"""Makes a training step of DeepFM take its time, in every process of a run: a run must last long enough to be harmed.

Python imports this by itself where the folder is on PYTHONPATH. `cluster.inject` would do it too, but forbids `resize`.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

VARIABLE = "OPERATOR_PACE"  # seconds of a step


class _Slowed:
    """A finder that slows the model down as soon as its module is imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "gearshift.models":
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_slowed(module: ModuleType) -> None:
            load(module)
            slow_down(module.DeepFM)

        spec.loader.exec_module = load_slowed  # type: ignore[method-assign]
        return spec


def slow_down(model: type) -> None:
    forward, pause = model.forward, float(os.environ[VARIABLE])  # type: ignore[attr-defined]

    def slowly(self: Any, *arguments: Any) -> Any:
        if self.training:
            time.sleep(pause)
        return forward(self, *arguments)

    model.forward = slowly  # type: ignore[attr-defined]


if VARIABLE in os.environ:
    sys.meta_path.insert(0, _Slowed)  # type: ignore[arg-type]
