"""The one kind of error that a command shows without a traceback."""


class UsageError(ValueError):
    """Bad input from a user: the message is one line that says what, where, what was expected and what to do.

    The command line prints the message and exits with code 2; Python callers get an ordinary `ValueError`.
    """


def message_for_users(error):
    """The line that a command prints in place of a traceback, or None where the traceback belongs to the developers.

    Args:
        error: a `UsageError`; or an `OSError`, which is bad input where it is about a file that was named.
    """
    if isinstance(error, UsageError):
        return str(error)
    if error.filename is None:
        return None
    return f"{error.filename} cannot be used ({error.strerror}). Give a path that can be read and written."
