"""Injected disk errors in real runs: one sentence, exit code 2, and the last checkpoint is as good as before."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.storage_kills.run import END_SECONDS, KilledRun, undisturbed, verify

EXAMPLES = 20_000


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("shim") / "faulty_disk.so"
    source = Path(__file__).with_name("faulty_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return undisturbed("inline", tmp_path_factory.mktemp("undisturbed") / "run", EXAMPLES)[0]


class FaultyRun(KilledRun):
    def __init__(self, work: Path, shim: Path) -> None:
        super().__init__("inline", work / "run", EXAMPLES)
        self.trigger = work / "fault"
        self.environment |= {"LD_PRELOAD": str(shim), "FAULTY": str(self.trigger)}

    @property
    def log(self) -> str:
        return "".join(run.joinpath("run.log").read_text() for run in self.runs)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["lookup", "merge"])
def test_a_read_error_ends_the_run_and_it_resumes(
    tmp_path: Path, shim: Path, expected: str, fault: str
) -> None:
    run = FaultyRun(tmp_path, shim)
    try:
        process = run.start("kills.yaml")
        run.wait_for_save(process, None)
        run.trigger.write_text(fault)
        assert process.wait(END_SECONDS) == 2, run.out[-3000:]
        last = run.out.strip().splitlines()[-1]
        assert last.startswith("rows on disk: ") and "Input/output error" in last
        assert "Traceback" not in run.out
        run.trigger.unlink()
        assert run.last is not None and verify(run.last)
        assert run.resume_or_start().wait(END_SECONDS) == 0, run.out[-3000:]
        assert verify(run.last) == expected
        assert not list(run.work.glob("rows/*"))
    finally:
        run.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["link", "copy"])
def test_a_checkpoint_that_cannot_link_a_row_file(
    tmp_path: Path, shim: Path, expected: str, fault: str
) -> None:
    """It copies the file. If that fails too, the run goes on with the checkpoint before it, and tries again."""
    run = FaultyRun(tmp_path, shim)
    try:
        process = run.start("kills.yaml")
        run.wait_for_save(process, None)
        run.trigger.write_text(fault)
        before = run.saved
        if fault == "copy":
            while not run.log.count("was not written, step-") and process.poll() is None:
                time.sleep(0.05)
            assert "Input/output error" in run.log
        else:
            run.wait_for_save(process, before)
        assert run.last is not None and verify(run.last)
        run.trigger.unlink()
        assert process.wait(END_SECONDS) == 0, run.out[-3000:]
        assert verify(run.last) == expected
    finally:
        run.close()
