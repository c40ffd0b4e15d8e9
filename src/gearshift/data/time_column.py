"""Checks whether a column named as the time can be one.

Any number is read as seconds since 1970, and this includes logs that count from their own start. Prices and shares are
not times: they have a fraction, are all within hours of 1970, and are not ascending.
"""

from __future__ import annotations

import numpy as np

from gearshift.data.columns import floats, value_text
from gearshift.data.examples import RawSource
from gearshift.data.infer.profile import EARLIEST
from gearshift.data.order import is_ascending
from gearshift.errors import UserError


def refuse_no_times(source: RawSource, column: str) -> None:
    """Checks the start of the first file."""
    block = next(iter(source.starts(column)), None)
    if block is None:
        return
    refused: set[int] = set()  # dates, and unreadable values, which the reader reports
    values = floats(block.columns[column], lambda i, _text: refused.add(i))
    known = [i for i in range(len(values)) if i not in refused and not np.isnan(values[i])]
    numbers = values[known]
    fractions = np.flatnonzero(numbers % 1 != 0)
    if not len(fractions) or numbers.max() >= EARLIEST or is_ascending(numbers.astype(np.int64)):
        return
    at = known[int(fractions[0])]
    raise UserError(
        f"{block.place(at)}: time `{column}` is {value_text(block.columns[column], at)[:40]!r}, which is not a time "
        f"(the sampled numbers lie between {numbers.min():g} and {numbers.max():g}); expected epoch seconds or an "
        "ISO date. Name another column as data.time (init: --time), or none"
    )
