"""The configuration of a run: a typed tree with a description per field, read from YAML and `key=value` overrides.

    section.py      what every section has in common: a dataclass that declares its settings, or a `Section`
    data.py         the `data` section
    features.py     the `features` list: an entry for each kind of feature
    choices.py      sections that choose a rule by name: their keys are the settings of the rules
    optimizers.py   the `optimizer` section
    strategies.py   the `strategy` section
    disturbances.py the slowness that `cluster.inject` and the commands name: 3=5x
    tree.py         all other sections and the tree itself; a `Config` that exists is consistent in itself
    checks.py       constraints between fields, each with its fix
    document.py     YAML text to values that remember their line
    overrides.py    dotted `key=value`, and its short forms
    strategy_argument.py, optimizer_argument.py   a strategy or optimizer with settings as one word of the command line
    load.py         document + overrides -> Config; every error names file, line and the nearest valid name
    files.py        checks that the paths in a config exist
    few_steps.py    the least number of steps of a run, and a batch small enough to reach it
    reference.py    docs/config.md and the JSON schema for editors, from the declarations of the settings
    build.py        config -> objects, and the start of the run; the only one that imports torch

Importing the package loads neither torch nor numpy nor pyarrow.
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
