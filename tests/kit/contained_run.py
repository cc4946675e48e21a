"""Runs a command with a time limit and ends whatever it leaves, also what has left its group and environment.

    python -m tests.kit.contained_run SECONDS FOLDER COMMAND …

The exit code is that of the command, or `TIMED_OUT`. Adopts what the command leaves, which works on Linux
only. Knows nothing of: what the command does.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from carpool.launcher import processes

TIMED_OUT = 124
_POLL_S = 0.02
_END_S = 20.0
"""So long it is tried to end what is left."""


def main(words: list[str]) -> int:
    """Run the command."""
    processes.become_subreaper()
    deadline = time.monotonic() + float(words[0])
    command = subprocess.Popen(words[2:], cwd=words[1], start_new_session=True)
    while (code := command.poll()) is None and time.monotonic() < deadline:
        processes.adopted({command.pid})  # reaps what has ended
        time.sleep(_POLL_S)
    give_up = time.monotonic() + _END_S
    with suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)
    command.wait()
    while (left := processes.adopted(set())) and time.monotonic() < give_up:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return TIMED_OUT if code is None else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
