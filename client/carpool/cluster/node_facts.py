"""The facts about its cluster that the node's process of this machine writes to a file, and their reading.

Owns the file's form, and the section `cluster` of `carpool status --json`. `carpool cluster status`,
`status`, `doctor`, `top` and the HTTP door read the file, so that they know of the cluster also while the
broker does not answer.

Knows nothing of: how the facts are found, what of them is a problem (`doctor.cluster_problems`).
"""

import os
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from carpool.cluster.core.offers import NodeOffer
from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files
from carpool_protocol.runtime.wallclock import unix_s

MAX_PID: Final = 2**31 - 1
"""The kernel has no greater pid, and `os.kill` raises `OverflowError` for one."""


class OtherNode(Struct, frozen=True, kw_only=True):
    """One other node that offers something, as far as this one knows."""

    offer: NodeOffer
    is_reached: bool
    """A channel to it is open."""
    sessions: int
    """Open sessions with it, in both directions."""
    age_s: float = 0.0
    """The age of the offer and its figures. Nodes publish them every 5 s."""
    opened: int = 0
    """Those of them that agents of this node have there."""
    latency_s: float | None = None
    """There and back between both nodes' processes; None: not measured yet."""
    clock_ahead_s: float | None = None
    """How far its clock is ahead of this machine's."""


class SilentNode(Struct, frozen=True):
    """A node that is configured, or was there, and is not heard."""

    node: str
    for_s: float


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The facts of one node's process, at one moment."""

    pid: Annotated[int, Meta(ge=0, le=MAX_PID)]
    """First in the file: `node_join.node_pid` reads it. 0: the process has ended with a `problem`."""
    cluster: str = ""
    url: str = ""
    """Without a password."""
    join: str = ""
    """With `cluster.url` `new`: the URL by which others join, with its password."""
    is_up: bool = False
    """The link works: NATS is connected, or the socket listens."""
    down_s: float = 0.0
    """For so long the link does not work."""
    problem: str = ""
    """Why the link does not work, or why the process has ended; empty: nothing is wrong."""
    own: NodeOffer
    nodes: list[OtherNode] = []
    silent: list[SilentNode] = []
    has_left: bool = False
    """`carpool cluster leave` was asked for here; `pid` is 0."""
    has_namesake: bool = False
    """Another node of the cluster has this one's name."""
    servers: dict[str, list[str]] = {}
    """The servers of other nodes by their names here, each with the nodes that offer it."""


_decode = msgspec.json.Decoder(NodeFacts).decode


def write_facts(directory: str, facts: NodeFacts) -> None:
    """Write the file. Raises `OSError`."""
    private_files.replace(paths.node_file(directory), msgspec.json.encode(facts))


def read_facts(directory: str) -> NodeFacts | None:
    """Read the file. None: this machine is in no cluster, its process was killed, or the file is garbage."""
    try:
        with open(paths.node_file(directory), "rb") as file:
            facts = _decode(file.read())
        if facts.pid:
            os.kill(facts.pid, 0)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return facts


def written_ago_s(directory: str) -> float:
    """Return the seconds since the file was written; 0 if there is none."""
    try:
        return max(0.0, unix_s() - os.stat(paths.node_file(directory)).st_mtime)
    except OSError:
        return 0.0


def cluster_section(facts: NodeFacts | None) -> dict[str, Any] | None:
    """Return the value of `cluster` in `carpool status --json` (docs/json.md); None: no cluster."""
    if facts is None:
        return None
    own = facts.own
    return {
        "name": facts.cluster,
        "node": own.node,
        "url": facts.url,
        "is_up": facts.is_up,
        "has_left": facts.has_left,
        "problem": facts.problem,
        "is_draining": own.is_draining,
        "has_namesake": facts.has_namesake,
        "own": _node_row(own, "left" if facts.has_left else "this one"),
        "nodes": [
            {
                **_node_row(each.offer, state_of(each)),
                "opened": each.opened,
                "served": each.sessions - each.opened,
                "latency_s": each.latency_s,
                "clock_ahead_s": each.clock_ahead_s,
            }
            for each in facts.nodes
        ],
        "silent": [msgspec.structs.asdict(each) for each in facts.silent],
        "servers": facts.servers,
    }


def _node_row(offer: NodeOffer, state: str) -> dict[str, Any]:
    return {
        "node": offer.node,
        "state": state,
        "open_calls": offer.open_calls,
        "load": offer.load,
        "labels": offer.labels,
        "version": offer.release,
        "servers": [server.name for server in offer.servers],
    }


def state_of(node: OtherNode) -> str:
    """Return the state of another node as a word: `reached`, `draining` or `not reached`."""
    if not node.is_reached:
        return "not reached"
    return "draining" if node.offer.is_draining else "reached"
