import json

from gearshift.config import reference
from gearshift.config.tree import SCHEMA_FILE, Config

HOW = "out of date; run: python -m gearshift.config.reference"


def test_the_config_reference_is_current() -> None:
    assert reference.DOCS_FILE.read_text() == reference.markdown(), HOW


def test_the_json_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text() == reference.json_schema_text(), HOW


def test_every_key_has_a_sentence() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        full = section if "properties" in section else section.get("anyOf", [{}])[-1]
        for key, field in full.get("properties", {}).items():
            assert field.get("description", "").endswith((".", "...")), (section.get("title"), key)


def test_sections_stand_in_the_order_of_the_file() -> None:
    headings = [line for line in reference.markdown().splitlines() if line.startswith("## ")]
    names = [heading.split()[1].split(".")[0].rstrip(":,") for heading in headings[1:]]
    order = [name for name in Config.model_fields if name in names]
    assert list(dict.fromkeys(names)) == order


def test_the_schema_takes_any_setting_of_a_strategy_of_ones_own_and_no_other() -> None:
    for section, key in (("StrategySection", "name"), ("PlannedSwitchSection", "to")):
        _, own, known = json.loads(SCHEMA_FILE.read_text())["$defs"][section]["anyOf"]
        assert key in own["required"] and "additionalProperties" not in own
        assert [kind["pattern"] for kind in own["properties"][key]["anyOf"]] == ["^.+:.+$"]
        assert known["additionalProperties"] is False
