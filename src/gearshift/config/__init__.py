"""The configuration of a run: a typed tree with a description per field, read from YAML and `key=value` overrides.

    section.py      what every section has in common: a dataclass that declares its settings, or a `Section`
    data.py         the `data` section
    features.py     the `features` list, and the built-in ones of Criteo and Avazu
    choices.py      sections that choose a rule by name: their keys are the settings of the rules
    optimizers.py   the `optimizer` section
    strategies.py   the `strategy` section
    tree.py         all other sections and the tree itself; a `Config` that exists is consistent in itself
    checks.py       constraints between fields, each with its fix
    document.py     YAML text to values that remember their line
    overrides.py    dotted `key=value`, and its short forms
    load.py         document + overrides -> Config; every error names file, line and the nearest valid name
    files.py        checks that the paths in a config exist
    reference.py    docs/config.md and the JSON schema for editors, from the declarations of the settings

Imports neither torch nor numpy nor pyarrow.
"""

from gearshift.config.data import SplitSection
from gearshift.config.files import check_files
from gearshift.config.load import config_from, load_config, load_schema
from gearshift.config.tree import SCHEMA_FILE, Config

__all__ = [
    "SCHEMA_FILE",
    "Config",
    "SplitSection",
    "check_files",
    "config_from",
    "load_config",
    "load_schema",
]
