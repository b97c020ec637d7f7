"""The one kind of error that a command shows without a traceback, and how it is shown."""

import contextlib
import sys


class UsageError(ValueError):
    """Bad input from a user: the message is one line that says what, where, what was expected and what to do.

    The command line prints the message and exits with code 2; Python callers get an ordinary `ValueError`.
    """


@contextlib.contextmanager
def shown_in_one_line(prefix):
    """A command's block: bad input ends the process with code 2 and a line on standard error that begins with `prefix`.

    Bad input is a `UsageError`, or an `OSError` about a file that was named; other tracebacks are for developers.
    """
    try:
        yield
    except UsageError as error:
        message = str(error)
    except OSError as error:
        if error.filename is None:
            raise
        message = f"{error.filename} cannot be used ({error.strerror}). Give a path that can be read and written."
    else:
        return
    print(f"{prefix}: {message}", file=sys.stderr)
    sys.exit(2)
