"""Whether Ray's token authentication is on, as the run warns if it is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("mode", "on"), [("token", "True"), ("disabled", "False")])
def test_it_is_known_whether_ray_asks_for_its_token(mode: str, on: str) -> None:
    code = "from gearshift.engine.ray.actors.nodes import token_is_on; print(token_is_on())"
    environment = {**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "a" * 64}  # Ray reads them once
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == on
