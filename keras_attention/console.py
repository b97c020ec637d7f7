"""A typer application run as a command: UTF-8 out, one line for bad input, 130 for Ctrl-C."""

import sys

from keras_attention.errors import printable, shown_in_one_line


def plain_app(**options):
    """A `typer.Typer` whose help is plain text: in a table of 80 columns the longer names would be cut short."""
    import typer

    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, **options)


def run_app(build, argv, prefix, **options):
    """Runs a command.

    Args:
        build: function that makes the `typer.Typer`; what it imports may take seconds, in which Ctrl-C counts too.
        argv: its arguments, or None for those of the process.
        prefix: what the line of an error begins with.
        **options: for the call of the application, such as `prog_name`.

    Raises:
        SystemExit: with code 2 and one line on standard error for bad input, a wrong flag included; 130 after Ctrl-C.
            A command that ends well returns.
    """
    import typer

    for stream in (sys.stdout, sys.stderr):
        # Texts of users and models are UTF-8 whatever the terminal's locale says, on the way out as on the way in.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    code = 0
    try:
        with shown_in_one_line(prefix):
            code = build()(args=argv, standalone_mode=False, **options)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except typer.TyperException as error:
        code = 2
        # Without a message it is a command without arguments, whose help has been printed.
        if message := printable(error.format_message()):
            print(f"{prefix}: {message}", file=sys.stderr)
    if code == 130:
        print(f"{prefix}: interrupted", file=sys.stderr)
    if code:
        sys.exit(code)
