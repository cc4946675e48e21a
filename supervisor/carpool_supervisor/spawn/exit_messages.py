"""Sentences for people on why a process did not start and how it ended.

Pure. Names the command and the directory, which are configuration; never arguments or the environment. Knows
nothing of: the reaction to it.
"""

import errno
import os
import signal

from carpool_protocol.runtime.search_path import not_found_text


def exit_text(status: int) -> str:
    """How a process ended: `exit code 3`, `killed by SIGKILL`. A negative `status` is a signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def is_machine_limit(stage: str, number: int) -> bool:
    """True if a limit of the machine kept a process from starting, not the request itself."""
    return stage == "fork" or number in {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


def why_not_started(stage: str, number: int, command: str, cwd: str) -> str:
    """Why a process did not start, and what to check. From the spawner's report: a stage of `exec_child` or
    `fork`, and an errno.
    """
    reason = os.strerror(number) if number else "unknown reason"
    match (stage, number):
        case ("fork", _):
            return f"no process could be made ({reason}): the user or the machine is at a limit"
        case ("cwd", errno.ENOENT):
            return f"the directory {cwd} does not exist"
        case ("cwd", _):
            return f"the directory {cwd} cannot be used ({reason})"
        case ("interpreter", _):
            return f"{command} exists, but the interpreter that its first line names does not"
        case ("command", errno.ENOENT) if "/" in command:
            seen_from = "" if command.startswith("/") else f" (looked for from {cwd})"
            return f"the command {command} does not exist{seen_from}"
        case ("command", errno.ENOENT):
            return not_found_text(command)
        case ("command", errno.EACCES):
            return f"the command {command} may not be executed (permission denied)"
        case ("command", errno.ENOEXEC):
            return f"{command} is no program for this system (a script needs a first line with #!)"
        case ("command", errno.E2BIG):
            return f"the arguments and the environment of {command} are too large for the system"
        case _:
            return f"the command {command} could not be started ({reason})"
