"""The example of docs/large_batches.md runs, and learns."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import torch

DOCUMENT = Path(__file__).parents[3] / "docs" / "large_batches.md"


def test_the_example() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert len(example.splitlines()) <= 16
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no step for want of gradients
        exec(example, names)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(names["model"](names["x"]), names["y"])
    assert loss.item() < 0.45
    assert names["optimizer"].plain_steps == 0 and len(names["optimizer"].statistics()) == 4
