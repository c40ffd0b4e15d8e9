"""What a run is: a typed tree with a sentence per field, read from YAML and `key=value` overrides.

    units.py   10min, 16GiB, 10%, 2M: how people write amounts
    section.py      what every section has in common
    data.py         the `data` section
    features.py     the `features` list, and the built-in ones of Criteo and Avazu
    tree.py         all other sections and the tree itself; a `Config` that exists is consistent in itself
    checks.py       what must hold between fields, each with its fix
    document.py     YAML text to values that remember their line
    overrides.py    dotted `key=value`, and its short forms
    load.py         document + overrides -> Config; every complaint says file, line and nearest name
    files.py        do the paths that a config names exist?
    reference.py    docs/config.md and the JSON schema for editors, from the descriptions

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
