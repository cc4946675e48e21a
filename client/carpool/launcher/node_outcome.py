"""The outcome of `carpool up --cluster`: the node has joined the cluster, or the reason why it has not.

Owns the wait for the node's process, and the sentences for people. Reads the file that this process writes
(`carpool.cluster.node_facts`). Standard library only, like the rest of the starter.

Knows nothing of: links, when the process is started (`node_process`).
"""

import json
import time
from typing import Any, Final, NamedTuple

from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.node_join import node_pid

JOIN_S: Final = 10.0
"""The longest wait for the node's process."""
_POLL_S: Final = 0.05
_LATE: Final = "this machine is not in the cluster yet: see `carpool cluster status`"


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
        if facts and (not earlier_pid or facts.get("pid") != earlier_pid) and (outcome := _outcome(facts)):
            return outcome
        time.sleep(_POLL_S)
    return NodeOutcome(_LATE, has_joined=False)


def _outcome(facts: dict[str, Any]) -> NodeOutcome | None:
    if facts.get("is_up"):
        node = (facts.get("own") or {}).get("node", "")
        text = f"node {node} is in the cluster {facts.get('cluster')} at {facts.get('url')}"
        return NodeOutcome(text, has_joined=True)
    if problem := facts.get("problem"):
        yet = " yet" if facts.get("pid") else ""
        return NodeOutcome(f"this machine is not in the cluster{yet}: {problem}", has_joined=False)
    return None


def _read_facts(directory: str) -> dict[str, Any]:
    """Return the facts; empty if there are none, or if they are of a process that was killed."""
    try:
        with open(paths.node_file(directory), encoding="utf-8") as file:
            facts = json.load(file)
    except (OSError, ValueError):
        return {}
    is_here = isinstance(facts, dict) and (not facts.get("pid") or facts["pid"] == node_pid(directory))
    return facts if is_here else {}
