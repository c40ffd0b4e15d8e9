"""The typed tree: every setting of a run. Most sections are the dataclasses that use the values.

A `Config` is a frozen value. It opens no file and builds nothing; `build.py` does. Every `Config` has passed the checks
between its fields (checks.py). docs/config.md is generated from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gearshift.cluster_model import cluster as cluster_model
from gearshift.config import checks, disturbances, document
from gearshift.config.choices import ChoiceSection, rules_of
from gearshift.config.data import DataSection
from gearshift.config.features import FeatureEntry
from gearshift.config.optimizers import OptimizerSection
from gearshift.config.section import FlatSection, Section, is_section, keys_of
from gearshift.config.strategies import StrategySection
from gearshift.data import schema as columns
from gearshift.data.readers.public_logs import KNOWN_LOGS
from gearshift.embedding.cold_tier import StorageSettings
from gearshift.engine.ray.cluster_settings import ConnectionSettings, Resources
from gearshift.models.settings import MODEL_SETTINGS
from gearshift.run.checkpoint_policy import CheckpointPolicy
from gearshift.settings.declaration import setting
from gearshift.settings.units import Count, Memory, Seconds, Text, Texts
from gearshift.trainer.worker_settings import WorkerCounts
from gearshift.training.train_settings import TrainSection

SCHEMA_FILE = Path(__file__).parents[1] / "gearshift.schema.json"  # for editors; made by config/reference.py


class ModelSection(ChoiceSection, rules=rules_of(MODEL_SETTINGS)):
    name: str = Field(default="deepfm", description="Which network.")

    def settings(self) -> dict[str, Any]:
        return {key: list(v) if isinstance(v, tuple) else v for key, v in super().settings().items()}


@dataclass(frozen=True)
class InjectSection:
    """Injected slowness, to measure its cost: each batch is padded to a drawn duration."""

    step: Seconds = setting(
        0.2, "Duration of an undisturbed batch; it must exceed the time of the real work."
    )
    slow: Texts = setting((), "Slow workers: 3=5x, 0-3=2x, or for a limited time: 3=5x@60s-120s.")
    lognormal: Texts = setting((), "Jitter: 0.3, or of some workers: 3:0.5.")
    bursts: Texts = setting((), "A share of the batches takes longer: 10%=10x.")
    seed: Count = setting(0, "Seed of the drawn durations.", at_least=0)

    def cluster(self, workers: int) -> cluster_model.ClusterModel:
        return disturbances.cluster(
            workers, self.step, slow=self.slow, lognormal=self.lognormal, bursts=self.bursts, seed=self.seed
        )


class WorkersSection(FlatSection, of=(WorkerCounts,)):
    """Where workers run, and how many."""

    engine: Text = Field(
        default="threads",
        description="Where workers run: threads of this process, or ray: processes on one machine or many.",
    )

    @property
    def counts(self) -> WorkerCounts:
        return self.value(WorkerCounts)


class ClusterSection(WorkersSection, of=(ConnectionSettings,)):
    """The keys after `inject` are for engine: ray."""

    inject: InjectSection | None = Field(
        default=None, description="Slow workers down on purpose, for experiments."
    )
    placement: Literal["pack", "spread"] = Field(
        default="pack", description="Pack processes onto few machines, or spread them over many."
    )
    resources: Resources = Field(
        default=Resources(), description="CPUs and GPUs that Ray reserves for a process, by its role."
    )


@dataclass(frozen=True)
class CheckpointSection(CheckpointPolicy):
    """The checkpoint policy, and the metric that selects the best checkpoint."""

    best: Literal["auc", "logloss"] | None = setting("auc", "Keep the best by this metric.")


class Config(Section):
    """What a run is."""

    name: Text | None = Field(default=None, description="Names the run folder; the file's name if not set.")
    data: DataSection = Field(
        default=DataSection(), description="Where the click log is and what its columns mean."
    )
    features: tuple[FeatureEntry, ...] | None = Field(
        default=None,
        description="The columns that the model sees. Columns not named are ignored, and listed.",
    )
    model: ModelSection = Field(default=ModelSection(), description="The network.")
    optimizer: OptimizerSection = Field(default=OptimizerSection(), description="How weights move.")
    train: TrainSection = Field(
        default=TrainSection(), description="How long, in what steps, how often measured."
    )
    strategy: StrategySection = Field(default=StrategySection(), description="How workers synchronise.")
    cluster: ClusterSection = Field(default=ClusterSection(), description="Where workers run.")
    checkpoint: CheckpointSection = Field(
        default=CheckpointSection(), description="What is saved, and where."
    )
    memory: Memory | None = Field(
        default=None,
        description=(
            "Memory for embedding rows, such as 16GiB or 25% of the machine's or container's memory; on Ray for each "
            "shard, on its machine. Rows that do not fit go to disk. If not set, all rows stay in memory."
        ),
    )
    storage: StorageSettings = Field(
        default=StorageSettings(), description="Where rows go that do not fit in `memory`."
    )
    log: Texts = Field(default=(), description="Other places for metrics. This version has none.")

    _places: document.Places = PrivateAttr(default_factory=document.Places)

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if (misfit := checks.first_misfit(self)) is not None:
            raise PydanticCustomError(
                "misfit", "{sentence}", {"sentence": misfit.sentence, "path": misfit.path}
            )
        return self

    def place(self, *path: str | int) -> str:
        """`clicks.yaml:3` for a value from a file, the override that set it, or nothing."""
        return self._places.of(path)

    def schema(self) -> columns.Schema | None:  # type: ignore[override]
        """The meaning of the columns; none where the data brings its own (generated and prepared logs)."""
        known = KNOWN_LOGS.get(self.data.format)
        if self.features is None and known is None:
            return None
        features = known.features if known else ()
        if self.features is not None:
            features = tuple(entry.column() for entry in self.features)
        return columns.Schema(
            features,
            self.labels() or (known.labels if known else (columns.Label("label"),)),
            **{"time": known.time if known else None, **self.data.stated_roles},
            null=self.data.csv.null,
        )

    def labels(self) -> tuple[columns.Label, ...]:
        """Those that the config states; none where it leaves them to the format."""
        return tuple(label.value(columns.Label) for label in self.data.label or ())

    def to_yaml(self) -> str:
        """Every setting that has a value, defaults included; `load_config` reads it back as an equal one."""
        return document.dump(self.values())

    def values(self) -> dict[str, Any]:
        """The same as plain values, for `config_from`."""
        values = self.model_dump(mode="json", exclude_none=True)
        _keep_nulls(values, self)
        return values


def _keep_nulls(values: dict[str, Any], section: Any) -> None:
    """Puts back the nulls that take a default away; those that only say "not set" stay out."""
    for key, declared in keys_of(type(section)).items():
        value = getattr(section, key)
        if is_section(type(value)):
            _keep_nulls(values[key], value)
        elif value is None and declared.default is not None:
            values[key] = None
