"""The fixtures leave nothing behind, and no traceback at the end of the tests."""

import multiprocessing.util
from pathlib import Path

from tests.on_ray.fixtures import ON_RAY

pytestmark = ON_RAY


def test_the_folder_of_multiprocessing_outlives_that_of_the_tests(temporary: Path) -> None:
    assert temporary not in Path(multiprocessing.util.get_temp_dir()).parents
