"""What each command does, one file each; `cli.py` imports a file when its command runs.

terminal.py and progress.py say how things are printed; opening.py turns names on the command line into runs,
configs and data.
"""
