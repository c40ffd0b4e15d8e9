from typing import Final

import numpy as np
from numpy.typing import NDArray

# -- the synthetic click log (bind_click_log.cpp)

CLICK_FIELDS: Final[list[str]]
CLICK_NUMERICS: Final[int]
CLICK_HISTORY: Final[int]

class ClickLog:
    def __init__(
        self, seed: int, examples: int, days: int, sequences: bool, drift: float, click_rate: float
    ) -> None: ...
    def fill(
        self,
        first: int,
        raw: bool,
        labels: NDArray[np.float32],
        truth: NDArray[np.float64],
        numeric: NDArray[np.float32],
        ids: NDArray[np.int64],
        times: NDArray[np.int64],
        offsets: NDArray[np.int64] | None,
        history: NDArray[np.int64] | None,
    ) -> None: ...
