"""Infers the meaning of a log's columns, each with a reason. `gearshift init` prints and writes the result."""
