"""A run is a folder: its ownership, logs, checkpoints and report, and how it is watched, controlled and resumed."""
