"""The text reader under AddressSanitizer and UndefinedBehaviorSanitizer, with random input."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("text_lines", "json_lines", "text_columns", "text_times", "feature_hash", "utf8")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_random_text_under_the_sanitizers(tmp_path: Path) -> None:
    program = tmp_path / "fuzz_text"
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [ROOT / "tests/sanitize/fuzz_text.cpp", *(ROOT / f"csrc/{name}.cpp" for name in SOURCES)]
    subprocess.run(["g++", *flags, f"-I{ROOT / 'csrc'}", *sources, "-o", program], check=True)
    finished = subprocess.run([program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout == "ok\n"
