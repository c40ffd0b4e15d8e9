"""A file becomes a Config; what is wrong with it is said in one sentence with file, line and nearest name."""

# ruff: noqa: E501 (tables of whole sentences)
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from gearshift.config import config_from, load_config, load_schema
from gearshift.config.tree import ModelSection
from gearshift.data.schema import Bag, Bucketized, Categorical, Label, Numeric, Sequence, Vector
from gearshift.errors import UserError
from gearshift.parameters.average_rule import AverageRule
from gearshift.training.timing import Every

from .conftest import SHOP, Complain, Load

SMALL = """\
data: {train: clicks.csv, label: click}
features:
  - {name: price, type: numeric}
  - {name: user, type: categorical}
"""


def changed(old: str, new: str) -> str:
    assert old in SHOP, old
    return SHOP.replace(old, new)


def test_a_small_file_has_defaults_and_is_named_after_its_file(load: Load) -> None:
    config = load(SMALL)
    assert (config.name, config.train.epochs, config.model.name) == ("clicks", 1, "deepfm")
    assert config.train.eval_every == Every(share=0.1)
    assert config.checkpoint.every == Every(seconds=600)


def test_the_whole_example_becomes_a_schema(load: Load) -> None:
    schema = load(SHOP).schema()
    assert schema is not None
    assert schema.features == (
        Numeric("price", "log1p", "mean"),
        Bucketized("age", (18, 25, 35, 50)),
        Categorical("user_id"),
        Categorical("item_id"),
        Categorical("country", dim=4),
        Bag("tags", max_len=10),
        Sequence("recent_items", share_embedding="item_id"),
    )
    assert schema.labels == (Label("click"),)
    assert (schema.time, schema.group, schema.weight, schema.keep) == (
        "ts",
        "user_id",
        "weight",
        ("item_id", "ts"),
    )


def test_the_resolved_config_reads_back_as_an_equal_one(load: Load) -> None:
    config = load(
        SHOP, "checkpoint.best=null", "memory=16GiB", "eval_every=none", "early_stopping={patience: 3}"
    )
    again = load(config.to_yaml())
    assert again == config
    assert again.checkpoint.best is None
    assert again.memory == 16 * 2**30


def test_a_config_is_frozen(load: Load) -> None:
    with pytest.raises(FrozenInstanceError):
        load(SMALL).train.epochs = 2


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("click", (Label("click"),)),
        ("{column: click, positive: yes}", (Label("click", "yes"),)),
        ("{column: click, positive: 1}", (Label("click", "1"),)),
        (
            "{click: clicked, buy: {column: bought, positive: Y}}",
            (Label("clicked", None, "click"), Label("bought", "Y", "buy")),
        ),
        ("[{column: a, task: x}, {column: b, task: y}]", (Label("a", None, "x"), Label("b", None, "y"))),
    ],
)
def test_labels_can_be_written_in_four_ways(load: Load, label: str, expected: tuple[Label, ...]) -> None:
    schema = load(SMALL.replace("label: click", f"label: {label}")).schema()
    assert schema is not None and schema.labels == expected


def test_criteo_and_avazu_have_built_in_features(load: Load) -> None:
    criteo = load("data: {train: day_0.gz, format: criteo}").schema()
    avazu = load("data: {train: train.gz, format: avazu, split: {by: time, valid: 1d}}").schema()
    assert criteo is not None and avazu is not None
    assert [f.name for f in criteo.features][:14] == [*(f"I{i}" for i in range(1, 14)), "C1"]
    assert len(criteo.features) == 39 and criteo.labels == (Label("label"),)
    assert len(avazu.features) == 21 and avazu.time == "hour" and avazu.labels == (Label("click"),)


def test_own_features_come_before_the_built_in_ones(load: Load) -> None:
    schema = load("data: {train: a.gz, format: criteo}\nfeatures: [{name: C1, type: categorical}]").schema()
    assert schema is not None and schema.features == (Categorical("C1"),)


@pytest.mark.parametrize(
    ("written", "decay"), [("auto", AverageRule().decay), ("off", None), ("0.99", 0.99), ("false", None)]
)
def test_the_average_of_the_weights_reaches_the_trainer(
    load: Load, written: str, decay: float | None
) -> None:
    train = load(SMALL, f"train.average={written}").train
    rule = train.training("auc").average_rule
    assert (rule and rule.decay) == decay and train.average_rule == rule


def test_an_accumulator_is_a_number_or_auto(load: Load, complaint: Complain) -> None:
    rows = "optimizer.embeddings={name: adagrad, initial: %s}"
    assert load(SMALL, rows % "auto").optimizer.embeddings.settings()["initial"] == "auto"
    assert load(SMALL, rows % "1e-3").optimizer.embeddings.settings()["initial"] == 1e-3
    for wrong in ("-1", "small"):
        assert "optimizer.embeddings.initial" in complaint(SMALL, rows % wrong)


@pytest.mark.parametrize("written", ["on", "1", "0", "-0.5", "10%", "nan"])
def test_another_average_is_refused(complaint: Complain, written: str) -> None:
    said = complaint(SMALL, f"train.average={written}")
    assert "train.average" in said and "expected auto, off or a decay between 0 and 1, such as 0.999" in said


@pytest.mark.parametrize(
    "data", ["synthetic: {examples: 5k}", "train: p, format: prepared", "train: f, format: libfm"]
)
def test_data_that_bring_their_own_schema_need_no_features(load: Load, data: str) -> None:
    assert load(f"data: {{{data}}}").schema() is None


def test_a_vector_feature(load: Load) -> None:
    schema = load("data: {train: a.parquet}\nfeatures: [{name: v, type: vector, size: 128}]").schema()
    assert schema is not None and schema.features == (Vector("v", 128),)


def test_a_schema_can_be_loaded_alone(load: Load) -> None:
    load(SHOP)
    schema = load_config("clicks.yaml").schema()
    assert load_schema("clicks.yaml") == schema
    assert dataclasses.is_dataclass(schema)


def test_plain_values_from_python_are_checked_too() -> None:
    assert config_from({"train": {"epochs": 3}}, ["seed=7"]).train.seed == 7
    with pytest.raises(UserError, match=r"^unknown key `epoch` in train\. Did you mean `epochs`\?"):
        config_from({"train": {"epoch": 3}})


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("train.max_lag=4", "strategy.max_lag"),
        ("cluster.batch=512", "train.batch"),
        ("train.address=auto", "cluster.address"),
        ("train.embedding_reduce=sum", "optimizer.embedding_reduce"),
        ("train.switch=[]", "strategy.switch"),
        ("train.lr=0.1", "optimizer.dense.lr or optimizer.embeddings.lr or optimizer.linear.lr"),
    ],
)
def test_a_key_of_another_section_is_refused_with_the_right_place(
    complaint: Complain, setting: str, right: str
) -> None:
    section, key = setting.partition("=")[0].split(".")
    assert complaint(SHOP, setting) == (
        f"{setting}: unknown key `{key}` in {section}. It belongs in another section: {right}"
    )


def test_entries_of_lists_have_keys_of_their_own(complaint: Complain) -> None:
    assert "another section" not in complaint(SHOP, "features[price].epochs=3")


def test_a_model_is_refused_a_setting_that_it_does_not_have(complaint: Complain) -> None:
    assert complaint(SHOP, "model={name: lr, cross_layers: 3}") == (
        "model={name: lr, cross_layers: 3}: model lr has no setting `cross_layers` (it has none); remove it, or write "
        "model=lr for its defaults"
    )
    assert "model fm has no setting `hidden` (dim); remove it" in complaint(
        SHOP, "model={name: fm, hidden: 3}"
    )


def test_the_table_of_model_settings_is_that_of_the_models() -> None:
    from gearshift import models

    assert [*models.MODELS] == [*ModelSection.rules]
    for name, known in ModelSection.rules.items():
        assert models.parameters(name) == {key: declared.default for key, declared in known.items()}


# What is wrong, where, and what to do.


def test_an_unknown_type_as_in_the_guide(complaint: Complain) -> None:
    text = changed(
        "- {name: user_id,      type: categorical}",
        "- {name: user_id, type: catagorical}",  # codespell:ignore
    )
    assert (
        complaint(text)
        == (
            "clicks.yaml:17: unknown value `catagorical` for features[2].type. Did you mean `categorical`? "  # codespell:ignore
            "(numeric, categorical, bag, sequence, vector)"
        )
    )


WRONG = [
    # unknown names
    ("bad_lines: fail", "bad_line: fail", 7, "unknown key `bad_line` in data. Did you mean `bad_lines`? (train, "),
    ("name: shop-clicks", "namee: shop", 2, "unknown key `namee`. Did you mean `name`? (name, data, features, "),
    ("transform: log1p", "transfrm: log1p", 15, "unknown key `transfrm` in features[0]. Did you mean `transform`?"),
    ("label: click", "label: {column: a, positivee: b}", 8, "unknown key `positivee` in data.label. Did you mean `pos"),
    ("name: din", "name: dcnv3", 22, "unknown value `dcnv3` for model.name. Did you mean `dcnv2`? (lr, fm, dnn, wide_deep"),
    ("pool: mean", "pool: max", 20, "unknown value `max` for features[5].pool. (mean, sum)"),
    ("name: adagrad", "name: adagard", 25, "unknown value `adagard` for optimizer.embeddings.name. Did you mean `adagrad`"),
    # missing and of another type
    ("- {name: item_id,      type: categorical}", "- {type: categorical}", 18, "features[3].name is missing: The column."),
    ("- {name: item_id,      type: categorical}", "- {name: item_id}", 18, "features[3].type is missing (numeric, cat"),
    ("- {name: item_id,      type: categorical}", "- item_id", 18, "features[3] is `item_id`; expected settings below"),
    ("epochs: 1", "epochs: two", 26, "train.epochs is `two`; expected a whole number"),
    ("epochs: 1", "epochs: 1.5", 26, "train.epochs is `1.5`; expected a whole number"),
    ("epochs: 1", "epochs: 0", 26, "train.epochs is `0`; it must be at least 1"),
    ("lr: 1e-3", "lr: -1", 24, "optimizer.dense.lr is `-1`; it must be more than 0"),
    ("lr: 1e-3", "lr: fast", 24, "optimizer.dense.lr is `fast`; expected a number, such as 0.05 or 1e-3"),
    ("lr: 1e-3", "lr: .inf", 24, "optimizer.dense.lr is `.inf`; expected a number"),
    ("eval_every: 10%", "eval_every: 110%", 26, "train.eval_every is `110%`; a share lies between 0 and 1"),
    ("eval_every: 10%", "eval_every: often", 26, "train.eval_every is `often`; expected a number of steps (500), "),
    ("every: 10min", "every: 10 parsecs", 29, "checkpoint.every is `10 parsecs`; expected a number of steps"),
    ("bad_lines: fail", "bad_lines: skip", 7, "data.bad_lines is `skip`; expected fail or {skip: 1000}"),
    ("header: true", "header: maybe", 6, "data.csv.header is `maybe`; expected true or false"),
    ("header: true", "encoding: klingon", 6, "data.csv.encoding is `klingon`; expected an encoding of text, such as"),
    ("header: true", "quoted_lines: 0", 6, "data.csv.quoted_lines is `0`"),
    ('delimiter: ","', 'delimiter: ",,"', 6, "data.csv.delimiter is `,,`; expected one character"),
    ("train: {global_batch: 8192, epochs: 1, seed: 1, eval_every: 10%}", "train: 5", 26, "train is `5`; expected settings"),
    ("missing: mean", "missing: median", 15, "features[0].missing is `median`; expected mean, zero or a number"),
    ("transform: log1p", "transform: sqrt", 15, "features[0].transform is `sqrt`; expected none, log1p, standardize"),
    ("[18, 25, 35, 50]", "[18, 12]", 16, "bounds must be ascending, such as [18, 25, 35]"),
    # between fields
    ("share_embedding: item_id", "share_embedding: itemid", 21, "which is not another feature with an embedding. Did you "),
    ("share_embedding: item_id", "share_embedding: price", 21, "share_embedding names `price`, which is not another"),
    ("history: recent_items", "history: recent_item", 22, "model.history names `recent_item`, which is not a sequence "),
    ("target: item_id", "target: tags", 22, "model.target names `tags`, which is not a categorical feature. (user_id, "),
    ("strategy: {name: sync}", "strategy: gbaa", 27, "unknown strategy `gbaa`. Did you mean gba?"),
    ("strategy: {name: sync}", "strategy: {name: sync, max_lag: 2}", 27, "strategy sync has no setting `max_lag`"),
    ("workers: 1", "workers: 7", 27, "does not divide among 7 workers"),
    ("workers: 1", "workers: 1, patience: 5s", 28, "cluster.patience is for engine: ray; engine is threads"),
    ("engine: threads", "engine: spark", 28, "engine `spark` is not in this version; it has threads and ray"),
    ("epochs: 1,", "micro_batches: 3,", 27, "does not divide among 1 worker x micro_batches 3. Nearest: global_batch=8190"),
    ("epochs: 1,", "batch: 64, micro_batches: 2,", 26, "both set the size of a worker's batches; remove one of them"),
    ("optimizer:\n", "optimizer:\n  batch_rule: linear\n", 24, "tuned for: name it, such as optimizer.base_batch=1024"),
    ("optimizer:\n", "optimizer:\n  base_batch: 512\n", 24, "base_batch has no effect without a rule: choose"),
    ("optimizer:\n", "optimizer:\n  row_trust: touched\n", 24, "row_trust `touched` applies the trust of a vr_* rule to rows"),
    ("optimizer:\n", "optimizer:\n  embedding_reduce: sum\n  row_clip: cowclip\n", 25, "but embedding_reduce is sum"),
    ("dim: 4", "min_count: 300", 19, "features[4].min_count"),
    ("dim: 4", "min_count: 2, admit: 10%", 19, "min_count and admit both say which ids get an embedding; remove one"),
    ("dim: 4", "expire: {after: soon}", 19, "expected a number of steps, such as 100000, or a duration, such as 30d"),
    ("- {name: country, ", "- {name: click, ", 19, "`click` is the label, and the model would see the answer"),
    ("- {name: country, ", "- {name: user_id, ", 19, "feature `user_id` is named twice; remove one"),
    ("name: adagrad, lr", "name: adagrad, beta1: 0.9, lr", 25, "adagrad has no setting `beta1` (eps, initial, l2, lr)"),
    ("missing: mean}", "dim: 4}", 15, "features[0].dim: a plain number has no embedding"),
    ("35, 50]}}", "35, 50]}, missing: mean}", 16, "features[1].missing: bucketize gives missing values a bucket"),
    ("group: user_id", "split: {by: time, valid: 1d}", 5, "data.valid and data.split.valid are both given; keep one"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "sentence"), WRONG, ids=[new for _, new, _, _ in WRONG])
def test_a_mistake_is_named_with_its_line(
    complaint: Complain, old: str, new: str, line: int, sentence: str
) -> None:
    said = complaint(changed(old, new))
    assert said.startswith(f"clicks.yaml:{line}: ")
    assert sentence in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("label: click", "data.train is missing: name the files to train on"),
        ("train: a.csv, synthetic: {days: 2}", "data.train and data.synthetic are both given"),
        (
            "train: a.csv, split: {by: time, valid: 1d}",
            "a split by time needs the time column: set data.time",
        ),
        ("train: a.csv, split: {by: user, valid: 10%}", "expected time, end, hash or hash(column)"),
        (
            "train: a.csv, split: {by: hash(user), valid: 1d}",
            "a split by hash(user) holds out a share, such as 10%",
        ),
        ("train: a.csv, split: {by: end, valid: 0}", "a share to hold out lies between 0% and 100%"),
        ("train: a.csv, split: {by: end, valid: soon}", "expected a share (10%), a duration (1d) or a date"),
        ("train: a.csv, label: {x: a, y: 1, z: {positive: 1}}", "data.label.column is missing"),
        ("train: a.csv, label: []", "data.label needs one column per task"),
        ("train: a.csv, csv: {header: true, columns: [a]}", "data.csv.columns is given; remove one"),
        ("train: a.csv, negatives_kept: 0", "data.negatives_kept is `0`; it must be more than 0"),
    ],
)
def test_mistakes_of_the_data_section(complaint: Complain, data: str, sentence: str) -> None:
    said = complaint(f"data: {{{data}}}\nfeatures: [{{name: a, type: numeric}}]\n")
    assert said.startswith("clicks.yaml:1: ")
    assert sentence in said


def test_features_must_be_there_and_not_empty(complaint: Complain) -> None:
    assert complaint("data: {train: a.csv}").startswith("clicks.yaml: features is missing: name the columns")
    assert complaint("data: {train: a.csv}\nfeatures: []") == (
        "clicks.yaml:2: features is empty: name at least one column"
    )


def test_early_stopping_needs_validation_data(complaint: Complain) -> None:
    said = complaint(SMALL + "train: {early_stopping: {patience: 2}}")
    assert said == "clicks.yaml:5: train.early_stopping needs validation data: set data.valid or data.split"


def test_the_first_of_several_mistakes_in_the_file_is_named(complaint: Complain) -> None:
    assert complaint("train: {epochs: x}\ndata: {train: a, tme: b}\n").startswith(
        "clicks.yaml:1: train.epochs"
    )


def test_an_embedding_is_shared_with_its_owner_not_with_another_sharer(complaint: Complain) -> None:
    text = "data: {train: a.csv}\nfeatures:\n"
    for name, shared in (("a", None), ("b", "a"), ("c", "b")):
        sharing = f", share_embedding: {shared}" if shared else ""
        text += f"  - {{name: {name}, type: categorical{sharing}}}\n"
    assert complaint(text) == "clicks.yaml:5: share_embedding names `b`, which shares `a` itself; name that"


# Files that cannot be read as a config.


def test_a_missing_file_names_the_nearest(load: Load) -> None:
    load(SMALL)
    with pytest.raises(UserError, match=r"no such config: click\.yaml\. Did you mean `clicks\.yaml`\?"):
        load_config("click.yaml")


def test_a_missing_file_in_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such config: .*x\.yaml\. Write one: gearshift init FILE"):
        load_config(tmp_path / "x.yaml")


def test_data_instead_of_a_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is data, not a config; write one for it: gearshift init"):
        load_config(tmp_path / "clicks.csv.gz")


def test_a_folder_instead_of_a_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; a config is a YAML file"):
        load_config(tmp_path)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"name: na\xefve\n")
    with pytest.raises(UserError, match="not UTF-8 text"):
        load_config(tmp_path / "a.yaml")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SMALL, encoding="utf-8-sig")
    assert load_config(tmp_path / "a.yaml").name == "a"


LATEBUS = """\
from dataclasses import dataclass
from gearshift.sync.asynchronous import Async

@dataclass(frozen=True)
class LateBus(Async):
    seats: int = 1
    decay: float = 0.5
"""


@pytest.fixture
def latebus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A strategy of one's own, whose `decay` is not that of gba."""
    (tmp_path / "latebus.py").write_text(LATEBUS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "latebus:LateBus"
    sys.modules.pop("latebus", None)


class TestAStrategyOfOnesOwn:
    @pytest.mark.parametrize(
        "overrides",
        [
            ['strategy={name: "latebus:LateBus", seats: 2, decay: 0.25}'],
            ["strategy=latebus:LateBus", "strategy.seats=2", "strategy.decay=0.25"],
        ],
    )
    def test_it_has_the_settings_of_its_class(self, load: Load, latebus: str, overrides: list[str]) -> None:
        config = load(SMALL, *overrides)
        assert config.strategy.settings() == {"seats": 2, "decay": 0.25}
        assert type(config.strategy.settings()["seats"]) is int
        again = load(config.to_yaml())
        assert again.strategy == config.strategy
        assert config_from(config.values()).strategy == config.strategy
        assert load(SMALL, "strategy=latebus:LateBus").strategy != config.strategy

    def test_also_in_a_planned_switch(self, load: Load, latebus: str) -> None:
        config = load(f'{SMALL}strategy: {{switch: [{{at: 50%, to: "{latebus}", seats: 2, decay: null}}]}}')
        (switch,) = config.strategy.switch
        assert (switch.to, switch.settings()) == (latebus, {"seats": 2})
        assert load(config.to_yaml()).strategy == config.strategy

    @pytest.mark.parametrize(
        ("strategy", "sentence"),
        [
            (
                '{name: "latebus:LateBus", seat: 2}',
                "latebus:LateBus has no setting `seat`: it has seats, decay",
            ),
            (
                '{switch: [{at: 1, to: "latebus:LateBus", seat: 2}]}',
                "has no setting `seat`: it has seats, decay",
            ),
            ("{name: async, seats: 2}", "unknown key `seats` in strategy. (max_lag, decay, "),
            (
                "{name: gba, max_lga: 2}",
                "unknown key `max_lga` in strategy. Did you mean `max_lag`? (max_lag, ",
            ),
            (
                "{switch: [{at: 50%, to: gba, max_lga: 2}]}",
                "unknown key `max_lga` in strategy.switch[0]. Did you mean `max_lag`? (max_lag, ",
            ),
        ],
    )
    def test_what_it_does_not_have(
        self, complaint: Complain, latebus: str, strategy: str, sentence: str
    ) -> None:
        said = complaint(f"{SMALL}strategy: {strategy}")
        assert said.startswith("clicks.yaml:5: ")
        assert sentence in said


@pytest.mark.parametrize(
    ("points", "at_fault", "sentence"),
    [
        (["50%", "40%"], 1, "the switch to gba at 40% is listed after the one at 50%; list switches in the order in which they happen"),
        (["50%", "50%"], 1, "at 50% is listed after the one at 50%"),
        (["1min", "30%", "30s"], 2, "at 30 s is listed after the one at 60 s"),
        (["day 3", "day 2"], 1, "at day 2 is listed after the one at day 3"),
        (["2M", "500k"], 1, "at 500,000 examples is listed after the one at 2,000,000 examples"),
    ],
)  # fmt: skip
def test_planned_switches_stand_in_their_order(
    complaint: Complain, points: list[str], at_fault: int, sentence: str
) -> None:
    entries = "".join(f"\n    - {{at: {point}, to: gba}}" for point in points)
    said = complaint(f"{SMALL}strategy:\n  switch:{entries}")
    assert said.startswith(f"clicks.yaml:{7 + at_fault}: ")
    assert sentence in said


def test_planned_switches_in_different_units_may_stand_in_any_order(load: Load) -> None:
    points = ["50%", "1min", "500k", "60%", "day 2", "600k"]
    entries = ", ".join(f"{{at: {point}, to: gba}}" for point in points)
    assert len(load(f"{SMALL}strategy: {{switch: [{entries}]}}").strategy.switch) == len(points)


def test_another_engine_leaves_the_settings_for_ray_aside(tmp_path: Path) -> None:
    file = tmp_path / "clicks.yaml"
    file.write_text(
        changed("engine: threads", "engine: ray, patience: 5s, wire: curve, resources: {worker_cpus: 2}")
    )
    assert load_config(file).cluster.patience == 5
    here = load_config(file, ["cluster.engine=threads"]).cluster
    assert (here.engine, here.wire, here.workers) == ("threads", "auto", 1)
    with pytest.raises(UserError, match=r"^cluster.wire=ipc: cluster.wire is for engine: ray"):
        load_config(file, ["cluster.engine=threads", "cluster.wire=ipc"])


@pytest.mark.parametrize(
    ("written", "seconds"), [("3", 3.0), ("2.5", 2.5), ("0", 0.0), ("0s", 0.0), ("2min", 120.0)]
)
def test_a_number_without_a_unit_counts_in_seconds(tmp_path: Path, written: str, seconds: float) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"data: {{synthetic: {{examples: 1000}}}}\ncheckpoint: {{retry_for: {written}}}\n")
    for config in (load_config(path), load_config(path, [f"checkpoint.retry_for={written}"])):
        assert config.checkpoint.retry_for == seconds
        dumped = config.model_dump(mode="json")["checkpoint"]["retry_for"]
        assert load_config(path, [f"checkpoint.retry_for={dumped}"]).checkpoint.retry_for == seconds


@pytest.mark.parametrize(
    "setting", ["checkpoint.retry_for=-3", "checkpoint.retry_for=soon", "cluster.patience=0"]
)
def test_a_duration_that_is_none_is_refused(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("data: {synthetic: {examples: 1000}}\n")
    with pytest.raises(UserError, match=setting.partition("=")[0]):
        load_config(path, [setting])
