from pathlib import Path

from gearshift.config import load_config

SMALL = """\
data: {train: clicks.csv, label: click}
features:
  - {name: price, type: numeric}
  - {name: user, type: categorical}
"""


def test_a_small_file_has_defaults_and_is_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(SMALL)
    config = load_config(tmp_path / "clicks.yaml", ["global_batch=512"])
    assert config.name == "clicks"
    assert config.train.global_batch == 512
    assert config.train.epochs == 1
