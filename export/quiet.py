"""Logs of other libraries, kept back where they only disturb."""

import contextlib
import logging


@contextlib.contextmanager
def quiet(name, level=logging.ERROR):
    """Within the block, the logger `name` says nothing below `level`."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
