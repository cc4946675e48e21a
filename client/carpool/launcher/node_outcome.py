"""The outcome of `carpool up --cluster`: the node has joined the cluster, or the reason why it has not.

Owns the wait for the node's process, and the sentences for people. Reads the file that this process writes
(`carpool.cluster.node_facts`), and of it what the sentences say. Only `up --cluster` imports it, late.

Knows nothing of: links, when the process is started (`node_process`).
"""

import time
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.node_join import node_pid

JOIN_S: Final = 10.0
"""The longest wait for the node's process."""
_POLL_S: Final = 0.05
_LATE: Final = "this machine is not in the cluster yet: see `carpool cluster status`"


class _Own(Struct):
    node: str


class _Facts(Struct):
    pid: int
    own: _Own
    cluster: str = ""
    url: str = ""
    is_up: bool = False
    problem: str = ""


_decode: Final = msgspec.json.Decoder(_Facts).decode


class NodeOutcome(NamedTuple):
    """The sentence to print, and if the node has joined."""

    text: str
    has_joined: bool


def wait_for_node(directory: str, earlier_pid: int = 0) -> NodeOutcome:
    """Wait until the node's process has joined its cluster or reports a problem.

    `earlier_pid`: a process with other settings, which still has to end; 0: there is none.
    """
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        facts = _read_facts(directory)
        if facts and (not earlier_pid or facts.pid != earlier_pid) and (outcome := _outcome(facts)):
            return outcome
        time.sleep(_POLL_S)
    return NodeOutcome(_LATE, has_joined=False)


def _outcome(facts: _Facts) -> NodeOutcome | None:
    if facts.is_up:
        text = f"node {facts.own.node} is in the cluster {facts.cluster} at {facts.url}"
        return NodeOutcome(text, has_joined=True)
    if facts.problem:
        yet = " yet" if facts.pid else ""
        return NodeOutcome(f"this machine is not in the cluster{yet}: {facts.problem}", has_joined=False)
    return None


def _read_facts(directory: str) -> _Facts | None:
    """Return the facts; None if there are none, or if they are of a process that was killed."""
    try:
        with open(paths.node_file(directory), "rb") as file:
            facts = _decode(file.read())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return facts if not facts.pid or facts.pid == node_pid(directory) else None
