"""A run is a folder: who owns it, what it logs, saves, reports, and how it is watched, steered and resumed."""
