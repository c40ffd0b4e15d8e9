"""Test modules import `examples` and `oracle` from this folder."""

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
torch.set_num_threads(1)  # the models here are tiny: a second thread only waits
