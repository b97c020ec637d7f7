"""The one kind of error that a command shows without a traceback."""


class UsageError(ValueError):
    """Bad input from a user: the message is one line that says what, where, what was expected and what to do.

    The command line prints the message and exits with code 2; Python callers get an ordinary `ValueError`.
    """
