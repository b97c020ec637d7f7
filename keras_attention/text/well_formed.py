"""Text that can be written as UTF-8."""


def well_formed(text):
    """The text with lone surrogates, which no UTF-8 can hold, replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
