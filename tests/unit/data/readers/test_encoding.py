"""Text that is not UTF-8 gives one warning per file, or is converted if its encoding is set."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest

from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer
from gearshift.data.readers.csv_format import CsvFormat
from gearshift.data.readers.files import encoding_name
from gearshift.data.schema import Categorical, Label, Schema
from gearshift.errors import DataWarning, UserError

SCHEMA = Schema((Categorical("city"),), (Label("click"),), keep=("city",))
TEXT = "click,city\n" + "".join(f"{i % 2},{['Rom', 'Köln', 'Málaga €'][i % 3]}\n" for i in range(3000))


def write(folder: Path, encoding: str, name: str = "a.csv") -> Path:
    data = TEXT.encode(encoding)
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("chunk", [500, 8 << 20])
def test_one_warning_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, chunk: int) -> None:
    monkeypatch.setattr("gearshift.data.readers.text.CHUNK_BYTES", chunk)
    path = write(tmp_path, "cp1252", name)
    data = read(path, SCHEMA)
    with pytest.warns(DataWarning) as caught:
        ids = np.unique(data.read(0, 9999).ids_BF)
    assert [str(w.message) for w in caught] == [
        f"{path} line 3: byte 0xF6 is not UTF-8; such values are identified by their bytes and displayed with \ufffd. "
        "If the file is in another encoding, name it: data.csv={encoding: latin-1}"
    ]
    assert len(ids) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        utf8 = read(write(tmp_path, "utf-8", "b.csv"), SCHEMA)
        assert len(utf8.read(0, 9999)) == 3000


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8-sig", "UTF-8"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_named_encoding_gives_the_ids_of_utf8(tmp_path: Path, encoding: str, name: str) -> None:
    named = CsvFormat(encoding=encoding)
    utf8 = read(write(tmp_path, "utf-8", "b.csv"), SCHEMA).read(0, 9999)
    data = read(write(tmp_path, encoding, name), SCHEMA, csv=named)
    for _ in range(2):
        batch = data.read(0, 9999)
        np.testing.assert_array_equal(batch.ids_BF, utf8.ids_BF)
    assert data.read(2000, 2).kept == utf8.slice(2000, 2002).kept
    assert data.counted() == 3000
    found = infer(tmp_path / name, csv=named)
    assert found.csv.encoding == encoding


def test_encodings_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path, "cp1252")
    with pytest.raises(UserError, match="no encoding is called `klingon`; common ones: utf-8, latin-1"):
        read(path, SCHEMA, csv=CsvFormat(encoding="klingon"))
    with pytest.raises(UserError, match="no encoding is called `zlib`"):
        read(path, SCHEMA, csv=CsvFormat(encoding="zlib"))
    with pytest.raises(UserError, match=r"a.csv cannot be read as shift_jis: .*; see data.csv.encoding"):
        read(path, SCHEMA, csv=CsvFormat(encoding="shift_jis")).counted()
    with pytest.raises(UserError, match=r"is UTF-16 text; name its encoding: data.csv=\{encoding: utf-16\}"):
        read(write(tmp_path, "utf-16"), SCHEMA)
    assert [encoding_name(n) for n in ("ascii", "utf8", "latin-1")] == ["utf-8", "utf-8", "iso8859-1"]
