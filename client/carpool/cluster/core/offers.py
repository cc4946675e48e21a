"""Offers of nodes, and the servers of other nodes that follow from them.

Owns the form of an offer, the choice of a node for a session, and the names: a server of this node keeps its
name whatever others offer. Of other nodes, those that offer the same launch under one name are one server; if
launches differ, the one with most nodes has the name (the first node by name decides a tie), and the others
are called `SERVER-NODE`.

Knows nothing of: links, sessions' bytes, files, what a server does.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from carpool_protocol.config.schema.settings_cluster import check_node_name


class ServerOffer(Struct, frozen=True, kw_only=True):
    """A server that a node offers to others."""

    name: str
    launch: str
    """A hash of what is run, without values of an environment: equal hashes are the same server."""
    keeps_state: bool = False
    """Each agent has an instance of its own there (mode `session`): what is lost with it is told."""
    start_s: float = 300.0
    """How long a session there may take to be ready."""
    timeout_s: float = 60.0
    max_total_s: float = 1800.0
    tool_timeouts_s: dict[str, float] = {}
    tools_prefix: str | None = None
    """As in the configuration there: tools have the same names at all nodes."""
    tags: list[str] = []


class NodeOffer(Struct, frozen=True, kw_only=True):
    """The offer of a node: its servers, labels, load and version."""

    node: str
    epoch: str
    """Names this life of the node's process."""
    release: str
    labels: list[str] = []
    load: int = 0
    """The number of sessions that other nodes have here."""
    open_calls: int = 0
    is_draining: bool = False
    """Takes no further session."""
    servers: list[ServerOffer] = []
    kept_local: dict[str, str] = {}
    """Servers that are not offered, and why, for people."""


class NodeServer(Struct, frozen=True, kw_only=True):
    """A server of other nodes, under its name here."""

    name: str
    offer: ServerOffer
    nodes: list[str]
    """The nodes that offer it, sorted."""


_decoder = msgspec.json.Decoder(NodeOffer)


def read_offer(data: bytes) -> NodeOffer | None:
    """Read an offer. None: it is none, or names no possible node."""
    try:
        offer = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return offer if offer.node and check_node_name(offer.node) is None else None


def remote_servers(offers: Iterable[NodeOffer], own: Iterable[str]) -> dict[str, NodeServer]:
    """Return the servers of other nodes by their names here. `own`: the names that are taken."""
    launches: dict[str, dict[str, list[tuple[str, ServerOffer]]]] = {}
    for offer in sorted(offers, key=lambda each: each.node):
        for server in offer.servers:
            launches.setdefault(server.name, {}).setdefault(server.launch, []).append((offer.node, server))
    found: dict[str, NodeServer] = {}
    taken = set(own)
    for name, groups in sorted(launches.items()):
        ordered = sorted(groups.values(), key=lambda group: (-len(group), group[0][0]))
        for place, group in enumerate(ordered):
            here = name if place == 0 else f"{name}-{group[0][0]}"
            if here not in taken:
                taken.add(here)
                found[here] = NodeServer(name=here, offer=group[0][1], nodes=[node for node, _ in group])
    return found


def choose_node(server: NodeServer, offers: Mapping[str, NodeOffer], own_sessions: Mapping[str, int]) -> str:
    """Return the node for a further session: the least loaded one. Empty: none takes one.

    `own_sessions`: the sessions that this node has at each other one, which offers tell a moment later.
    """
    ready = [node for node in server.nodes if node in offers and not offers[node].is_draining]
    return min(ready, key=lambda node: (max(offers[node].load, own_sessions.get(node, 0)), node), default="")
