"""`python -m gearshift` and the `gearshift` command."""

import signal


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has started yet that Ctrl-C could interrupt
    from gearshift.cli.app import main as carry_out

    carry_out()


if __name__ == "__main__":
    main()
