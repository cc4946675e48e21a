"""The repairs of `carpool doctor --fix`: each says before what it costs; all but the restart lose nothing.

Owns what is done for each `Fix`, its question, and its result. Knows nothing of: how a problem is found.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from typing import Final

import click
from msgspec import Struct

from carpool import launcher_lock
from carpool.control.place import runtime_place
from carpool.doctor.diagnose import Fix, Problem
from carpool.doctor.kinds import RESTART_COSTS
from carpool_protocol.bootstrap import paths


class RepairResult(Struct, frozen=True):
    """One repair that was tried."""

    id: str
    """The id of its problem."""
    fix: Fix
    path: str
    ok: bool
    text: str


def question(problem: Problem) -> str:
    """Return the question before the repair of a problem."""
    return {
        "restart": f"Restart carpool now with the installed version? {RESTART_COSTS}",
        "remove_socket": "Remove the sockets on which nothing listens?",
        "restrict": f"Take the rights of other users away from {problem.path}?",
    }[problem.fix]


def repair(problem: Problem) -> RepairResult:
    """Repair a problem that has a `fix`."""
    assert problem.fix
    text = _REPAIRS[problem.fix](problem)
    done = {"restart": "restarted", "remove_socket": "removed", "restrict": "restricted"}[problem.fix]
    return RepairResult(problem.id, problem.fix, problem.path, not text, text or done)


def _restart(_problem: Problem) -> str:
    from carpool.cli.daemon import restart_daemon  # late: few runs need it

    try:
        restart_daemon()
    except click.exceptions.Exit:
        return "carpool could not be restarted"
    return ""


def _remove_socket(_problem: Problem) -> str:
    """Remove the sockets, while no launcher can start."""
    directory = runtime_place().directory
    with launcher_lock.kept_free(directory) as is_free:
        if not is_free:
            return "carpool has just been started, so nothing was removed"
        for path in (paths.agents_socket(directory), paths.link_socket(directory)):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    return f"{path} is no socket, so it stays"
                os.unlink(path)
    return ""


def _restrict(problem: Problem) -> str:
    """Take all rights of group and others away. A symbolic link is not followed."""
    try:
        fd = os.open(problem.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.getuid():
                return f"{problem.path} is not yours"
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & 0o700)
        finally:
            os.close(fd)
    except OSError as error:
        return f"{problem.path} cannot be changed ({error.strerror})"
    return ""


_REPAIRS: Final[dict[str, Callable[[Problem], str]]] = {
    "restart": _restart,
    "remove_socket": _remove_socket,
    "restrict": _restrict,
}
"""Each returns the reason why it could not; empty if it is done."""
