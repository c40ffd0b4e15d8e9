"""The typed tree: every setting of a run with its type, its default and one sentence.

A `Config` is a frozen value. It opens no file and builds nothing; `train.py` does. Whatever exists as a
`Config` is consistent in itself (checks.py). Names are those of docs/config.md, which is made from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from gearshift.cadence import Every
from gearshift.config import checks, cluster_words, document
from gearshift.config.data import Data, Tolerated
from gearshift.config.features import FeatureEntry
from gearshift.config.quantities import (
    Count,
    MaybeEvery,
    Number,
    Point,
    Seconds,
    Share,
    Size,
    Text,
    plain,
)
from gearshift.config.section import Counts, Named, Section, Texts
from gearshift.data import schema as columns
from gearshift.data.known_logs import KNOWN_LOGS
from gearshift.engine import cluster_model
from gearshift.errors import UserError
from gearshift.sync.exchange import exchange_of
from gearshift.sync.registry import STRATEGIES

SCHEMA_FILE = Path(__file__).parents[1] / "gearshift.schema.json"  # for editors; made by reference.py

ModelName = Literal["lr", "fm", "dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm", "din"]


class Model(Named):
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


class Optimizer(Named):
    """Settings that are not given are the optimizer's own defaults."""

    name: str
    lr: Number | None = Field(default=None, gt=0, description="Learning rate.")
    l2: Number | None = Field(default=None, ge=0, description="L2 penalty on what a step touches.")
    momentum: Number | None = Field(
        default=None, ge=0, lt=1, description="momentum: share of the last move kept."
    )
    nesterov: bool | None = Field(default=None, description="momentum, dense only: look ahead (Nesterov).")
    beta1: Number | None = Field(default=None, ge=0, lt=1, description="adam, adamw: memory of the mean.")
    beta2: Number | None = Field(default=None, ge=0, lt=1, description="adam, adamw: memory of the square.")
    eps: Number | None = Field(default=None, gt=0, description="adagrad, adam: added to the denominator.")
    initial: Number | None = Field(default=None, ge=0, description="adagrad: first value of the accumulator.")

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the optimizer."""
        return self.model_dump(exclude_none=True, exclude={"name"})


class DenseOptimizer(Optimizer):
    name: Literal[
        "sgd",
        "momentum",
        "adagrad",
        "adam",
        "adamw",
        "lars",
        "lamb",
        "vr_sgd",
        "vr_momentum",
        "vr_adam",
        "vr_lars",
        "vr_lamb",
    ] = Field(
        default="adam",
        description="Which rule; lars and lamb scale each layer's step, vr_* trust what the step's batches agree on.",
    )
    weight_decay: Number | None = Field(
        default=None, ge=0, description="adamw, lars, lamb: decay apart from the gradient."
    )
    eta: Number | None = Field(
        default=None, gt=0, description="lars: a layer's step, of its weights' length."
    )
    floor: Share | None = Field(default=None, description="vr_*: the least share of a step that is taken.")
    min_gradients: Number | None = Field(
        default=None, ge=2, description="vr_*: from fewer batches a step nothing is reduced."
    )
    beta3: Number | None = Field(
        default=None, ge=0, lt=1, description="vr_adam, vr_lamb: memory of the trust."
    )
    control: Literal["none", "norm_matched", "layer_mean", "permuted"] | None = Field(
        default=None, description="vr_*: for experiments, what replaces the trust."
    )


class RowOptimizer(Optimizer):
    name: Literal["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl"] = Field(
        default="adagrad", description="Which rule; rowwise_adagrad needs one number of state per row."
    )
    beta: Number | None = Field(default=None, ge=0, description="ftrl: added to the root of the squared sum.")
    l1: Number | None = Field(default=None, ge=0, description="ftrl: makes small weights exactly zero.")


class RowClip(Named):
    name: Literal["cowclip"] = Field(default="cowclip", description="Which rule.")
    ratio: Number = Field(default=1.0, gt=0, description="Of the row's length, per occurrence of its id.")
    zeta: Number = Field(
        default=1e-5, ge=0, description="A row counts as at least this long, per root of its width."
    )


class ScheduleSettings(Section):
    warmup: Share = Field(default=0.0, description="Share of the run in which the rate rises from 0.")
    decay: Literal["none", "linear", "cosine", "step"] = Field(
        default="none", description="How it falls after."
    )
    floor: Share = Field(default=0.0, description="The share of the rate that decay ends at.")


class Optimizers(Section):
    dense: DenseOptimizer = Field(
        default=DenseOptimizer(name="adam", lr=1e-3), description="For the network's weights."
    )
    embeddings: RowOptimizer = Field(
        default=RowOptimizer(name="adagrad", lr=0.05), description="For the embedding rows."
    )
    linear: RowOptimizer | None = Field(
        default=None,
        description="For the linear term of a row (LR, FM, Wide&Deep, DeepFM); as embeddings if not set.",
    )
    row_init: Number = Field(
        default=0.01, ge=0, description="New embedding rows are drawn from [-row_init, row_init]."
    )
    row_trust: Literal["dense_only", "touched", "row_wise"] = Field(
        default="dense_only", description="Whether vr_* scales rows too: per element, or one number per row."
    )
    row_clip: RowClip | None = Field(
        default=None, description="cowclip: a row's gradient is clipped by the row's own length."
    )
    batch_rule: Literal["constant", "linear", "square_root", "cowclip"] = Field(
        default="constant",
        description="How rates that were tuned for base_batch grow with train.global_batch (docs/large_batches.md).",
    )
    base_batch: Count | None = Field(
        default=None, ge=1, description="The global batch that the rates here were tuned for."
    )
    clip_norm: Number | None = Field(default=None, gt=0, description="Largest norm of the dense gradient.")
    embedding_reduce: Literal["mean", "touched", "sum"] = Field(
        default="mean",
        description="What a row's summed gradient is divided by: the examples of the step, those of the batches "
        "that have the id, or nothing.",
    )
    schedule: ScheduleSettings = Field(
        default=ScheduleSettings(), description="How learning rates move over the run, by examples."
    )


class EarlyStopping(Section):
    patience: Count = Field(
        default=2, ge=1, description="Validations without improvement before the run ends."
    )


class Plateau(Section):
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


class Training(Section):
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
    early_stopping: EarlyStopping | None = Field(
        default=None, description="End when checkpoint.best stops improving on the validation data."
    )
    plateau: Plateau | None = Field(
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


_PLACE = "^.+:.+$"  # module:Class
StrategyName = Annotated[
    Text,
    WithJsonSchema({"anyOf": [{"enum": [*STRATEGIES, "auto"]}, {"type": "string", "pattern": _PLACE}]}),
]


def _exchange(value: Any) -> str | dict[str, int | str]:
    try:
        return exchange_of(plain(value))
    except UserError:
        raise ValueError("expected background, {every: 5} (batches) or {every: 2s}") from None


Exchange = Annotated[
    str | dict[str, int | str],
    PlainValidator(_exchange),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["background"]},
                {"type": ["integer", "string"]},
                {
                    "type": "object",
                    "properties": {"every": {"type": ["integer", "string"]}},
                    "required": ["every"],
                },
            ]
        }
    ),
]


class StrategySettings(Named):
    """Settings that are not given are the strategy's own defaults.

    A strategy of one's own (`module:Class`) has the fields of its class: any key is taken here, and `make_strategy`
    says which there are.
    """

    model_config = ConfigDict(extra="allow")  # as far as `_own_settings` lets it
    about_itself: ClassVar[tuple[str, ...]]  # the keys that are no settings of the strategy

    max_lag: Number | None = Field(
        default=None, ge=0, description="gba: steps behind schedule up to which a gradient counts in full."
    )
    decay: Literal["cut", "exponential", "inverse"] | None = Field(
        default=None, description="gba: what becomes of later ones: dropped (cut), or counted less and less."
    )
    divisor: Literal["all", "kept"] | None = Field(
        default=None, description="gba: whether dropped examples shrink the step (all) or not (kept)."
    )
    bound: Count | None = Field(
        default=None, ge=0, description="bounded_staleness: batches a worker may be ahead of the slowest."
    )
    backups: Count | None = Field(
        default=None, ge=1, description="backup_workers: how many of the last gradients are not waited for."
    )
    gradients_per_step: Count | None = Field(
        default=None, ge=1, description="buffered_async: gradients of a step; a global batch if not set."
    )

    exchange: Exchange | None = Field(
        default=None,
        description="easgd, bmuf, model_averaging: background, or in the training loop: {every: 5} batches of each "
        "worker, {every: 2s}. k_step_adam: {every: 10}.",
    )
    merge: Literal["elastic", "delta", "overwrite"] | None = Field(
        default=None,
        description="How what comes back enters a replica: drawn to it, moved by the difference, or replaced.",
    )
    elasticity: Number | None = Field(
        default=None,
        ge=0,
        le=1,
        description="How far an exchange draws a replica (and easgd's centre) along.",
    )
    order: Literal["sequential", "simultaneous"] | None = Field(
        default=None, description="easgd: a replica is drawn to the centre after or before that was moved."
    )
    pause: Seconds | None = Field(default=None, description="Between two exchanges in the background.")
    momentum: Number | None = Field(
        default=None, ge=0, lt=1, description="bmuf: share of the global step before that is kept."
    )
    outer_rate: Number | None = Field(
        default=None, gt=0, description="bmuf: of what the mean has moved, how much is taken."
    )
    nesterov: bool | None = Field(
        default=None, description="bmuf: replicas are drawn to where momentum leads."
    )
    mode: Literal["frozen_v", "params", "params_m_v"] | None = Field(
        default=None,
        description="k_step_adam: what a merge averages: weights and Adam's denominator, weights, or all.",
    )
    warmup_steps: Count | None = Field(
        default=None,
        ge=0,
        description="k_step_adam: batches that are merged one by one at first; max(20, k).",
    )
    workers_per_replica: Count | None = Field(
        default=None,
        ge=1,
        description="How many workers step the same dense replica, without locks (Hogwild).",
    )

    margin: Number | None = Field(
        default=None, gt=0, description="auto: the predicted gain that makes it change: 0.2 is 20 %."
    )
    patience: Count | None = Field(
        default=None,
        ge=1,
        description="auto: steps for which a gain of margin must hold; a larger one, fewer.",
    )
    window: Count | None = Field(default=None, ge=2, description="auto: batches of each worker it looks at.")

    @model_validator(mode="wrap")
    @classmethod
    def _own_settings(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Those of `module:Class` pass by the fields here, which might mean something else by the same name."""
        if not isinstance(given, dict):
            return read(given)
        name, own = given.get(cls.main_key), dict[str, Any]()
        if isinstance(name, str) and ":" in name:
            own = {key: plain(value) for key, value in given.items() if key not in cls.about_itself}
            given = {key: value for key, value in given.items() if key in cls.about_itself}
        section = read(given)
        assert section.model_extra is not None
        if section.model_extra:
            raise ValidationError.from_exception_data(cls.__name__, _unknown(section.model_extra))
        section.model_extra.update({key: value for key, value in own.items() if value is not None})
        return section

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        name, known = super().__get_pydantic_json_schema__(core, handler)["anyOf"]
        about = {key: known["properties"][key] for key in cls.about_itself}
        del known["additionalProperties"]
        place = {**about[cls.main_key], "anyOf": [{"type": "string", "pattern": _PLACE}]}
        required = sorted({cls.main_key, *known.get("required", ())})
        own = {**known, "properties": {**about, cls.main_key: place}, "required": required}
        return {"anyOf": [name, own, {**known, "additionalProperties": False}]}

    def settings(self) -> dict[str, Any]:
        """What the user set, as keyword arguments for the strategy."""
        names = StrategySettings.model_fields
        known = {key: value for key in names if (value := getattr(self, key)) is not None}
        return {**known, **(self.model_extra or {})}


def _unknown(keys: dict[str, Any]) -> list[InitErrorDetails]:
    return [InitErrorDetails(type="extra_forbidden", loc=(key,), input=value) for key, value in keys.items()]


class PlannedSwitch(StrategySettings):
    main_key: ClassVar[str] = "to"
    about_itself: ClassVar[tuple[str, ...]] = ("to", "at")

    to: StrategyName = Field(description="The strategy to change to.")
    at: Point = Field(description="When: after examples (500k), a share (50%), a time (10min) or at `day 3`.")


class Strategy(StrategySettings):
    about_itself: ClassVar[tuple[str, ...]] = ("name", "switch")

    name: StrategyName = Field(
        default="sync",
        description="How workers synchronise; one of your own by its place, `module:Class`, with its own settings.",
    )
    switch: tuple[PlannedSwitch, ...] = Field(
        default=(), description="Changes on the way, such as [{at: 50%, to: gba}]."
    )


class Inject(Section):
    """Slowness on purpose, to see what it costs: each batch is padded to a drawn duration."""

    step: Seconds = Field(default=0.2, description="How long an undisturbed batch takes; more than its work.")
    slow: Texts = Field(default=(), description="Slow workers: 3=5x, 0-3=2x, or for a while: 3=5x@60s-120s.")
    lognormal: Texts = Field(default=(), description="Jitter: 0.3, or of some workers: 3:0.5.")
    bursts: Texts = Field(default=(), description="A share of the batches takes longer: 10%=10x.")
    seed: Count = Field(default=0, ge=0, description="Of the draws.")

    def cluster(self, workers: int) -> cluster_model.Cluster:
        return cluster_words.cluster(
            workers, self.step, slow=self.slow, lognormal=self.lognormal, bursts=self.bursts, seed=self.seed
        )


class Resources(Section):
    """What Ray reserves for each process."""

    coordinator_cpus: Number = Field(default=1.0, ge=0, description="CPUs of the coordinator.")
    shard_cpus: Number = Field(default=1.0, ge=0, description="CPUs of a shard.")
    worker_cpus: Number = Field(default=1.0, ge=0, description="CPUs of a worker.")
    worker_gpus: Number = Field(default=0.0, ge=0, description="GPUs of a worker. Not tried by us.")


class Cluster(Section):
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
    inject: Inject | None = Field(default=None, description="Slow workers down on purpose, for experiments.")
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
        default="auto",
        description="How sync sums dense gradients: on the servers, among the workers, or what is faster here.",
    )
    trusted_network: bool = Field(
        default=False,
        description="Only you reach the network: all-reduce may go between machines, unencrypted.",
    )
    patience: Seconds = Field(
        default=30.0, gt=0, description="A process that is silent for so long is lost; others do its work."
    )
    placement: Literal["pack", "spread"] = Field(
        default="pack", description="Processes on few machines, or over many."
    )
    resources: Resources = Field(
        default=Resources(), description="CPUs and GPUs that Ray reserves for a process, by its role."
    )


class Checkpoints(Section):
    every: MaybeEvery = Field(
        default=Every(seconds=600.0),
        description="Save after this time (10min), so many steps (500), a share (10%), or none: at the end.",
    )
    keep: Count = Field(default=3, ge=1, description="How many of the newest are kept, beside best.")
    best: Literal["auc", "logloss"] | None = Field(
        default="auc", description="Keep the best by this measure."
    )
    path: Text = Field(default="runs", description="The folder that run folders are made in.")


class Config(Section):
    """What a run is."""

    name: Text | None = Field(default=None, description="Names the run folder; the file's name if not set.")
    data: Data = Field(default=Data(), description="Where the click log is and what its columns mean.")
    features: tuple[FeatureEntry, ...] | None = Field(
        default=None,
        description="The columns that the model sees. Columns not named are ignored, and listed.",
    )
    model: Model = Field(default=Model(), description="The network.")
    optimizer: Optimizers = Field(default=Optimizers(), description="How weights move.")
    train: Training = Field(default=Training(), description="How long, in what steps, how often measured.")
    strategy: Strategy = Field(default=Strategy(), description="How workers synchronise.")
    cluster: Cluster = Field(default=Cluster(), description="Where workers run.")
    checkpoint: Checkpoints = Field(default=Checkpoints(), description="What is saved, and where.")
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
        labels = tuple(columns.Label(c.column, c.positive, c.task) for c in self.data.label or ())
        return columns.Schema(
            features,
            labels or (known.labels if known else (columns.Label("label"),)),
            time=self.data.time or (known.time if known else None),
            group=self.data.group,
            weight=self.data.weight,
            negatives_kept=self.data.negatives_kept,
            keep=self.data.keep,
            null=self.data.csv.null,
        )

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
