"""Test modules import `examples` and `oracle` from here; runs go to a folder of the test's own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
