"""Fresh processes without their start: `python -m benchmarks.forks` imports TensorFlow once and forks for each request.

A request is a line of JSON, `{"target": "module:function", "arguments": {...}}`; the answer is what `benchmarks.child`
measures, from a process that has imported the same modules and done nothing else yet. Importing TensorFlow starts no
device and no kernel threads, so that a fork of this process is as good as a new one and takes a second less than five.
"""

import json
import os
import sys

from benchmarks import child


def main():
    import keras_attention  # noqa: F401  what every request needs, and TensorFlow with it

    print(json.dumps({"ready": "forks"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request["target"], request["arguments"])), flush=True)


def answer(target, arguments):
    """What `child.measured` returns for these arguments in a forked process, or {"error": why}."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(read)
        try:
            found = child.measured(target, arguments)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(write, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    _, status = os.waitpid(process, 0)
    return json.loads(text) if text else {"error": f"the process ended with status {os.waitstatus_to_exitcode(status)}"}


if __name__ == "__main__":
    main()
