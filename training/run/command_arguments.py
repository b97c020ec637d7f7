"""Training as a command: a dataclass of options as flags, and what is printed."""

import functools
import inspect
from dataclasses import MISSING, fields
from typing import Annotated, get_type_hints

import typer

from keras_attention.console import plain_app, run_app
from keras_attention.errors import UsageError
from keras_attention.inference.folders import run_kind
from keras_attention.training.run.config_file import with_config_file
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.run.run_options import flag_name


def training_command(options_class, train, doc):
    """The command that trains with options of a class, as typer takes it, and as a program of its own.

    Args:
        options_class: subclass of `RunOptions`.
        train: function of such options that returns the content of metrics.json; the program bears the name of the
            package that it stands in.
        doc: help text of the command.

    Returns:
        `(command, main)`: for `typer.Typer.command`, and a function of the arguments, by default those of the process.
    """

    def run(given):
        options = given_options(options_class, given)
        if not options.resume:  # a finished run does without
            options.refuse_missing()
        for name, value in train(options).items():
            print(f"{name:36} {value:,.4f}" if isinstance(value, float) else f"{name:36} {value:,}")

    command = typer_command(options_class, run, doc)
    return command, functools.partial(_run_alone, command, train.__module__.rpartition(".")[0])


def given_options(options_class, given):
    """The options of a command: those of the command line, on top of the stored ones where a run is resumed.

    Raises:
        UsageError: a value is out of range; the run to resume is of another kind.
    """
    if not given.get("resume"):
        return options_class(**given)
    folder = RunFolder(given["out"])
    stored = folder.config_to_resume()
    if run_kind(stored) != options_class.kind:
        raise UsageError(
            f"{folder} holds a run of the kind {run_kind(stored)}, and this command trains the kind "
            f"{options_class.kind}. Resume it with the command that started it."
        )
    return options_class.resumed(stored.get("options", {}), given)


def typer_command(options_class, run, doc):
    """A function that typer can take as a command: one flag for each field of the dataclass.

    Args:
        options_class: dataclass whose fields hold their help in `metadata["help"]`.
        run: function of `given`, the dict of the options that stood on the command line or in the file of --config, and
            no others; a default is not among them, so that resuming can tell "not given" from "given and equal to the
            default".
        doc: help text of the command.

    Raises:
        SystemExit: by the command, with the shell's code for an interruption: 130 after Ctrl-C.
    """
    types = get_type_hints(options_class)
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for option in fields(options_class):
        switch = [] if option.default is True else [flag_name(option.name)]  # "--x/--no-x" only where x is the default
        choices = option.metadata["choices"]
        declared = typer.Option(
            *switch, help=option.metadata["help"], metavar=f"[{'|'.join(choices)}]" if choices else None
        )
        parameters.append(
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=... if option.default is MISSING else option.default,
                annotation=Annotated[types[option.name], declared],
            )
        )

    config = typer.Option(
        "--config", help="A JSON or TOML file with options, or a run's config.json; flags win over it."
    )
    parameters.append(
        inspect.Parameter(
            "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, config]
        )
    )

    def command(context, **values):
        given = {n: v for n, v in values.items() if context.get_parameter_source(n).name == "COMMANDLINE"}
        path = given.pop("config", None)
        try:
            run(given if path is None else with_config_file(options_class, path, given))
        except KeyboardInterrupt as interruption:
            # The shell's code for the signal; typer would make it 1.
            raise SystemExit(getattr(interruption, "exit_code", 130)) from None

    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = doc
    return command


def _run_alone(command, name, argv=None):
    """Run a typer command as a program of this name.

    Raises:
        SystemExit: 2 after a `UsageError`, whose line goes to standard error, or a wrong flag; 130 after Ctrl-C.
    """

    def build():
        app = plain_app(add_completion=False)
        app.command()(command)
        return app

    run_app(build, argv, "error", prog_name=name)
