"""The parts of bench_switching.py.

cases       what is trained: models, rates for sync and the grids they came from
ablations   strategies that answer "what if": gba dropped at random or by staleness, sync was a step late
base        an arm, its score, and the base in sync that the arms of a seed fork from
days        a seed on the generated log, day after day
epochs      a seed on Frappe, epoch after epoch
jobs        a seed in a process of its own
plan        which arms a case has, and its tuning
summary     paired differences and their intervals, in lines and in figures
"""
