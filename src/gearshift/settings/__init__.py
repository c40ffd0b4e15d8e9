"""How a setting is declared: once, as a field of the frozen dataclass that uses its value.

    @dataclass(frozen=True)
    class Plateau:
        factor: Share = setting(0.1, "Multiply the learning rates by this at a plateau.", above=0, below=1)

declaration.py  `setting`: default, description and bounds of a field; `declarations`: the fields of a dataclass
tolerated.py    fail, or {skip: n}: how many bad things are skipped
units.py        how users write amounts: 10min, 16GiB, 10%, 2M; a type for each, such as Share

The config tree, its checks, the JSON schema, docs/config.md and docs/api.md are derived from these declarations.
Does not import pydantic, which only the config needs and which would slow down `gearshift --help`.
"""
