"""Which ids of a feature get rows, and how long rows live: the settings, and their rules for shared embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from gearshift.errors import UserError
from gearshift.settings.declaration import REQUIRED, Meaning, setting
from gearshift.settings.units import (
    INTEGER,
    SECONDS,
    STRING,
    Count,
    Number,
    Unit,
    either,
    parse_amount,
    parse_count,
)

MOST_COUNT = 255  # of the counters of occurrences

MIN_COUNT = Meaning(
    "An id gets an embedding when it has occurred this often; until then it has its first values.",
    at_least=1,
    at_most=MOST_COUNT,
)
ADMIT = Meaning(
    "The probability with which an occurrence of a new id gives it an embedding.", above=0, at_most=1
)
EXPIRE = Meaning("When an embedding that is not used any more is removed.")


def parse_after(value: Any) -> int | str:
    """A number of steps, or a duration as it is written."""
    amount = parse_amount(value)
    if isinstance(value, str) and amount is not None and amount[1] in SECONDS and amount[0] > 0:
        return value.strip()
    if amount is not None and amount[0] <= 0 and amount[1] in ("", *SECONDS):
        raise ValueError("it must be more than 0, such as 100000 (steps) or 30d")
    try:
        return parse_count(value)
    except ValueError:
        raise ValueError("expected a number of steps, such as 100000, or a duration, such as 30d") from None


After = Annotated[int | str, Unit(parse_after, either(INTEGER, STRING))]


@dataclass(frozen=True)
class Expire:
    """A row is removed when it has not been trained for so long, and meets the other conditions, if there are any."""

    after: After = setting(
        REQUIRED,
        "A row is removed when it was not trained for so long: steps (100000), or time of the data (30d).",
    )
    occurrences_below: Count | None = setting(
        None, "Only if its id has occurred less often than this, since it has a row.", at_least=1
    )
    norm_below: Number | None = setting(
        None, "Only if the Euclidean norm of the embedding is below this.", above=0
    )

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "after", parse_after(self.after))
        except ValueError as error:
            raise UserError(f"Expire(after={self.after!r}): {error}") from None
        if self.occurrences_below is not None and self.occurrences_below < 1:
            raise UserError(f"Expire(occurrences_below={self.occurrences_below}): at least 1")
        if self.norm_below is not None and not self.norm_below > 0:
            raise UserError(f"Expire(norm_below={self.norm_below}): above 0")

    @property
    def seconds(self) -> float | None:
        """None if `after` counts steps."""
        if isinstance(self.after, int):
            return None
        amount = parse_amount(self.after)
        assert amount is not None, "checked when it was made"
        return amount[0] * SECONDS[amount[1]]


class HasLifetime(Protocol):
    """A feature with embedding rows whose lifetime may be set."""

    @property
    def name(self) -> str: ...
    @property
    def share_embedding(self) -> str | None: ...
    @property
    def min_count(self) -> int | None: ...
    @property
    def admit(self) -> float | None: ...
    @property
    def expire(self) -> Expire | None: ...


def lifetime_misfits(
    feature: HasLifetime, owner: HasLifetime | None, has_time: bool
) -> list[tuple[str, str]]:
    """(setting, problem) of what does not fit; `owner` has the table that the feature shares."""
    problems = []
    if feature.min_count is not None and feature.admit is not None:
        problems.append(("admit", "min_count and admit both say which ids get an embedding; remove one"))
    if feature.expire is not None and feature.expire.seconds is not None and not has_time:
        after = feature.expire.after
        problems.append(
            (
                "expire",
                f"expire.after={after} needs data.time: name the time column, or give a number of steps",
            )
        )
    for name in ("min_count", "admit", "expire") if owner is not None else ():
        own = getattr(feature, name)
        if own is not None and own != getattr(owner, name):
            shared = f"`{feature.name}` shares the embedding of `{feature.share_embedding}`"
            problems.append((name, f"{shared}, whose {name} counts; remove {name} here, or set it there"))
    return problems


def check_lifetimes(features: Sequence[HasLifetime], has_time: bool) -> None:
    """Checks features that were made in Python."""
    owners = {f.name: f for f in features}
    for feature in features:
        count, admit = feature.min_count, feature.admit
        if count is not None and not 1 <= count <= MOST_COUNT:
            raise UserError(f"feature `{feature.name}`: min_count={count} must be 1 to {MOST_COUNT}")
        if admit is not None and not 0 < admit <= 1:
            raise UserError(f"feature `{feature.name}`: admit={admit} must be above 0 and at most 1")
        owner = None if feature.share_embedding is None else owners.get(feature.share_embedding)
        for _, problem in lifetime_misfits(feature, owner, has_time):
            raise UserError(f"feature `{feature.name}`: {problem}")
