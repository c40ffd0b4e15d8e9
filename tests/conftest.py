"""Test modules import `examples` and `oracle` from this folder."""

import os
import secrets
import signal
import sys
from pathlib import Path

import torch
from hypothesis import settings

from tests.on_ray.fixtures import cluster, ray_here, temporary  # noqa: F401 (fixtures)

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads both when it is first imported
os.environ["RAY_AUTH_MODE"] = "token"
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores Ctrl-C
torch.set_num_threads(1)  # the models here are tiny: a second thread only waits
