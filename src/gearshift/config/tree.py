"""The typed tree: every setting of a run with its type, its default and one sentence.

A `Config` is a frozen value. It opens no file and builds nothing; `build.py` does. Whatever exists as a
`Config` is consistent in itself (checks.py). Names are those of docs/config.md, which is made from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gearshift.cluster_model import cluster as cluster_model
from gearshift.config import checks, disturbances, document
from gearshift.config.data import DataSection, Tolerated
from gearshift.config.features import FeatureEntry
from gearshift.config.optimizers import OptimizerSection
from gearshift.config.section import Counts, Named, Section, Texts
from gearshift.config.strategies import StrategySection
from gearshift.config.units import Count, MaybeEvery, Number, Seconds, Share, Size, Text
from gearshift.data import schema as columns
from gearshift.data.readers.public_logs import KNOWN_LOGS
from gearshift.training.timing import Every

SCHEMA_FILE = Path(__file__).parents[1] / "gearshift.schema.json"  # for editors; made by cli/api_reference.py

ModelName = Literal["lr", "fm", "dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm", "din"]


class ModelSection(Named):
    """Settings that are not given are the model's own defaults."""

    name: ModelName = Field(default="deepfm", description="Which network.")
    dim: Count | None = Field(default=None, ge=1, description="Width of an embedding row.")
    hidden: Counts | None = Field(default=None, description="Widths of the hidden layers.")
    dropout: Share | None = Field(default=None, description="Share of hidden units dropped while training.")

    activation: Text | None = Field(default=None, description="Between hidden layers: relu, ...")
    batch_norm: bool | None = Field(default=None, description="Normalise hidden layers over the batch.")
    cross_layers: Count | None = Field(default=None, ge=1, description="dcn, dcnv2: how many cross layers.")
    rank: Count | None = Field(
        default=None, ge=1, description="dcnv2: low-rank cross matrices; full if not set."
    )
    structure: Literal["parallel", "stacked"] | None = Field(
        default=None, description="dcnv2: cross and deep network beside or after each other."
    )
    bottom: Counts | None = Field(default=None, description="dlrm: widths of the network below the numbers.")
    attention: Counts | None = Field(default=None, description="din: widths of the attention network.")
    attention_activation: Text | None = Field(default=None, description="din: between its layers: dice, ...")
    target: Texts | None = Field(default=None, description="din: the categorical feature that is judged.")
    history: Texts | None = Field(
        default=None, description="din: the sequence feature that it is compared with."
    )

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the model."""
        set_here = self.model_dump(exclude_none=True, exclude={"name"})
        return {key: list(v) if isinstance(v, tuple) else v for key, v in set_here.items()}


class EarlyStoppingSection(Section):
    patience: Count = Field(
        default=2, ge=1, description="Validations without improvement before the run ends."
    )


class PlateauSection(Section):
    factor: Share = Field(
        default=0.1, gt=0, lt=1, description="Multiply the rates by this without improvement."
    )
    patience: Count = Field(default=1, ge=1, description="Validations without improvement before that.")


def _shuffle(value: Any) -> Any:
    known = {"auto": "auto", True: True, False: False, "yes": True, "no": False, "on": True, "off": False}
    if not isinstance(value, str | bool) or value not in known:
        raise ValueError("expected auto, true or false")
    return known[value]


Shuffle = Annotated[
    Literal["auto"] | bool, PlainValidator(_shuffle), WithJsonSchema({"enum": ["auto", True, False]})
]


class TrainSection(Section):
    global_batch: Count = Field(default=4096, ge=1, description="Examples per step, over all workers.")
    batch: Count | None = Field(
        default=None,
        ge=1,
        description="Examples a worker takes at a time; global_batch / workers if not set.",
    )
    micro_batches: Count = Field(
        default=1,
        ge=1,
        description="Into how many batches a worker's share of a step is cut, each with a gradient of its own; "
        "vr_* wants 8 over all workers.",
    )
    epochs: Count = Field(default=1, ge=1, description="Passes over the training data.")
    seed: Count = Field(default=1, ge=0, description="The same seed gives the same run, bit for bit.")
    eval_every: MaybeEvery = Field(
        default=Every(share=0.1),
        description="Validate after this share of the run (10%), so many steps (500), or none: at the end.",
    )
    shuffle: Shuffle = Field(
        default="auto",
        description="auto: in file order where the log has a time and is read once, shuffled else.",
    )
    early_stopping: EarlyStoppingSection | None = Field(
        default=None, description="End when checkpoint.best stops improving on the validation data."
    )
    plateau: PlateauSection | None = Field(
        default=None, description="Lower the rates when checkpoint.best stops improving."
    )
    bad_batches: Tolerated = Field(
        default=Tolerated(),
        description="If a loss or gradient is not finite: fail, or {skip: 10}, told and counted.",
    )
    baseline: bool = Field(
        default=True,
        description="Train a logistic regression beside the model, as a yardstick (a few percent of the time).",
    )
    loss: Literal["bce"] = Field(default="bce", description="Binary cross-entropy; own losses in Python.")


class InjectSection(Section):
    """Slowness on purpose, to see what it costs: each batch is padded to a drawn duration."""

    step: Seconds = Field(default=0.2, description="How long an undisturbed batch takes; more than its work.")
    slow: Texts = Field(default=(), description="Slow workers: 3=5x, 0-3=2x, or for a while: 3=5x@60s-120s.")
    lognormal: Texts = Field(default=(), description="Jitter: 0.3, or of some workers: 3:0.5.")
    bursts: Texts = Field(default=(), description="A share of the batches takes longer: 10%=10x.")
    seed: Count = Field(default=0, ge=0, description="Of the draws.")

    def cluster(self, workers: int) -> cluster_model.ClusterModel:
        return disturbances.cluster(
            workers, self.step, slow=self.slow, lognormal=self.lognormal, bursts=self.bursts, seed=self.seed
        )


class ResourcesSection(Section):
    """What Ray reserves for each process."""

    coordinator_cpus: Number = Field(default=1.0, ge=0, description="CPUs of the coordinator.")
    shard_cpus: Number = Field(default=1.0, ge=0, description="CPUs of a shard.")
    worker_cpus: Number = Field(default=1.0, ge=0, description="CPUs of a worker.")
    worker_gpus: Number = Field(default=0.0, ge=0, description="GPUs of a worker. Not tried by us.")


class ClusterSection(Section):
    engine: Text = Field(
        default="threads",
        description="Where workers run: threads of this process, or ray: processes on one machine or many.",
    )
    workers: Count = Field(default=1, ge=1, description="How many compute at the same time.")
    shards: Count = Field(
        default=1, ge=1, le=256, description="Over how many servers rows and dense parameters are spread."
    )
    threads: Count | None = Field(
        default=None, ge=1, description="CPU threads per worker; all cores if not set."
    )
    inject: InjectSection | None = Field(
        default=None, description="Slow workers down on purpose, for experiments."
    )
    address: Text = Field(
        default="local",
        description="Of a Ray cluster, as 10.0.0.5:6379; auto: the one of this machine; local: one for the run.",
    )
    wire: Literal["auto", "ipc", "curve"] = Field(
        default="auto",
        description="How processes talk: ipc inside a machine, curve (encrypted) between machines.",
    )
    half: bool = Field(default=False, description="Send rows and gradients as bfloat16, half the bytes.")
    sync_transport: Literal["auto", "servers", "all_reduce"] = Field(
        default="servers",
        description="How sync sums dense gradients: on the servers, among the workers, or what is faster here.",
    )
    trusted_network: bool = Field(
        default=False,
        description="Only you reach the network: all-reduce may go between machines, unencrypted.",
    )
    patience: Seconds = Field(
        default=30.0, gt=0, description="A process that is silent for so long is replaced."
    )
    placement: Literal["pack", "spread"] = Field(
        default="pack", description="Processes on few machines, or over many."
    )
    resources: ResourcesSection = Field(
        default=ResourcesSection(), description="CPUs and GPUs that Ray reserves for a process, by its role."
    )


class CheckpointSection(Section):
    every: MaybeEvery = Field(
        default=Every(seconds=600.0),
        description="Save after this wall time (10min), so many steps (500), a share (10%), or none: at the end.",
    )
    keep: Count = Field(default=3, ge=1, description="How many of the newest are kept, beside best.")
    best: Literal["auc", "logloss"] | None = Field(
        default="auc", description="Keep the best by this measure."
    )
    path: Text = Field(default="runs", description="The folder that run folders are made in.")
    private: bool = Field(
        default=False, description="Nobody but its user can enter the run's folder and read what is in it."
    )
    retry_for: Seconds = Field(
        default=3600.0,
        ge=0,
        description="How long the last save is tried again if the disk is full or gone; 0: not at all.",
    )


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
    memory: Size | None = Field(
        default=None,
        description="What embedding rows may take, such as 16GiB; the machine's memory if not set.",
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
            time=self.data.time or (known.time if known else None),
            group=self.data.group,
            weight=self.data.weight,
            negatives_kept=self.data.negatives_kept,
            keep=self.data.keep,
            null=self.data.csv.null,
        )

    def labels(self) -> tuple[columns.Label, ...]:
        """Those that the config states; none where it leaves them to the format."""
        return tuple(columns.Label(c.column, c.positive, c.task, c.missing) for c in self.data.label or ())

    def to_yaml(self) -> str:
        """Every setting that has a value, defaults included; `load_config` reads it back as an equal one."""
        return document.dump(self.values())

    def values(self) -> dict[str, Any]:
        """The same as plain values, for `config_from`."""
        return _values(self)


def _values(section: BaseModel) -> dict[str, Any]:
    """Without the nulls that only say "not set"; those that take a default away stay."""
    values = section.model_dump(mode="json", exclude_none=True)
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            values[key] = _values(value)
        elif value is None and field.default is not None:
            values[key] = None
    return values
