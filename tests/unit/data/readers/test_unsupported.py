"""Files in unsupported formats are identified by name, with advice."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pytest

from gearshift.data.dataset import read
from gearshift.data.infer.schema import infer
from gearshift.data.schema import Categorical, Label, Schema
from gearshift.errors import UserError

TABLE = pa.table({"click": [1, 0, 1], "user": ["a", "b", "c"]})
SCHEMA = Schema((Categorical("user"),), (Label("click"),))


def _excel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("clicks.csv", "click,user\n1,a\n")


def _sqlite(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("create table clicks (click int, user text)")


def _tar_gz(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("clicks.csv"), io.BytesIO(b""))


def _pickle(protocol: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(pickle.dumps({"click": [1, 0], "user": ["a", "b"]}, protocol))


def _bytes(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("a.xlsx", _excel, "is an Excel workbook; save the sheet as CSV"),
        ("a.csv", _excel, "is an Excel workbook"),
        ("a.xls", _bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100)), "is an Excel workbook"),
        ("a.zip", _zip, "is a zip archive; unpack it first"),
        ("a.avro", _bytes(b"Obj\x01\x04\x14avro.codec" + bytes(9)), "is an Avro file; write Parquet"),
        ("a.orc", lambda path: orc.write_table(TABLE, path), "is an ORC file; write Parquet"),
        ("a.feather", lambda path: feather.write_feather(TABLE, path), "is an Arrow IPC (Feather) file"),
        ("a.arrow", _bytes(b"FEA1" + bytes(99)), "is an Arrow IPC"),
        ("a.pkl", _pickle(4), "is a Python pickle, which is never loaded"),
        ("a.csv", _pickle(2), "is a Python pickle, which is never loaded"),
        ("a.sqlite", _sqlite, "is an SQLite database; write the table as CSV"),
        ("a.npy", lambda path: np.save(path, np.zeros(3)), "is a NumPy array"),
        ("a.npz", lambda path: np.savez(path, x=np.zeros(3)), "is a NumPy array"),
        ("a.h5", _bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), "is an HDF5 file; write Parquet"),
        ("a.tfrecord", _bytes(b"\x10\0\0\0\0\0\0\0abcd"), "is a TFRecord file"),
        ("a.tar.gz", _tar_gz, "is a tar archive; unpack it first"),
        ("a.csv.gz", lambda path: path.write_bytes(gzip.compress(b"PAR1" + bytes(9))), "is a Parquet file"),
        ("a.csv", _bytes(b"\xfd7zXZ\x00abc"), "is xz-compressed"),
        ("a.html", _bytes(b"<!DOCTYPE html><table>"), "is an XML or HTML document"),
        ("a.json", _bytes(json.dumps(TABLE.to_pylist()).encode()), "is one JSON array; write one object per line: jq"),
        ("a.csv", _bytes(b'[\n  {"click": 1}\n]\n'), "is one JSON array"),
        ("a.json", _bytes(json.dumps({"click": 1, "user": {"id": 2}}, indent=1).encode()), "holds JSON over several"),
        ("a.csv", _bytes(b"click,user\r1,a\r0,b\r"), "has lines that end in a carriage return alone; convert it: tr"),
        ("a.csv", _bytes(b"sep=;\r\nclick;user\r\n1;a\r\n"), "begins with a note for Excel (sep=;) instead of"),
        ("a.csv", _bytes(b'\xef\xbb\xbf"sep=\t"\nclick\tuser\n1\ta\n'), 'begins with a note for Excel ("sep=\t")'),
        ("a.bin", _bytes(b"\x7fELF\0\0\0"), "is not a text file (byte 0 at 4); see data.format"),
    ],
)  # fmt: skip
def test_it_is_named(tmp_path: Path, name: str, write: Callable[[Path], object], words: str) -> None:
    path = tmp_path / name
    write(path)
    for work in (lambda: infer(path), lambda: read(path, SCHEMA)):
        with pytest.raises(UserError) as caught:
            work()
        assert str(caught.value).startswith(f"{path} {words}")


def test_a_line_end_alone_is_no_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"click,user\r\n1,a\r\n0,sep=;\r\n")
    assert read(path, SCHEMA).read(0, 9).labels_BT[:, 0].tolist() == [1, 0]
