# mypy: ignore-errors
"""`dies_after.py N`: answers N calls and dies on receiving the next one. `--kill`: by SIGKILL, not exit 1."""

import os
import signal
import sys

from speak import serve, text

left = int(sys.argv[1])


def call(name, arguments, request):
    global left
    if left == 0:
        print("dies_after: that was enough", file=sys.stderr, flush=True)
        if "--kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    left -= 1
    return text(arguments.get("text", ""))


serve({"echo": "Echoes, some times."}, call)
