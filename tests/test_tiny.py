"""The smallest whole run: text in, probabilities out. If this fails, look here first."""

from pathlib import Path

import gearshift as gs


def test_tiny(tmp_path: Path) -> None:
    lines = (f"{int(i % 3 == 0)},{'abc'[i % 3]},{i % 7}" for i in range(300))
    log = tmp_path / "clicks.csv"
    log.write_text("click,letter,number\n" + "\n".join(lines))
    schema = gs.Schema((gs.Categorical("letter"), gs.Numeric("number")), labels=(gs.Label("click"),))
    data = gs.read(log, schema)
    trainer = gs.Trainer(
        global_batch=20,
        epochs=3,
        checkpoint=gs.CheckpointPolicy(path=tmp_path / "runs"),
        optimizer=gs.OptimizerSettings(rows=gs.RowAdagrad(lr=0.5)),
    )
    result = trainer.fit(gs.models.DeepFM(schema, dim=4, hidden=[8]), data, valid=data)
    assert result.auc > 0.99
    result.save(tmp_path / "model")
    assert (gs.load(tmp_path / "model").predict(data) == result.predict(data)).all()
