"""An agent that is a process of its own: `agent_process.py COMMAND…` starts its shim, passes bytes both ways.

A test speaks for it through its pipes, and can kill it as nothing in the test's own process can be
killed. Standard library only. Ends when either side does.
"""

import os
import subprocess
import sys
import threading


def pass_on(source: int, sink: int) -> None:
    while data := os.read(source, 1 << 16):
        while data:
            data = data[os.write(sink, data) :]


shim = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert shim.stdin is not None
assert shim.stdout is not None
to_shim, from_shim = shim.stdin, shim.stdout


def speak() -> None:
    pass_on(0, to_shim.fileno())
    to_shim.close()


threading.Thread(target=speak, daemon=True).start()
pass_on(from_shim.fileno(), 1)
shim.wait(10)
