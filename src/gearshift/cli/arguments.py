"""Resolves names on the command line to runs, models and data. Heavy modules are imported inside the functions."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearshift.cli import terminal
from gearshift.config import Config, load_config
from gearshift.config.files import exists, hint
from gearshift.data.schema import Label, Schema
from gearshift.errors import MissingColumns, UserError
from gearshift.run import catalog
from gearshift.run import folder as run_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gearshift.data.batch import Batch
    from gearshift.data.missing_columns import MissingColumnsMode

MANIFEST = "manifest.json"
SETTING = re.compile(r"data\.[a-z_.]+=")  # key=value, not a file


@dataclasses.dataclass(frozen=True)
class Opened:
    """A trained model, its path, and the config of its run if it has one."""

    name: str
    path: Path
    config: Config | None
    model: Any  # gearshift.run.trained_model.TrainedModel
    labels: tuple[Label, ...] | None = None  # how labels are read, if it differs from training

    @property
    def schema(self) -> Schema:
        schema: Schema = self.model.schema
        return schema if self.labels is None else dataclasses.replace(schema, labels=self.labels)

    def predictions(self, dataset: Any, *, corrected: bool) -> Iterator[tuple[Batch, NDArray[Any]]]:
        """Batches with probabilities [B, T]. `corrected`: calibrated for the full log, if negatives were sampled."""
        from gearshift.training.evaluation import correct_for_sampling, predictions

        for batch, probabilities_BT in predictions(self.model.learner, dataset):
            kept = self.schema.negatives_kept if corrected else 1.0
            yield batch, correct_for_sampling(probabilities_BT, kept)


def settings_and_others(
    arguments: Sequence[str], command: str, sections: Sequence[str]
) -> tuple[list[str], list[str]]:
    """(data.KEY=VALUE settings, all other words). A setting outside `sections` has no effect and is refused."""
    settings = [text for text in arguments if SETTING.match(text)]
    for text in settings:
        if re.split(r"[.=]", text)[1] not in sections:
            named = [f"data.{section}" for section in sections]
            raise UserError(
                f"{text}: {command} takes {', '.join(named[:-1])} and {named[-1]}, which define how the data is read; "
                "everything else is as in training"
            )
    return settings, [text for text in arguments if text not in settings]


def is_model(name: str) -> bool:
    """Whether a word on the command line names a run or a saved model rather than data."""
    with suppress(UserError):
        return find_model(name) is not None
    return False


def find_model(name: str, *roots: str | Path) -> Path:
    """A run (path, `last`, or the beginning of its name in one of `roots`), a checkpoint or a saved model.

    A checkpoint is `RUN@step-600`, `RUN@best` or its path.
    """
    path = Path(name)
    if not (path / MANIFEST).is_file():
        return catalog.find_model(name, *roots)
    if is_prepared(path):
        raise UserError(f"{path} is prepared data, not a model; name a run first, such as: last {path}")
    return path


def is_prepared(path: Path) -> bool:
    """Whether a folder's manifest is that of prepared data; False if it is damaged."""
    with suppress(ValueError, AttributeError):
        return bool(json.loads((path / MANIFEST).read_text()).get("format") == "gearshift-prepared")
    return False


def open_model(name: str, settings: Sequence[str] = ()) -> Opened:
    """Open a model. `settings` (data.KEY=VALUE) override the config of its run."""
    from gearshift.run.trained_model import load

    path = find_model(name)
    config = config_of(path, settings)
    if settings and config is None:
        raise UserError(f"{settings[0]}: {path} is a saved model without a config; name its run instead")
    stated = config is not None and any(text.startswith("data.label") for text in settings)
    return Opened(path.name, path, config, load(path), config.labels() if config and stated else None)


def config_of(path: Path, settings: Sequence[str] = ()) -> Config | None:
    """The config of the run that a model belongs to: its folder, or the folder of its checkpoint."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / run_folder.RUN).is_file() and (folder / run_folder.CONFIG).is_file():
            return load_config(folder / run_folder.CONFIG, settings)
    return None


def open_files(
    paths: Sequence[str],
    schema: Schema,
    config: Config | None,
    *,
    labelled: bool = True,
    why_all: str | None = None,
    missing_columns: MissingColumnsMode = "fail",
) -> Any:
    """Open the user's data, read like the training data. Warnings about differences go to stderr.

    `why_all` explains why no line may be skipped, whatever the run's config allows.
    """
    from gearshift.data.readers.bad_lines import BadLines
    from gearshift.data.skew import remarks

    for path in paths:
        if not exists(path):
            raise UserError(f"no such file: {path}{hint(path)}")
    source = paths[0] if len(paths) == 1 else list(paths)
    all_lines = BadLines(advice=f"Fix the line, or remove it: {why_all}" if why_all else None)
    settings: dict[str, Any] = (
        {"bad_lines": all_lines} if config is None else _settings(source, config, all_lines, why_all)
    )
    dataset = _read(source, schema, **settings, labelled=labelled, missing_columns=missing_columns)
    for sentence in remarks(dataset.examples, schema.forms).values():
        terminal.warn(sentence)
    return dataset


def _settings(source: Any, config: Config, all_lines: Any, why_all: str | None) -> dict[str, Any]:
    from gearshift.data.readers.source_opener import format_of_more

    data = config.data
    if data.synthetic is not None:
        return {"bad_lines": all_lines}
    return {
        "format": format_of_more(source, data.format),
        "csv": data.csv,
        "bad_lines": all_lines if why_all else data.bad_lines.skip,
    }


def _read(source: Any, schema: Schema, **settings: Any) -> Any:
    from gearshift.data.dataset import read

    try:
        return read(source, schema, **settings)
    except MissingColumns as error:
        raise error.with_option("--missing-columns as_missing") from None


def report_skipped(*datasets: Any) -> None:
    """Report skipped lines on stderr: the result does not cover all data. Parts may share skipped lines."""
    from gearshift.data.readers.bad_lines import lines_lost

    skipped = list(dict.fromkeys(line for dataset in datasets for line in dataset.skipped))
    if skipped:
        some = "; ".join(str(line) for line in skipped[:3]) + ("; ..." if len(skipped) > 3 else "")
        lost = lines_lost(skipped)
        lines = "1 bad line was" if lost == 1 else f"{terminal.count(lost)} bad lines were"
        terminal.warn(f"{lines} skipped (allowed by data.bad_lines in the config): {some}")


def own_data(opened: Opened, schema: Schema) -> Any:
    """The test data of a model's run, else its validation data."""
    from gearshift.config.build import datasets

    if opened.config is None:
        raise UserError(f"add the data: gearshift evaluate {opened.path} DATA (a saved model has no data)")
    data = datasets(opened.config)
    dataset = data.test or data.valid
    if dataset is None:
        raise UserError(
            f"run {opened.name} has no test or validation data; add data: gearshift evaluate RUN DATA"
        )
    return dataset.with_schema(schema)


def keeping(schema: Schema, *columns: str) -> Schema:
    """The schema with these columns copied to the output."""
    return dataclasses.replace(schema, keep=tuple(dict.fromkeys((*schema.keep, *columns))))
