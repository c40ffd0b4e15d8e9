from collections.abc import Callable
from pathlib import Path

import pytest

from gearshift.config import Config, load_config
from gearshift.errors import UserError

SHOP = """\
# header of clicks.csv: click,ts,user_id,item_id,country,price,age,tags,recent_items,weight
name: shop-clicks
data:
  train: data/clicks-2026-11-0[1-7].csv.gz
  valid: data/clicks-2026-11-08.csv.gz
  csv: {delimiter: ",", header: true, null: ["", "NULL"]}
  bad_lines: fail
  label: click
  time: ts
  group: user_id
  weight: weight
  negatives_kept: 1.0
  keep: [item_id, ts]
features:
  - {name: price,        type: numeric, transform: log1p, missing: mean}
  - {name: age,          type: numeric, transform: {bucketize: [18, 25, 35, 50]}}
  - {name: user_id,      type: categorical}
  - {name: item_id,      type: categorical}
  - {name: country,      type: categorical, dim: 4}
  - {name: tags,         type: bag,      separator: "|", pool: mean, max_len: 10}
  - {name: recent_items, type: sequence, separator: "|", max_len: 50, keep: last, share_embedding: item_id}
model: {name: din, dim: 16, hidden: [400, 400], target: item_id, history: recent_items}
optimizer:
  dense: {name: adam, lr: 1e-3}
  embeddings: {name: adagrad, lr: 0.05, l2: 1e-6}
train: {global_batch: 8192, epochs: 1, seed: 1, eval_every: 10%}
strategy: {name: sync}
cluster: {engine: threads, workers: 1}
checkpoint: {every: 10min, keep: 3, best: auc, path: runs/}
"""

Load = Callable[..., Config]
Complain = Callable[..., str]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a text as clicks.yaml, with overrides."""
    monkeypatch.chdir(tmp_path)

    def load(text: str, *overrides: str) -> Config:
        Path("clicks.yaml").write_text(text)
        return load_config("clicks.yaml", overrides)

    return load


@pytest.fixture
def complaint(load: Load) -> Complain:
    """The sentence with which a text is refused."""

    def complaint(text: str, *overrides: str) -> str:
        with pytest.raises(UserError) as caught:
            load(text, *overrides)
        return str(caught.value)

    return complaint
