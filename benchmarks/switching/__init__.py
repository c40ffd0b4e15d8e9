"""The parts of bench_switching.py.

ablations   strategies that are there to be worse: what if gba dropped at random, or by staleness, or sync was late
cases       the models and their data: what is trained, with which rates, and the grids these came from
arms        one seed: a base in sync, and every arm from there
summary     paired differences and their intervals, in lines and in figures
"""
