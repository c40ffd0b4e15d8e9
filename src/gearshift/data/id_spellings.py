"""Detects ids written as 123 in one file and 123.0 in another. The model would treat them as different values.

A dump that went through floats (pandas with missing values) contains 123.0. The check reads the start of some of the
files. Only text can differ in this way; a number in a table is one value, however it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from gearshift.data import columns as raw
from gearshift.data.examples import RawSource
from gearshift.data.readers.delimited import TextLayout
from gearshift.data.readers.text import TextSource
from gearshift.data.schema import Bag, Categorical, Feature
from gearshift.data.schema import Sequence as SequenceFeature

MOST_FILES = 16  # spread over all files
INTEGER = r"^-?[0-9]+$"
WHOLE = r"^-?[0-9]+\.0+$"


def spelling_remarks(source: RawSource, features: Sequence[Feature]) -> tuple[str, ...]:
    """A warning for each column whose integers are written in two ways."""
    names = tuple(f.name for f in features if isinstance(f, Categorical | Bag | SequenceFeature))
    names = tuple(name for name in names if isinstance(source, TextSource) and name in source.layout.columns)
    if not names or not isinstance(source, TextSource) or _is_libfm(source):
        return ()
    integers: dict[str, tuple[str, str]] = {}  # column: (file, value)
    wholes: dict[str, tuple[str, str]] = {}
    step = -(-len(source.files) // MOST_FILES)
    for number in range(0, len(source.files), step):
        block = source.start(names, number)
        for name in names:
            texts = raw.as_arrow(block.columns[name])
            for first_seen, pattern in ((integers, INTEGER), (wholes, WHOLE)):
                at = pc.index(pc.match_substring_regex(texts, pattern), True).as_py()
                if at >= 0 and name not in first_seen:
                    first_seen[name] = (source.files[number].path, texts[at].as_py())
    return tuple(
        _sentence(name, integers[name], wholes[name]) for name in names if name in integers and name in wholes
    )


def _is_libfm(source: TextSource) -> bool:
    return isinstance(source.layout, TextLayout) and source.layout.libfm


def _sentence(name: str, integer: tuple[str, str], whole: tuple[str, str]) -> str:
    return (
        f"column `{name}` is written as {integer[1]} in {integer[0]} and as {whole[1]} in {whole[0]}: to the model "
        f'these are different values. Write it in one way, in pandas with df[{name!r}].astype("Int64")'
    )
