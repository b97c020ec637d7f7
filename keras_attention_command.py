"""Where the `keras-attention` command starts: beside the package, whose import would load TensorFlow.

That this module is loaded tells `keras_attention/__init__.py` that a command runs, which loads TensorFlow by itself
when it needs it: not for help, for errors of one line, or for ONNX folders.
"""

import sys


def main():
    """Runs the command, see `keras_attention.cli.main`; Ctrl-C while modules load ends it with 130, as later."""
    try:
        from keras_attention.cli import main

        main()
    except KeyboardInterrupt:
        print("keras-attention: interrupted", file=sys.stderr)
        sys.exit(130)
