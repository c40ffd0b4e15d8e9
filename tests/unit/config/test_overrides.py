"""`key=value` over the values of a file."""

# ruff: noqa: E501 (tables of whole sentences)
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gearshift.config import config_from, document
from gearshift.config.overrides import parse_override, parse_value
from gearshift.config.tree import Config
from gearshift.settings.units import parse_text

from .conftest import SHOP, Complain, Load


def test_a_dotted_key_sets_one_value(load: Load) -> None:
    config = load(SHOP, "train.epochs=3", "optimizer.dense.lr=5e-4")
    assert (config.train.epochs, config.optimizer.dense.lr) == (3, 5e-4)
    assert config.optimizer.dense.name == "adam"


@pytest.mark.parametrize(
    ("short", "path"),
    [
        ("workers=8", ("cluster", "workers")),
        ("global_batch=1", ("train", "global_batch")),
        ("epochs=1", ("train", "epochs")),
        ("seed=1", ("train", "seed")),  # data.synthetic.seed lies deeper
        ("dim=8", ("model", "dim")),
        ("bad_lines=fail", ("data", "bad_lines")),
        ("valid=x", ("data", "valid")),
        ("strategy=sync", ("strategy",)),
        ("model=fm", ("model",)),
        ("name=x", ("name",)),
        ("memory=1GB", ("memory",)),
        ("clip_norm=1", ("optimizer", "clip_norm")),
        ("early_stopping.patience=3", ("train", "early_stopping", "patience")),
        ("dense.lr=1", ("optimizer", "dense", "lr")),
    ],
)
def test_short_forms(short: str, path: tuple[str, ...]) -> None:
    assert parse_override(short, Config).path == path


def test_list_entries_go_by_position_or_name(load: Load) -> None:
    config = load(
        SHOP, "features[2].dim=4", "features[country].dim=8", "features[-2].max_len=5", "hidden=[8, 4]"
    )
    schema = config.schema()
    assert schema is not None
    dims = {f.name: getattr(f, "dim", None) for f in schema.features}
    assert (dims["user_id"], dims["country"]) == (4, 8)
    assert config.model.hidden == (8, 4)
    assert [getattr(f, "max_len", None) for f in schema.features][5] == 5


def test_mappings_and_lists_as_values(load: Load) -> None:
    config = load(
        SHOP, "data.bad_lines={skip: 1000}", 'data.label={column: click, positive: "yes"}', "data.keep=[a, b]"
    )
    assert config.data.bad_lines.skip == 1000
    assert config.data.label is not None and config.data.label[0].positive == "yes"
    assert config.data.keep == ("a", "b")


def test_a_section_can_be_taken_away(load: Load) -> None:
    config = load(SHOP, "data.valid=null", "data.split={by: hash(user_id), valid: 10%}")
    assert config.data.valid is None
    assert config.data.split is not None and config.data.split.hash_column == "user_id"
    assert config.data.split.valid == 0.1


def test_a_short_form_in_the_file_can_be_refined(load: Load) -> None:
    text = "data: {train: a.csv, label: y}\nmodel: fm\nfeatures: [{name: a, type: categorical}]\n"
    config = load(text, "model.dim=4")
    assert (config.model.name, config.model.dim) == ("fm", 4)


def test_shell_characters_need_no_quotes(load: Load) -> None:
    config = load(SHOP, "data.csv.delimiter=|", "data.train=*.csv", "data.valid=[0-9].csv")
    assert config.data.csv.delimiter == "|"
    assert (config.data.train, config.data.valid) == (("*.csv",), ("[0-9].csv",))


@pytest.mark.parametrize("text", ["\\t", "tab", "\t"])
def test_a_tab_can_be_written(text: str) -> None:
    assert config_from({"data": {"csv": {"delimiter": text}}}).data.csv.delimiter == "\t"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("modle=dcn", "modle=dcn: unknown key `modle`. Did you mean `model`? (docs/config.md"),  # codespell:ignore modle
        ("workres=8", "workres=8: unknown key `workres`. Did you mean `workers`? (docs/config.md lists all keys)"),
        ("train.epoch=2", "train.epoch=2: unknown key `epoch` in train. Did you mean `epochs`?"),
        ("lr=3", "lr=3: `lr` could be several settings; write one of optimizer.dense.lr, optimizer.embeddings.lr, opt"),
        ("epochs", "`epochs` is not a setting: write key=value, such as train.epochs=2"),
        ("=3", "`=3` is not a setting: write key=value"),
        ("epochs=many", "epochs=many: expected a whole number, such as 4096"),
        ("epochs=true", "epochs=true: expected a whole number, such as 4096"),
        ("strategy=gbaa", "strategy=gbaa: unknown strategy `gbaa`. Did you mean gba?"),
        ("features[9].dim=2", "features[9].dim=2: features has 7 entries, [0] to [6]"),
        ("features[countri].dim=2", "features[countri].dim=2: no entry of features is named `countri`. Did you mean `coun"),
        ("features[country].dim=0", "features[country].dim=0: it must be at least 1"),
        ("features[x].dim=2", "features[x].dim=2: no entry of features is named `x`. (price, age, user_id, item_id, country"),
        ("features[country].dim=4097", "features[country].dim=4097: it must be at most 4096"),
        ("features[age].dim=4097", "features[age].dim=4097: it must be at most 4096"),
        ("model.dim=16000", "model.dim=16000: it must be at most 4096"),
        ("features[country].expire=30d", "features[country].expire=30d: expected settings below it, such as {after: 30d}"),
        ("features[country].expire.after=0d", "features[country].expire.after=0d: it must be more than 0, such as"),
        ("features[country].expire={}", "features[country].expire={}: features[4].expire.after is missing: A row is removed"),
        ("storage=/x", "storage=/x: expected settings below it, such as {path: /x}"),
        ("checkpoint=runs", "checkpoint=runs: expected settings below it, such as {path: runs}"),
        ("storage.path=5", "storage.path=5: expected a folder, such as /ssd/rows (./5 if that is its name)"),
        ("storage.path=", "storage.path=: no value; write storage.path=null for the default"),
        ("checkpoint.path=true", "checkpoint.path=true: expected a folder"),
        ("storage.path=x", "storage.path=x: storage.path is for rows that do not fit in `memory`, which is not set: set it"),
        ("storage.lookahead=0", "storage.lookahead=0: expected auto, off or a number of examples, such as 500k"),
        ("storage.lookahead=foo", "storage.lookahead=foo: expected auto, off or a number of examples, such as 500k"),
        ("memory=20M", "memory=20M: expected a size, such as 16GiB, or a share of the machine's memory, such as 25%; did you mean 20MiB?"),
        ("memory=150%", "memory=150%: a share of the machine's memory is more than 0% and at most 100%"),
        ("train[2]=3", "train[2]=3: train is not a list in the file"),
        ("model.dim.x=3", "model.dim.x=3: model.dim is `16` in the file; set it as a whole"),
        ("data.bad_lines={skip: [}", "data.bad_lines={skip: [}: not valid YAML: "),
        ("optimizer.dense.momentum=.3", "optimizer.dense.momentum=.3: adam has no setting `momentum`"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named_itself(complaint: Complain, override: str, sentence: str) -> None:
    assert complaint(SHOP, override).startswith(sentence)


def test_a_folder_below_home(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell does not expand `~` after `=`."""
    monkeypatch.setenv("HOME", "/home/ann")
    config = load(SHOP, "memory=1GiB", "storage.path=~/rows", "checkpoint.path=~/runs", "data.train=~/a.csv")
    assert (config.storage.path, config.checkpoint.path) == ("/home/ann/rows", "/home/ann/runs")
    assert config.data.train == ("/home/ann/a.csv",)


def test_the_last_of_two_overrides_wins(load: Load) -> None:
    assert load(SHOP, "epochs=2", "train.epochs=3").train.epochs == 3


def test_the_file_itself_is_not_changed() -> None:
    values: dict[str, Any] = {"train": {"epochs": 1}}
    config_from(values, ["epochs=2"])
    assert values == {"train": {"epochs": 1}}


visible = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]))


@settings(deadline=None)
@given(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), visible
    )
)
@example("NO")
@example("1e-3")
@example("{a")
@example('"')
@example("[x]")
def test_any_scalar_round_trips_through_an_override_and_yaml(value: object) -> None:
    """What `dump_flow` writes for a value is what an override reads as that value, and YAML too."""
    written = document.dump_flow(value)
    assert parse_value(written) == value
    assert document.parse(f"a: {written}", "a.yaml").values["a"] == value


@settings(deadline=None)
@given(visible.map(str.strip).filter(lambda text: text and text[:1] not in tuple("[{\"'")))
def test_a_text_setting_gets_the_very_words(text: str) -> None:
    found = parse_override(f"name={text}", Config).value
    assert parse_text(found) == {"null": None, "~": None}.get(text, _as_bool(text))


def _as_bool(text: str) -> str:
    return text.lower() if text in ("True", "TRUE", "False", "FALSE") else text
