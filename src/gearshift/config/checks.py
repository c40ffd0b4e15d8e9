"""Checks between the fields of a config; each error is one message with its fix.

Pure functions of a Config. `first_misfit` applies to every Config; `first_gap` only to one that was read from a file,
because a run started from Python may provide its data and schema itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gearshift.config.section import keys_of
from gearshift.data.readers.formats import SELF_DESCRIBING
from gearshift.data.row_lifetime import HasLifetime, lifetime_misfits
from gearshift.engine.ray.cluster_settings import ConnectionSettings
from gearshift.errors import UserError, nearest_name
from gearshift.settings.declaration import declarations
from gearshift.sync.registry import resolve, shared_replicas_need_threads

if TYPE_CHECKING:
    from gearshift.config.choices import ChoiceSection
    from gearshift.config.features import FeatureEntry, FieldEntry, NumericFeature
    from gearshift.config.tree import Config


@dataclass(frozen=True)
class Misfit:
    path: tuple[str | int, ...]  # the value that is wrong
    sentence: str


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean `x`?`, or nothing."""
    close = nearest_name(word, known)
    return f" Did you mean `{close}`?" if close else ""


def first_misfit(config: Config) -> Misfit | None:
    return next(_misfits(config), None)


def first_gap(config: Config) -> Misfit | None:
    return next(_gaps(config), None)


def _gaps(config: Config) -> Iterator[Misfit]:
    data = config.data
    if data.train is None and data.synthetic is None:
        yield Misfit(
            ("data",), "data.train is missing: name the files to train on, such as train: clicks.csv"
        )
    if config.features is None and data.synthetic is None and data.format not in SELF_DESCRIBING:
        problem = (
            "features is missing: name the columns that the model sees (gearshift init FILE guesses them)"
        )
        yield Misfit((), problem)


def _misfits(config: Config) -> Iterator[Misfit]:
    yield from _version_misfits(config)
    yield from _source_misfits(config)
    yield from _split_misfits(config)
    yield from _label_misfits(config)
    yield from _feature_misfits(config)
    yield from _model_misfits(config)
    yield from _optimizer_misfits(config)
    yield from _validation_misfits(config)
    yield from _strategy_misfits(config)
    yield from _storage_misfits(config)


def _version_misfits(config: Config) -> Iterator[Misfit]:
    """Settings of later versions, which are refused rather than ignored."""
    cluster = config.cluster
    if cluster.engine not in ENGINES:
        problem = f"engine `{cluster.engine}` is not in this version; it has threads and ray"
        yield Misfit(("cluster", "engine"), problem)
    if cluster.engine != "ray":
        for name in RAY_ONLY:  # a saved config contains all of them
            if getattr(cluster, name) != keys_of(type(cluster))[name].default:
                yield Misfit(
                    ("cluster", name), f"cluster.{name} is for engine: ray; engine is {cluster.engine}"
                )
    if config.log:
        problem = f"log `{config.log[0]}` is not in this version; metrics are in the run's metrics.jsonl"
        yield Misfit(("log",), problem)


ENGINES = ("threads", "ray")
RAY_ONLY = (*declarations(ConnectionSettings), "placement", "resources")  # of `cluster`


def _source_misfits(config: Config) -> Iterator[Misfit]:
    data = config.data
    for name in ("train", "valid", "test", "split"):
        if data.synthetic is not None and getattr(data, name) is not None:
            problem = f"data.{name} and data.synthetic are both given; the generated log has its own days"
            yield Misfit(("data", name), f"{problem}: remove one of them")
    if data.synthetic is not None and config.features is not None:
        problem = "the generated log (data.synthetic) has its own features; remove `features`"
        yield Misfit(("features",), problem)
    if data.csv.header and data.csv.columns is not None:
        problem = "data.csv.header is true and data.csv.columns is given; remove one of them"
        yield Misfit(("data", "csv", "columns"), problem)


def _split_misfits(config: Config) -> Iterator[Misfit]:
    data, split = config.data, config.data.split
    if split is None:
        return
    for name in ("valid", "test"):
        if getattr(data, name) is not None and getattr(split, name) is not None:
            problem = f"data.{name} and data.split.{name} are both given; keep one of them"
            yield Misfit(("data", name), problem)
        if split.by != "time" and isinstance(getattr(split, name), str):
            cut = getattr(split, name)
            problem = f"data.split.{name} is `{cut}`; a split by {split.by} holds out a share, such as 10%"
            yield Misfit(("data", "split", name), problem)
    if split.by not in ("time", "end", "hash") and split.hash_column is None:
        problem = (
            f"data.split.by is `{split.by}`; expected time, end, hash or hash(column), such as hash(user_id)"
        )
        yield Misfit(("data", "split", "by"), problem)
    if split.by == "time" and "time" not in data.stated_roles and data.format != "avazu":
        yield Misfit(("data", "split", "by"), "a split by time needs the time column: set data.time")


def _label_misfits(config: Config) -> Iterator[Misfit]:
    if config.data.label is None:
        return
    labels = config.labels()
    if not labels or len({label.task for label in labels}) < len(labels):
        problem = "data.label needs one column per task, each task with its own name"
        yield Misfit(("data", "label"), problem)
    columns = {label.column for label in labels}
    for i, entry in enumerate(config.features or ()):
        if entry.name in columns:
            problem = f"`{entry.name}` is the label, and the model would see the answer; remove this feature"
            yield Misfit(("features", i, "name"), problem)


def _feature_misfits(config: Config) -> Iterator[Misfit]:
    if config.features is None:
        return
    if not config.features:
        yield Misfit(("features",), "features is empty: name at least one column")
    by_name: dict[str, FeatureEntry] = {}
    for i, entry in enumerate(config.features):
        if entry.name in by_name:
            yield Misfit(("features", i, "name"), f"feature `{entry.name}` is named twice; remove one")
        by_name[entry.name] = entry
    for i, entry in enumerate(config.features):
        if entry.type == "numeric":
            yield from _numeric_misfits(i, entry)
        elif entry.type != "vector":
            if entry.column().share_embedding is not None:
                yield from _sharing_misfits(i, entry, by_name)
            yield from _lifetime_misfits(
                i, entry, by_name, "time" in config.data.stated_roles or config.data.format in SELF_DESCRIBING
            )


def _numeric_misfits(i: int, entry: NumericFeature) -> Iterator[Misfit]:
    stated = entry.stated()
    bucketized = not isinstance(stated.transform, str)
    if stated.dim is not None and not bucketized:
        problem = f"features[{i}].dim: a plain number has no embedding; remove dim, or bucketize it"
        yield Misfit(("features", i, "dim"), problem)
    if stated.missing is not None and bucketized:
        problem = (
            f"features[{i}].missing: bucketize gives missing values a bucket of their own; remove `missing`"
        )
        yield Misfit(("features", i, "missing"), problem)


def _lifetime_misfits(
    i: int, entry: FieldEntry, by_name: Mapping[str, FeatureEntry], has_time: bool
) -> Iterator[Misfit]:
    field = entry.column()
    owner = by_name.get(field.share_embedding or "")
    owner_column = None if owner is None or owner.type in ("numeric", "vector") else owner.column()
    for name, problem in lifetime_misfits(field, cast(HasLifetime | None, owner_column), has_time):
        yield Misfit(("features", i, name), f"features[{i}].{name}: {problem}")


def _sharing_misfits(i: int, entry: FieldEntry, by_name: Mapping[str, FeatureEntry]) -> Iterator[Misfit]:
    field = entry.column()
    shared = str(field.share_embedding)
    owners: dict[str, Any] = {
        n: e for n, e in by_name.items() if e.type not in ("numeric", "vector") and e is not entry
    }
    owner = owners.get(shared)
    where = ("features", i, "share_embedding")
    if owner is None:
        problem = f"share_embedding names `{shared}`, which is not another feature with an embedding"
        yield Misfit(where, f"{problem}.{nearest(shared, owners)} ({', '.join(owners)})")
    elif owner.share_embedding is not None:
        problem = (
            f"share_embedding names `{shared}`, which shares `{owner.share_embedding}` itself; name that"
        )
        yield Misfit(where, problem)
    elif field.dim is not None and field.dim != owner.dim:
        problem = f"features[{i}].dim is not that of `{shared}`, whose embedding it shares; remove dim"
        yield Misfit(("features", i, "dim"), problem)


def _model_misfits(config: Config) -> Iterator[Misfit]:
    model = config.model
    known = model.rules[model.name]
    for setting in model.settings():
        if setting not in known:
            problem = (
                f"model {model.name} has no setting `{setting}` ({', '.join(sorted(known)) or 'it has none'})"
            )
            yield Misfit(
                ("model", setting), f"{problem}; remove it, or write model={model.name} for its defaults"
            )
    yield from _din_misfits(config)


def _din_misfits(config: Config) -> Iterator[Misfit]:
    if config.model.name != "din" or config.features is None:
        return
    settings = config.model.settings()
    for key, wanted in (("history", "sequence"), ("target", "categorical")):
        known = [entry.name for entry in config.features if entry.type == wanted]
        if not known:
            problem = (
                f"din needs a {wanted} feature for its {key}, and there is none; add one, or use model=dnn"
            )
            yield Misfit(("model", "name"), problem)
        for name in settings.get(key, ()):
            if name not in known:
                problem = f"model.{key} names `{name}`, which is not a {wanted} feature"
                yield Misfit(("model", key), f"{problem}.{nearest(name, known)} ({', '.join(known)})")


def _optimizer_misfits(config: Config) -> Iterator[Misfit]:
    rates, scaling = config.optimizer, config.optimizer.scaling
    if scaling.rule != "constant" and scaling.base_batch is None:
        problem = f"batch_rule `{scaling.rule}` scales rates from the batch they were tuned for"
        yield Misfit(("optimizer", "batch_rule"), f"{problem}: name it, such as optimizer.base_batch=1024")
    if scaling.rule == "constant" and scaling.base_batch is not None:
        problem = "optimizer.base_batch has no effect without a rule: choose optimizer.batch_rule"
        yield Misfit(("optimizer", "base_batch"), f"{problem} (linear, square_root, cowclip), or remove it")
    if rates.rows.trust != "dense_only" and not rates.dense.name.startswith("vr_"):
        problem = (
            f"row_trust `{rates.rows.trust}` applies the trust of a vr_* rule to rows, but optimizer.dense is"
        )
        yield Misfit(
            ("optimizer", "row_trust"),
            f"{problem} {rates.dense.name}: choose one, such as vr_adam, or remove it",
        )
    if rates.row_clip is not None and rates.rows.reduce != "mean":
        problem = f"row_clip needs the mean gradient of a row, but embedding_reduce is {rates.rows.reduce}"
        yield Misfit(("optimizer", "row_clip"), f"{problem}: remove one of them")
    for part in ("dense", "embeddings", "linear"):
        optimizer: ChoiceSection | None = getattr(rates, part)
        if optimizer is None:
            continue
        known = optimizer.rules[optimizer.name]
        for setting in optimizer.settings():
            if setting not in known:
                problem = (
                    f"{optimizer.name} has no setting `{setting}` ({', '.join(sorted(known))}); remove it"
                )
                yield Misfit(("optimizer", part, setting), problem)


def _validation_misfits(config: Config) -> Iterator[Misfit]:
    data = config.data
    if data.train is None or data.valid is not None or data.split is not None:
        return
    for name in ("early_stopping", "plateau"):
        if getattr(config.train, name) is not None:
            yield Misfit(("train", name), f"train.{name} needs validation data: set data.valid or data.split")


def _storage_misfits(config: Config) -> Iterator[Misfit]:
    if config.memory is not None:
        return
    for key, declared in keys_of(type(config.storage)).items():
        if getattr(config.storage, key) != declared.default:
            problem = f"storage.{key} is for rows that do not fit in `memory`, which is not set"
            yield Misfit(("storage", key), f"{problem}: set it too, such as memory=50%")


def _strategy_misfits(config: Config) -> Iterator[Misfit]:
    """Each strategy has its own settings, and must be able to divide the global batch among the workers."""
    strategy, train = config.strategy, config.train
    if train.batch is not None and train.micro_batches > 1:
        problem = (
            "train.batch and train.micro_batches both set the size of a worker's batches; remove one of them"
        )
        yield Misfit(("train", "micro_batches"), problem)
    requested: list[tuple[tuple[str | int, ...], str, dict[str, Any]]] = [
        (("strategy",), strategy.name, strategy.settings())
    ]
    requested += [(("strategy", "switch", i), s.to, s.settings()) for i, s in enumerate(strategy.switch)]
    for path, name, settings in requested:
        if settings.get("workers_per_replica", 1) > 1 and config.cluster.engine == "ray":
            yield Misfit(path, shared_replicas_need_threads(name))
        try:
            resolve(
                name,
                settings,
                train.global_batch,
                config.cluster.counts.count,
                train.batch,
                train.micro_batches,
            )
        except UserError as error:
            yield Misfit(path, str(error))
    for i, switch in enumerate(strategy.switch):
        for before in strategy.switch[:i]:
            if not switch.at.after(before.at):
                problem = f"the switch to {switch.to} at {switch.at} is listed after the one at {before.at}"
                yield Misfit(
                    ("strategy", "switch", i, "at"),
                    f"{problem}; list switches in the order in which they happen",
                )
    if config.cluster.inject is not None:
        try:
            config.cluster.inject.cluster(config.cluster.counts.count, batch=1)
        except UserError as error:
            yield Misfit(("cluster", "inject"), str(error))
