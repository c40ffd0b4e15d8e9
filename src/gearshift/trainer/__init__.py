"""`gs.Trainer`: settings, and the start of a run on the chosen engine."""
