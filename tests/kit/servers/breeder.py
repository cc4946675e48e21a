# mypy: ignore-errors
"""Leaves a grandchild running: `breed` starts one in its group, `breed_away` one in a session of its own.

Both ignore SIGTERM and hold none of our pipes. `--at-start` breeds one of each before greeting, `--pipes`
lets them hold the pipes. The answer is the grandchild's pid; at start the pids go to stderr.
"""

import subprocess
import sys

from speak import serve, text

CODE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def breed(name):
    null = None if "--pipes" in sys.argv else subprocess.DEVNULL
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CODE],
        stdin=null,
        stdout=null,
        stderr=null,
        start_new_session=name == "breed_away",
    )
    return child.pid


if "--at-start" in sys.argv:
    for name in ("breed", "breed_away"):
        print("bred", breed(name), file=sys.stderr, flush=True)
tools = {"breed": "A grandchild.", "breed_away": "A grandchild that leaves the group."}
serve(tools, lambda name, arguments, request: text(str(breed(name))))
