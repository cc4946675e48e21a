"""The cluster that this carpool joined from the command line (`carpool up --cluster URL`), until it is
stopped.

Owns the file in the runtime directory: two lines, the URL and the node's name; either may be empty, and then
the configuration's counts. The URL may hold a password: the file is the user's alone. Also finds the node's
process by the file that it writes.

Standard library only: the launcher reads it. Knows nothing of: what a URL means.
"""

import os
import re
from typing import NamedTuple

from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files

_PID = re.compile(rb'\{"pid":(\d{1,9}),')


class NodeJoin(NamedTuple):
    """What the command line says of the cluster."""

    url: str = ""
    node: str = ""


def read_join(directory: str) -> NodeJoin:
    """Return what was asked for; empty if nothing was."""
    try:
        with open(paths.node_join_file(directory), encoding="utf-8") as file:
            url, node, *_ = (file.read() + "\n\n").split("\n")
    except (OSError, UnicodeDecodeError):
        return NodeJoin()
    return NodeJoin(url, node)


def write_join(directory: str, join: NodeJoin) -> None:
    """Ask for this until carpool is stopped. Raises `OSError`."""
    private_files.replace(paths.node_join_file(directory), f"{join.url}\n{join.node}\n".encode())


def node_pid(directory: str) -> int:
    """Return the pid of the node's process, as it wrote it down; 0: there is none."""
    try:
        with open(paths.node_file(directory), "rb") as file:
            found = _PID.match(file.read(64))
        pid = int(found[1]) if found else 0
        if pid:
            os.kill(pid, 0)
    except OSError:
        return 0
    return pid
