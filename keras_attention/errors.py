"""The one kind of error that a command shows without a traceback, and how it is shown."""

import contextlib
import os
import re
import sys

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class UsageError(ValueError):
    """Bad input from a user: the message is one line that says what, where, what was expected and what to do.

    The command line prints the message and exits with code 2; Python callers get an ordinary `ValueError`.
    """


def reason_of(error, most=200):
    """What a library says in its error, as part of one line: no colours of a terminal, no list of arguments."""
    # Keras appends the arguments of the call, over many lines.
    text = _ANSI.sub("", str(error)).partition("Arguments received by")[0]
    return " ".join(text.split())[:most] or type(error).__name__


def printable(text):
    """The text as one line that no terminal acts on: line ends become spaces, other control characters escapes."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], re.sub(r"\s*[\r\n]+\s*", " ", text.strip()))


@contextlib.contextmanager
def shown_in_one_line(prefix):
    """A command's block: bad input ends the process with code 2 and a line on standard error that begins with `prefix`.

    Bad input is a `UsageError`, what the system says of files and disks (an `OSError`), or a lack of memory; other
    tracebacks are for developers. A reader of standard output that has left, as `head` does, is no error.
    """
    try:
        yield
        sys.stdout.flush()  # a full disk is seen here, and not by the interpreter at its end
    except BrokenPipeError:
        _drop_output()
        return
    except UsageError as error:
        message = str(error)
    except MemoryError as error:
        message = f"there is not enough memory ({reason_of(error)}). Choose smaller sizes."
    except OSError as error:
        if error.filename is None:
            _drop_output()
            message = f"the output cannot be written ({error.strerror or error}). Free space, then start again."
        else:
            message = f"{error.filename} cannot be used ({error.strerror}). Give a path that can be read and written."
    else:
        return
    print(f"{prefix}: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def _drop_output():
    """Sends what standard output still holds to nowhere: the interpreter would fail on it once more at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
