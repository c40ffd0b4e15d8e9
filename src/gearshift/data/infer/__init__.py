"""Guesses what the columns of a log mean, each with its reason: what `gearshift init` prints and writes."""
