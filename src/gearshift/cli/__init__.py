"""The command line: one file per command, imported when the command runs; app.py lists the commands.

terminal.py and progress.py print; arguments.py resolves names on the command line to runs, configs and data.
"""
