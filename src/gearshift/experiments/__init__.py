"""Comparisons of many runs: strategies with paired seeds, optimizers at growing batch sizes, and plots of both."""
