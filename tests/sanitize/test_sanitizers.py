"""The C++ core under the sanitizers: a stress program without Python, so that every access is seen."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRESS = Path(__file__).with_name("stress_rows.cpp")
CORE = [
    *sorted((ROOT / "csrc").glob("row_*.cpp")),
    *sorted((ROOT / "csrc").glob("cold_*.cpp")),
    *(
        ROOT / "csrc" / f"{name}.cpp"
        for name in (
            "occurrences",
            "parallel",
            "count_sketch",
            "block_reader",
            "disk_probe",
            "disk_schedule",
            "feature_hash",
            "frozen_rows",
            "frozen_writer",
            "heap_trim",
            "io_ring",
            "membership_filter",
        )
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_row_core_is_clean_under(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "stress_rows"
    flags = ["-std=c++20", "-O1", "-g", "-Wno-psabi", "-ffp-contract=off", "-fno-math-errno", "-pthread"]
    guards = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    command = ["g++", *flags, *guards, f"-I{ROOT / 'csrc'}", str(STRESS), *map(str, CORE), "-o", str(program)]
    subprocess.run(command, check=True, timeout=600)
    quiet = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}
    run = subprocess.run(
        [program], capture_output=True, text=True, timeout=900, env={**os.environ, **quiet}, check=False
    )
    assert run.returncode == 0 and run.stdout == "ok\n", run.stderr[-5000:]
