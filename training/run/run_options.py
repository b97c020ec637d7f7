"""What the options of every kind of run share: one dataclass that the command line, Python and config.json share."""

import os
import sys
import types
from dataclasses import MISSING, asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import get_args, get_origin, get_type_hints

from keras_attention.errors import UsageError

# What no option reaches: beyond it a slip of the keyboard is likelier than a wish, and the machine would be lost to it.
WIDEST, DEEPEST, LONGEST, LARGEST = 2**20, 1000, 2**15, 2**13
# Those of the models, which the options of a command do not load.
POSITIONS = ("sinusoidal", "learned", "none", "alibi", "relative", "rotary")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


def option(default, help, *, fixed=True, choices=None, least=None, above=None, below=None, most=None):
    """A field with what the command line and the checks need to know.

    `fixed`: the result depends on it, so a run cannot be resumed with another value.
    """
    rules = {"choices": choices, "least": least, "above": above, "below": below, "most": most}
    return field(default=default, metadata={"help": help, "fixed": fixed, **rules})


def epochs_option(default):
    """The field `epochs` of a command that trains for `default` passes, a number or words, where no limit is given."""
    return option(
        None,
        f"Stop after so many passes over the data ({default} unless --steps or --minutes is given).",
        fixed=False,
        least=1,
    )


@dataclass(frozen=True)
class RunOptions:
    """The options that every kind of run has, and what is done with options.

    A subclass is a frozen dataclass that adds fields made by `option`; each is a flag of its command under the same
    name (`d_model` is `--d-model`). It sets `kind`, which config.json states, and `default_epochs`, and may redeclare a
    field for another default or help.

    Raises:
        UsageError: a value is out of range, or two options exclude each other; the message names the flag.
    """

    out: str = option(MISSING, "The run folder to write.", fixed=False)
    resume: bool = option(
        False, "Continue the run in --out; options that are not given are those of the run.", fixed=False
    )
    epochs: int | None = epochs_option(10)
    steps: int | None = option(None, "Stop after so many steps.", fixed=False, least=1)
    minutes: float | None = option(
        None, "Stop after so many minutes; the final scores come on top.", fixed=False, above=0
    )
    precision: str = option("float32", "Floating-point precision.", choices=PRECISIONS)
    jit_compile: bool = option(False, "Compile the training step with XLA; batches then have a few fixed shapes.")
    seed: int = option(0, "Seed of everything random.", least=0, below=2**31)
    checkpoint_every: int = option(500, "Steps between two checkpoints.", fixed=False, least=1)
    tensorboard: bool = option(True, "Write TensorBoard's files to OUT/logs.", fixed=False)

    default_epochs = 10
    kind = None
    paths = ("data",)  # names of options that say which files are read

    def __post_init__(self):
        if not self.out:
            raise UsageError("--out needs the name of a folder for the run.")
        kinds = get_type_hints(type(self))
        for each in fields(self):
            if each.name != "out":
                _check(each, kinds[each.name], getattr(self, each.name))

    def refuse_given(self, names, why):
        """An option that would have no effect is an error, not a surprise."""
        given = [flag_name(f.name) for f in fields(self) if f.name in names and getattr(self, f.name) != f.default]
        if given:
            raise UsageError(f"{' and '.join(given)} would have no effect: {why}. Leave it out.")

    def budget(self):
        """The limits as keyword arguments of `Budget`."""
        epochs = self.epochs
        if epochs is None and self.steps is None and self.minutes is None:
            epochs = self.default_epochs
        return {"epochs": epochs, "steps": self.steps, "minutes": self.minutes}

    def as_dict(self):
        """The options as config.json holds them."""
        return {name: value for name, value in asdict(self).items() if name not in ("out", "resume")}

    @classmethod
    def resumed(cls, stored, given):
        """The options of a run that is continued.

        Args:
            stored: the options in its config.json.
            given: what the user gave, by name. New limits (epochs, steps, minutes) replace the old ones together.
        """
        if not isinstance(stored, dict):
            raise UsageError("The run's config.json is damaged: `options` must be an object. Restore it from a copy.")
        kinds = get_type_hints(cls)
        options = {}
        for each in fields(cls):
            if each.name in stored:
                try:
                    _check(each, kinds[each.name], stored[each.name])
                except UsageError as error:
                    raise UsageError(f"The run's config.json is damaged: {error} Restore it from a copy.") from None
                options[each.name] = stored[each.name]
        if {"epochs", "steps", "minutes"} & set(given):
            options.update(epochs=None, steps=None, minutes=None)
        return cls(**{**options, **given, "resume": True})

    def refuse_missing(self):
        """Raise UsageError if a file or folder to read is not there: before the libraries load that would read it."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in self.paths and value not in (each.default, "-"):
                for path in value if isinstance(value, (list, tuple)) else [value]:
                    try:
                        os.stat(path)
                    except FileNotFoundError:
                        raise UsageError(
                            f"{path} does not exist. What {flag_name(each.name)} takes: {each.metadata['help']}"
                        ) from None

    def least_memory(self):
        """Bytes that training is known to take before anything is read or built, see `memory_for_weights`."""
        return 0

    def rescored(self, stored):
        """Whether the final scores of a finished run with the `stored` options must be taken anew."""
        return False

    def also_fixed(self):
        """Names of options that decide the result because of the values of others."""
        return set()

    def refuse_changes(self, stored):
        """Raise UsageError if an option that decides the result differs from the stored ones."""
        changed = []
        for each in fields(self):
            fixed = each.metadata["fixed"] or each.name in self.also_fixed()
            if fixed and each.name in stored and stored[each.name] != getattr(self, each.name):
                changed.append(f"{flag_name(each.name)} (was {stored[each.name]}, is {getattr(self, each.name)})")
        if changed:
            raise UsageError(
                f"The run in {self.out} cannot be resumed with other options that change its result: "
                f"{', '.join(changed)}. Leave them out, or train in another folder."
            )


def check_cooldown(options):
    """Raises a `UsageError` where the run could end before its cool-down, which is counted back from --steps."""
    if not options.cooldown:
        return
    if not (options.steps and options.cooldown <= options.steps):
        raise UsageError(
            f"--cooldown={options.cooldown} needs --steps of at least as many. Got --steps={options.steps}."
        )
    others = [flag_name(name) for name in ("epochs", "minutes") if getattr(options, name) is not None]
    if others:
        raise UsageError(
            f"--cooldown is counted back from --steps, and {' and '.join(others)} could end the run before it. Give "
            "--steps alone."
        )


def check_heads(d_model, heads):
    """Raises a `UsageError` where the heads do not divide the width."""
    if d_model % heads == 0:
        return
    fitting = [n for n in range(1, d_model + 1) if d_model % n == 0]
    near = sorted(sorted(fitting, key=lambda n: abs(n - heads))[:3])
    raise UsageError(
        f"--d-model must be divisible by --heads. Got {d_model} and {heads}; "
        f"use for example {' or '.join(map(str, near))} heads."
    )


def memory_for_weights(blocks, d_model, mlp_dim=None, other=0):
    """Bytes that training takes at least for the weights of a model: each with its gradient and two moments of Adam.

    Args:
        blocks: number of attention blocks of this width.
        d_model, mlp_dim: their width, and that of their feed-forward layers (4 * d_model by default).
        other: weights beside these.
    """
    mlp_dim = 4 * d_model if mlp_dim is None else mlp_dim
    return 16 * (blocks * (4 * d_model**2 + 2 * d_model * mlp_dim) + other)


def flag_name(name):
    """`d_model` -> `--d-model`."""
    return "--" + name.replace("_", "-")


def _is_a(value, kind):
    """Whether a value is of the kind of an annotation; a whole number is a number, and true is none."""
    if get_origin(kind) is list:
        return isinstance(value, (list, tuple)) and all(_is_a(each, get_args(kind)[0]) for each in value)
    if isinstance(kind, types.UnionType):
        return any(_is_a(value, each) for each in get_args(kind))
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list[str]: "a list of texts"}


def _check(option, kind, value):
    rules, flag = option.metadata, flag_name(option.name)
    if not _is_a(value, kind):
        wanted = next(words for each, words in _KINDS.items() if each == kind or each in get_args(kind))
        raise UsageError(f"{flag} must be {wanted}. Got {value!r}.")
    if value is None:
        return
    if rules["choices"] and value not in rules["choices"]:
        raise UsageError(f"{flag} must be one of {', '.join(rules['choices'])}. Got {value}.")
    least, above, below, most = (rules[name] for name in ("least", "above", "below", "most"))
    if most is not None and value > most:
        raise UsageError(f"{flag} must be at most {most:,}. Got {value:,}.")
    if (
        (least is not None and not value >= least)
        or (above is not None and not value > above)
        or (below is not None and not value < below)
    ):
        limits = [f"at least {least}"] if least is not None else [f"above {above}"] if above is not None else []
        limits += [f"below {below}"] if below is not None else []
        raise UsageError(f"{flag} must be {' and '.join(limits)}. Got {value}.")
