"""A dataclass of options as a typer command."""

import inspect
from dataclasses import MISSING, fields
from typing import Annotated, get_type_hints

import typer

from keras_attention.errors import shown_in_one_line
from keras_attention.training.run.run_options import flag_name


def typer_command(options_class, run, doc):
    """A function that typer can take as a command: one flag for each field of the dataclass.

    Args:
        options_class: dataclass whose fields hold their help in `metadata["help"]`.
        run: function of `given`, the dict of the options that stood on the command line and no others; a default is
            not among them, so that resuming can tell "not given" from "given and equal to the default".
        doc: help text of the command.

    Raises:
        SystemExit: by the command, with the shell's code for an interruption: 130 after Ctrl-C.
    """
    types = get_type_hints(options_class)
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for option in fields(options_class):
        switch = [] if option.default is True else [flag_name(option.name)]  # "--x/--no-x" only where x is the default
        declared = typer.Option(*switch, help=option.metadata["help"])
        parameters.append(
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=... if option.default is MISSING else option.default,
                annotation=Annotated[types[option.name], declared],
            )
        )

    def command(context, **values):
        given = {n: v for n, v in values.items() if context.get_parameter_source(n).name == "COMMANDLINE"}
        try:
            run(given)
        except KeyboardInterrupt as interruption:
            # The shell's code for the signal; typer would make it 1.
            raise SystemExit(getattr(interruption, "exit_code", 130)) from None

    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = doc
    return command


def run_alone(command, argv, name):
    """Run a typer command as a program of its own.

    Args:
        command: function as `typer_command` makes it.
        argv: its arguments, or None for those of the process.
        name: the program's name in its help.

    Raises:
        SystemExit: 2 after a `UsageError`, whose line goes to standard error, or a wrong flag; 130 after Ctrl-C.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        with shown_in_one_line("error"):
            app(args=argv, prog_name=name)
    except SystemExit as end:
        if end.code:
            raise
