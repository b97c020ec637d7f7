"""Which mechanism attends in the encoder and which in the decoder, from the options of a run."""

from keras_attention import mechanisms
from keras_attention.errors import UsageError


def stack_mechanisms(options):
    """The mechanisms of both stacks.

    Args:
        options: `TranslationOptions`: `mechanism` is the encoder's, and the decoder's too where it can decode token by
            token and `decoder_mechanism` names no other.

    Returns:
        `(encoder, decoder, note)`: an identifier for a model's `mechanism`; None, or another one for its
        `decoder_mechanism`; None, or a line that says which stack got what the user may not expect.

    Raises:
        UsageError: a mechanism that suits no sentence, or no decoder.
        ValueError: a text that describes no mechanism; see `mechanisms.from_text`.
    """
    encoder, name, decodes = _read(options.mechanism)
    if _supports(name).grid:
        raise UsageError(
            f"--mechanism {name} attends over a grid, which a sentence does not have. Give another mechanism."
        )
    if options.decoder_mechanism is not None:
        return encoder, decoding_mechanism("--decoder-mechanism", options.decoder_mechanism), None
    if decodes:
        return encoder, None, None
    note = (
        f"mechanism {name!r} cannot decode token by token: it is used in the encoder, and 'auto' in the decoder "
        "(--decoder-mechanism gives it another)"
    )
    return encoder, "auto", note


def decoding_mechanism(flag, text):
    """The mechanism that the text of a flag describes, for a stack that decodes token by token.

    Raises:
        UsageError: it cannot. ValueError: the text describes none; see `mechanisms.from_text`.
    """
    mechanism, name, decodes = _read(text)
    if not decodes:
        able = [known for known in mechanisms.names() if _decodes(known)]
        raise UsageError(f"{flag} {name} cannot decode token by token. Give auto or one of {', '.join(able)}.")
    return mechanism


def _read(text):
    """(identifier, registered name, whether it can decode) of one flag's text."""
    if text == "auto":
        return text, text, True
    name, colon, _ = text.partition(":")
    if name == "auto" and colon:
        raise UsageError(f"'auto' chooses by itself and takes no options. Got {text!r}; name a mechanism.")
    decodes = _decodes(name)  # an unknown name is found before options are read
    return mechanisms.from_text(text) if colon and not _supports(name).grid else text, name, decodes


def _decodes(name):
    supports = _supports(name)
    return supports.causal and supports.state is not None


def _supports(name):
    return mechanisms.class_of(name).supports
