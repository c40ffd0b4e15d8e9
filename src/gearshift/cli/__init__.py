"""What each command does, one file each; `cli/app.py` imports a file when its command runs.

cli/terminal.py and cli/progress.py say how things are printed; cli/arguments.py turns names on the command line into runs,
configs and data.
"""
