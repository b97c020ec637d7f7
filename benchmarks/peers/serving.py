"""The side of a peer in `harness.Worker`'s protocol.

A request is a line of JSON: an object describes the case to prepare, "run" does the work once.
"""

import json
import sys
import time


def serve(name, prepare):
    """Answers requests on standard input until it closes.

    Args:
        name: what the peer and its version are called in tables.
        prepare: function of a request's entries that returns a callable, the work.
    """
    print(json.dumps({"ready": name}), flush=True)
    work = None
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, dict):
            work = prepare(**request)
            answer = {"prepared": True}
        else:
            start = time.perf_counter()
            work()
            answer = {"seconds": time.perf_counter() - start}
        print(json.dumps(answer), flush=True)
