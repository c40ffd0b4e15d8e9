"""`python -m gearshift` and the `gearshift` command."""

from gearshift.cli import main

if __name__ == "__main__":
    main()
