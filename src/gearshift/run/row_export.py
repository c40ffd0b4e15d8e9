"""The rows of a trained model as a file for serving. This module finds them; `embedding/frozen_rows.py` writes them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gearshift.embedding.frozen_rows import RowPrecision, WrittenRows, write_blocks
from gearshift.embedding.module import Embeddings
from gearshift.embedding.store import RowStore
from gearshift.errors import UserError
from gearshift.parameters import checkpoint
from gearshift.parameters.checkpoint import Checkpoint
from gearshift.run import catalog
from gearshift.run.trained_model import TrainedModel
from gearshift.training.learner import is_of_rows


def write_rows(
    source: str | Path | TrainedModel | Embeddings,
    path: str | Path,
    precision: RowPrecision = "float32",
    *,
    store: int | None = None,
) -> WrittenRows:
    """Writes the weights of embedding rows to a file that `gs.FrozenRows` looks up, without optimizer state.

    `source` is a run (its best checkpoint, else its last), a checkpoint, a saved model, a `TrainedModel` or
    `Embeddings`. A model whose features have embeddings of several widths has a store of rows for each: `store` says
    which. `int8` has a scale per row and part; `bfloat16` and `int8` round to nearest even. A file that exists is
    replaced at once.
    """
    path = Path(path)
    if isinstance(source, str | Path):
        saved = Checkpoint.open(checkpoint.resolve(_find(source)), is_of_rows)
        parts = [[width for _, width in of_store] for of_store in saved.facts["parts"]]
        chosen = _chosen(parts, store)
        return write_blocks(path, saved.rows(f"rows{chosen}"), parts[chosen], precision)
    stores = source.stores if isinstance(source, Embeddings) else source.learner.server.stores
    chosen = _chosen([[part.width for part in each.parts] for each in stores], store)
    return _write_store(stores[chosen], path, precision)


def _write_store(store: RowStore, path: Path, precision: RowPrecision) -> WrittenRows:
    with closing(store.cut()) as cut:
        return write_blocks(path, cut, [part.width for part in store.parts], precision)


def _find(source: str | Path) -> Path:
    path = Path(source)
    return path if (path / checkpoint.MANIFEST).is_file() else catalog.find_model(source)


def _chosen(parts: list[list[int]], store: int | None) -> int:
    if not parts:
        raise UserError("the model has no embedding rows")
    if store is None and len(parts) > 1:
        known = ", ".join(f"{i} (width {of_store[0]})" for i, of_store in enumerate(parts))
        raise UserError(
            f"the model has several stores of rows: choose one with store=N (--store N) of {known}"
        )
    chosen = store or 0
    if not 0 <= chosen < len(parts):
        raise UserError(f"the model has no store {chosen} of rows: it has {len(parts)}, from 0 on")
    return chosen
