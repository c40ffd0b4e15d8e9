"""Strategies by name, their settings checked, and the sizes that follow from a global batch."""

import re
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearshift.errors import UserError
from gearshift.sync.asynchronous import Async
from gearshift.sync.registry import (
    IN_ROUNDS,
    SCHEDULED_AHEAD,
    STRATEGIES,
    gradients_per_step,
    local_batch,
    make_strategy,
    resolve,
)

SIZES = {"global_batch": 8, "batch": 2}


@dataclass(frozen=True)
class Own(Async):
    name: ClassVar[str] = "own"


@dataclass(frozen=True)
class Choosy(Own):
    seats: int = 2

    def __post_init__(self) -> None:
        if self.seats % 2:
            raise ValueError("seats must be even")


class NotOne:
    name = "not one"


def test_strategies_declare_their_traits_themselves():
    assert set(IN_ROUNDS) == {"sync", "backup_workers"}
    assert set(SCHEDULED_AHEAD) == {"gba", "buffered_async"}


class TestMakeStrategy:
    @pytest.mark.parametrize("name", STRATEGIES)
    def test_by_name(self, name):
        assert make_strategy(name, SIZES).name == name

    def test_by_place(self):
        assert make_strategy(f"{__name__}:Own", SIZES) == Own(8, 2)

    @pytest.mark.parametrize(
        ("name", "settings", "sentence"),
        [
            ("gbaa", {}, "unknown strategy `gbaa`. Did you mean gba? (sync, balanced, "),
            ("zzz", {}, "unknown strategy `zzz`. (sync, "),
            ("gba", {**SIZES, "lag": 1}, "strategy gba has no setting `lag`: it has max_lag, decay, divisor"),
            ("sync", {**SIZES, "lag": 1}, "strategy sync has no setting `lag`: it has none"),
            ("sync", {"batch": 2}, "strategy sync needs the setting `global_batch`"),
            ("sync", {**SIZES, "global_batch": 0}, "global_batch is 0: it must be a whole number, 1 or more"),
            ("async", {**SIZES, "batch": 2.5}, "batch is 2.5: it must be a whole number, 1 or more"),
            ("async", {**SIZES, "batch": True}, "batch is True: it must be"),
            (
                "bounded_staleness",
                {**SIZES, "bound": -1},
                "bound is -1: it must be a whole number, 0 or more",
            ),
            ("ringmaster", {**SIZES, "max_staleness": -1}, "max_staleness is -1: it must be a whole number"),
            ("backup_workers", {**SIZES, "backups": -1}, "backups is -1"),
            ("buffered_async", {**SIZES, "gradients_per_step": 0}, "gradients_per_step is 0"),
            ("gba", {**SIZES, "max_lag": -1}, "max_lag is -1: it must be a number of steps, 0 or more"),
            ("gba", {**SIZES, "max_lag": "4"}, "max_lag is '4'"),
            (
                "gba",
                {**SIZES, "decay": "linear"},
                "decay is 'linear': it must be one of cut, exponential, inverse",
            ),
            ("gba", {**SIZES, "divisor": "some"}, "divisor is 'some': it must be one of all, kept"),
            (
                "nowhere:Own",
                SIZES,
                "strategy `nowhere:Own`: there is no module `nowhere`; is its folder on PYTHONPATH?",
            ),
            ("gearshift.nowhere:Own", SIZES, "there is no module `gearshift.nowhere`"),
            (f"{__name__}:Missing", SIZES, "has no dataclass `Missing` with name, start, form, refuse"),
            (f"{__name__}:NotOne", SIZES, "has no dataclass `NotOne`"),
            (f"{__name__}:pytest", SIZES, "has no dataclass `pytest`"),
        ],
    )
    def test_a_mistake_is_answered_with_what_is_allowed(self, name, settings, sentence):
        with pytest.raises(UserError, match=re.escape(sentence)):
            make_strategy(name, settings)

    def test_a_module_that_itself_lacks_one_says_which(self, tmp_path, monkeypatch):
        (tmp_path / "lacking.py").write_text("import not_installed_anywhere")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        sentence = (
            "strategy `lacking:Own`: importing `lacking` failed: ModuleNotFoundError: No module named 'not_i"
        )
        with pytest.raises(UserError, match=re.escape(sentence)):
            make_strategy("lacking:Own", SIZES)

    def test_a_module_that_fails_is_named_with_the_error(self, tmp_path, monkeypatch):
        (tmp_path / "failing.py").write_text("1 / 0")
        (tmp_path / "wrong.py").write_text("class :")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        for module, error in (("failing", "ZeroDivisionError: division by zero"), ("wrong", "SyntaxError: ")):
            with pytest.raises(UserError, match=f"importing `{module}` failed: {error}"):
                make_strategy(f"{module}:Own", SIZES)

    @pytest.mark.parametrize("name", [":", ":Own", "own:", ".:Own"])
    def test_half_a_place_is_refused(self, name):
        with pytest.raises(UserError, match=re.escape(f"strategy `{name}`: write module:Class")):
            make_strategy(name, SIZES)

    @pytest.mark.parametrize(
        ("given", "wanted"),
        [(Own, f"{__name__}:Own"), (Own(8, 2), f"{__name__}:Own"), ({"name": "gba"}, "module:Class")],
    )
    def test_what_is_no_name_is_answered_with_the_name(self, given, wanted):
        with pytest.raises(UserError, match=re.escape(f'write its name, "gba" or "{wanted}"')):
            make_strategy(given, SIZES)

    def test_what_a_class_of_ones_own_refuses_is_a_sentence(self):
        with pytest.raises(UserError, match=f"^strategy {__name__}:Choosy: seats must be even"):
            make_strategy(f"{__name__}:Choosy", {**SIZES, "seats": 3})
        assert make_strategy(f"{__name__}:Choosy", SIZES).seats == 2


class TestLocalBatch:
    def test_in_rounds_all_have_the_same_share(self):
        assert local_batch("sync", 8192, 8) == 1024
        assert local_batch("backup_workers", 8192, 9, backups=1) == 1024
        assert local_batch("sync", 8192, 4, batch=1024) == 1024  # two leases each

    @pytest.mark.parametrize(
        ("global_batch", "workers", "batch"),
        [(8192, 6, 1024), (8192, 8, 1024), (1000, 6, 125), (8192, 1, 8192)],
    )
    def test_elsewhere_leases_make_up_a_global_batch_exactly(self, global_batch, workers, batch):
        assert local_batch("gba", global_batch, workers) == batch

    def test_micro_batches_cut_a_workers_share(self):
        assert local_batch("sync", 8192, 4, micro_batches=8) == 256
        assert local_batch("backup_workers", 8192, 9, backups=1, micro_batches=2) == 512
        assert local_batch("gba", 1000, 6, micro_batches=2) == 50  # the nearest that divides
        assert resolve("auto", {}, 8192, 2, micro_batches=8).batch == 512
        with pytest.raises(
            UserError, match=r"among 1 worker x micro_batches 8\. Nearest: global_batch=96 or 104"
        ):
            local_batch("sync", 100, 1, micro_batches=8)
        with pytest.raises(UserError, match="among 6 workers x micro_batches 8"):
            local_batch("gba", 40, 6, micro_batches=8)

    def test_a_global_batch_without_a_good_divisor_is_exceeded_by_less_than_one_example_per_worker(self):
        assert local_batch("gba", 997, 6) == 167  # 6 x 167 = 1002
        assert local_batch("gba", 2, 6) == 1

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (
                ("sync", 8192, 6, 0, 1024),
                "global_batch 8192 does not divide among 6 workers x batch 1024. "
                "Nearest: workers=8, or global_batch=6144 or 12288, or strategy=gba (any count)",
            ),
            (
                ("sync", 8192, 6, 0, None),
                "global_batch 8192 does not divide among 6 workers. "
                "Nearest: workers=8, or global_batch=8190 (6 x 1365), or strategy=gba (any count)",
            ),
            (
                ("backup_workers", 8192, 7, 1, None),
                "global_batch 8192 does not divide among 6 workers. "
                "Nearest: workers=9, or global_batch=8190 (6 x 1365), or strategy=gba (any count)",
            ),
            (
                ("sync", 4, 6, 0, None),
                "global_batch 4 does not divide among 6 workers. "
                "Nearest: workers=4, or global_batch=6 (6 x 1), or strategy=gba (any count)",
            ),
            (
                ("sync", 1000, 2, 0, 300),
                "global_batch 1000 does not divide among 2 workers x batch 300. "
                "Nearest: global_batch=600 or 1200, or strategy=gba without batch",
            ),
            (
                ("gba", 1000, 6, 0, 300),
                "global_batch 1000 is not a multiple of batch 300. "
                "Nearest: global_batch=900 or 1200, or remove batch",
            ),
            (
                ("gba", 100, 6, 0, 300),
                "global_batch 100 is not a multiple of batch 300. Nearest: global_batch=300, or",
            ),
            (
                ("backup_workers", 8192, 2, 2, None),
                "backups=2 leaves none of 2 workers to wait for; use fewer backups",
            ),
        ],
    )
    def test_what_does_not_divide_is_answered_with_the_nearest_that_does(self, arguments, sentence):
        name, global_batch, workers, backups, batch = arguments
        with pytest.raises(UserError, match=re.escape(sentence)):
            local_batch(name, global_batch, workers, backups=backups, batch=batch)

    @given(
        st.sampled_from([*IN_ROUNDS, "gba"]),
        st.integers(1, 5000),
        st.integers(2, 40),
        st.none() | st.integers(1, 500),
    )
    def test_every_way_out_that_is_named_is_one(self, name, global_batch, workers, batch):
        backups = 1 if name == "backup_workers" else 0
        try:
            local_batch(name, global_batch, workers, backups=backups, batch=batch)
        except UserError as error:
            ways = str(error).partition("Nearest: ")[2]
            for count in re.findall(r"workers=(\d+)", ways):
                local_batch(name, global_batch, int(count), backups=backups, batch=batch)
            for size in re.findall(r"(\d+)", "".join(re.findall(r"global_batch=(\d+(?: or \d+)?)", ways))):
                local_batch(name, int(size), workers, backups=backups, batch=batch)
            if "strategy=gba" in ways:
                local_batch(
                    "gba", global_batch, workers, batch=None if "gba without batch" in ways else batch
                )
            if "remove batch" in ways:
                local_batch(name, global_batch, workers, backups=backups)


class TestForARun:
    def test_a_batch_among_the_settings_is_taken_as_it_is(self):
        """A switch keeps the leases that workers have, also where a fresh run would have others."""
        assert resolve("sync", {"batch": 20}, 80, 3).batch == 20
        assert resolve("gba", {}, 80, 3).batch == 20
        assert resolve("gba", {}, 80, 3, 10).batch == 10

    def test_a_global_batch_among_the_settings_is_the_strategys_own(self):
        assert resolve("async", {"global_batch": 40}, 80, 2) == Async(global_batch=40, batch=20)

    def test_backup_workers_wait_for_the_others_only(self):
        assert resolve("backup_workers", {"backups": 2}, 60, 5).batch == 20
        assert resolve("backup_workers", {}, 80, 5).batch == 20

    def test_auto_begins_as_sync_and_its_settings_are_checked(self):
        assert resolve("auto", {"margin": 0.1}, 80, 4) == resolve("sync", {}, 80, 4)
        with pytest.raises(UserError, match="strategy auto has no setting `marginn`"):
            resolve("auto", {"marginn": 0.1}, 80, 4)


@pytest.mark.parametrize(
    ("name", "settings", "gradients"),
    [
        ("sync", {}, 4),
        ("balanced", {}, 4),  # with shares of the mean size
        ("gba", {"batch": 3}, 3),
        ("async", {}, 1),
        ("bounded_staleness", {}, 1),
        ("buffered_async", {"gradients_per_step": 7}, 7),
    ],
)
def test_gradients_of_a_step(name, settings, gradients):
    assert gradients_per_step(make_strategy(name, {**SIZES, **settings})) == gradients
