"""The one exception that speaks to the user: what happened, where, what to do, in one sentence."""


class UserError(ValueError):
    """A mistake in a file, a config or a command. The CLI prints it without a traceback and exits with 2."""
