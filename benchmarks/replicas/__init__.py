"""What bench_shadow.py, bench_kstep.py and bench_all_strategies.py share.

arms        one arm trained in virtual time: a strategy with its rates on a cluster, scored on the day after
"""
