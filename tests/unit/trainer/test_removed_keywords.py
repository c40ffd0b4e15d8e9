"""The values that a trainer takes, and the sentences about keywords that it had before."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest

import gearshift as gs
from gearshift.embedding.table_store import PARTITIONS
from gearshift.errors import UserError
from gearshift.trainer.removed_keywords import REMOVED
from gearshift.trainer.worker_settings import MOST_SHARDS


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_keyword_names_its_new_place_which_exists(name: str) -> None:
    with pytest.raises(UserError, match=f"^Trainer no longer has {name}: Trainer") as raised:
        gs.Trainer(**{name: 1})
    *_, (owner, keyword) = re.findall(r"([\w.]+)\([^()]*?(\w+)=", str(raised.value))
    if owner == ".fit":
        assert all(
            keyword in inspect.signature(call).parameters for call in (gs.Trainer.fit, gs.Trainer.start)
        )
    else:
        assert keyword in {field.name for field in fields(getattr(gs, owner.removeprefix("gs.")))}


def test_an_unknown_keyword_is_an_error_of_python_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"^Trainer has no epoch; did you mean epochs"):
        gs.Trainer(epoch=3)
    with pytest.raises(TypeError, match=r"^Trainer has no gradient; it has global_batch, epochs"):
        gs.Trainer(gradient=3)


def test_short_forms_are_the_whole_values() -> None:
    rows = gs.RowAdam(lr=0.2)
    short = gs.Trainer(workers=3, optimizer=gs.SGD(lr=0.1))
    assert short.workers == gs.WorkerSettings(3) and short.optimizer == gs.OptimizerSettings(gs.SGD(lr=0.1))
    assert gs.OptimizerSettings(rows=rows).row_settings == gs.RowSettings(rows)


def test_a_trainer_ends_with_the_best_of_several_epochs_unless_nothing_is_chosen() -> None:
    def keeps(epochs: int, **settings: object) -> bool:
        chosen = gs.TrainingSettings(evaluation=gs.EvaluationSettings(**settings))
        return gs.Trainer(epochs=epochs, training=chosen).plan.keep_best

    assert keeps(2) and not keeps(1) and not keeps(2, best=None)
    assert keeps(1, early_stopping=gs.EarlyStopping())


@pytest.mark.parametrize(
    ("keyword", "kind"),
    [("training", "TrainingSettings"), ("cluster", "ClusterSettings"), ("checkpoint", "CheckpointPolicy")],
)
def test_a_value_of_another_type_is_refused_with_the_right_one(keyword: str, kind: str) -> None:
    with pytest.raises(UserError, match=rf"Trainer\({keyword}=\.\.\.\) is .*: write {keyword}=gs\.{kind}"):
        gs.Trainer(**{keyword: {"batch": 3}})


def test_as_many_shards_as_a_store_has_partitions() -> None:
    assert MOST_SHARDS == PARTITIONS
