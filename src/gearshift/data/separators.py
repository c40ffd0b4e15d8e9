"""Detects a wrong separator of a bag or sequence, which would turn every list into one meaningless value."""

from __future__ import annotations

from gearshift.data.examples import Examples, FilteredExamples, HeadExamples, RawExamples
from gearshift.data.infer.profile import SEPARATORS, Profile, sample_profiles
from gearshift.errors import UserError


def check_separators(examples: Examples) -> None:
    """Refuse a separator that no value contains if another one splits the values into recurring parts."""
    while isinstance(examples, HeadExamples | FilteredExamples):
        examples = examples.inner
    fields = {f.name: f for f in examples.schema.ragged_fields}
    if not isinstance(examples, RawExamples) or not fields:
        return
    profiles, sampled, _ = sample_profiles(examples.source, tuple(fields))
    for profile in profiles:
        stated = fields[profile.name].separator
        if profile.is_list or any(stated in value for value in profile.values):
            continue
        likely = _likely_separator(profile, stated)
        if likely is not None:
            raise UserError(
                f"feature `{profile.name}`: no value contains {stated!r} in the first {sampled:,} examples; "
                f'the separator seems to be {likely!r} (set separator: "{likely}").'
            )


def _likely_separator(profile: Profile, stated: str) -> str | None:
    for separator in SEPARATORS:
        if separator != stated:
            parts = profile.parts(separator)
            if parts.share > 0.1 and len(parts.counts) < sum(parts.counts.values()) / 2:
                return separator
    return None
