"""The data and models: the generated log, five days to train on in order and a sixth to test on, or Frappe by epochs.

Every seed is a log of its own (Frappe: an order) and a model of its own. Rates are chosen by progressive log loss; on
Frappe, whose examples are seen again, by that of its validation part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import nn

import gearshift as gs
from gearshift.data.batch import Batch
from gearshift.data.dataset import Dataset
from gearshift.data.examples import MemoryExamples
from gearshift.data.readers.generated import GeneratedExamples

DAYS = 5
ARRAYS = ("labels_BT", "numeric_BN", "ids_BF", "times_B", "groups_B")  # of a generated log


@dataclass(frozen=True)
class Data:
    train: Dataset
    test: Dataset
    valid: Dataset | None = None  # where rates are not chosen by progressive log loss

    @property
    def newest(self) -> Dataset:
        """The last of the training data, as many as there are to test on."""
        count = min(self.train.counted(), self.test.counted())
        last = self.train.read(self.train.counted() - count, count)
        return Dataset(MemoryExamples(last.moved(0), self.train.schema))


@dataclass(frozen=True)
class Case:
    build: Callable[[gs.Schema], nn.Module]
    epochs: int = 1
    examples: int | None = None  # to train on, over all epochs, where the data decide it


def deepfm(schema: gs.Schema) -> nn.Module:
    return gs.models.DeepFM(schema, dim=8, hidden=[64, 64])


def dlrm(schema: gs.Schema) -> nn.Module:
    return gs.models.DLRM(schema, dim=8, hidden=[64, 32], bottom=[64, 32])


CASES = {"deepfm": Case(deepfm), "dlrm": Case(dlrm), "frappe": Case(deepfm, epochs=3, examples=3 * 202_027)}


def load(case: str, seed: int, share: float, examples: int, frappe: Path, kept: Path) -> Data:
    """`share` is of the training examples, from the first. A generated log is made once, and then is in files."""
    if case == "frappe":
        whole = gs.read(frappe / "train.libfm.zst").fitted().in_memory()
        valid, test = (
            gs.read(frappe / f"{name}.libfm.zst", whole.schema).in_memory() for name in ("valid", "test")
        )
        return Data(whole.head(round(whole.counted() * share)).in_memory(), test, valid)
    log = gs.ClickLog(examples=examples // DAYS * (DAYS + 1), days=DAYS + 1, seed=seed)
    end = log.day_begin(DAYS)
    train = Dataset(GeneratedExamples(log, 0, end)).head(round(end * share)).fitted()
    test = Dataset(GeneratedExamples(log, end)).with_schema(train.schema)
    folder = kept / f"log-{seed}-{examples}-{share:g}"
    return Data(_mapped(train, folder / "train"), _mapped(test, folder / "test"))


def _mapped(data: Dataset, folder: Path) -> Dataset:
    """In memory that all processes share: the arrays as files, mapped."""
    if not folder.exists():
        batch = data.in_memory().read(0, data.counted())
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as making:
            for name in ARRAYS:
                np.save(f"{making}/{name}.npy", getattr(batch, name))
            with suppress(OSError):  # another process was first
                Path(making).rename(folder)
                Path(making).mkdir()
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in ARRAYS}
    return Dataset(MemoryExamples(Batch(0, **arrays), data.schema))
