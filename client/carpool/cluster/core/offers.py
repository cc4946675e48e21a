"""Offers of nodes, and the servers of other nodes that follow from them.

Owns the form of an offer, the choice of a node for a session, and the names: a server of this node keeps its
name whatever others offer. Of other nodes, those that offer the same launch under one name are one server; if
launches differ, the one with most nodes has the name (the first node by name decides a tie), and the others
are called `SERVER-NODE`. Of an offer that comes from elsewhere only what a configuration could hold is read.

Knows nothing of: links, sessions' bytes, files, what a server does.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.config.schema.settings_cluster import check_label, check_node_name
from carpool_protocol.wire.tool_name_resolver import (
    MAX_SERVER_NAME_CHARS,
    check_server_name,
    check_tools_prefix,
)

MAX_OFFER_BYTES: Final = 448 * 1024
"""A greater offer is not read, and not sent: it fits into one frame and one message of NATS."""
MAX_SERVERS: Final = 1000
"""The most servers of one node that are read, and that are offered."""
MAX_WORDS: Final = 100
"""The most labels of a node, and tags of a server, that are read."""
MAX_COUNT: Final = 1_000_000
"""More sessions and open calls of a node are not believed."""
_MAX_S: Final = 365 * 86400.0
_MAX_REASONS_CHARS: Final = 64 * 1024
_RELEASE: Final = re.compile(r"[A-Za-z0-9.+_-]{1,40}")


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
    """Read an offer, without what no node of carpool offers. None: it is none, or names no possible node."""
    if len(data) > MAX_OFFER_BYTES:
        return None
    try:
        offer = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if not offer.node or check_node_name(offer.node) is not None:
        return None
    reasons = offer.kept_local
    return replace(
        offer,
        epoch=offer.epoch[:64],
        release=offer.release if _RELEASE.fullmatch(offer.release) else "?",
        labels=[each for each in offer.labels[:MAX_WORDS] if check_label(each) is None],
        load=min(max(offer.load, 0), MAX_COUNT),
        open_calls=min(max(offer.open_calls, 0), MAX_COUNT),
        servers=[each for each in offer.servers[:MAX_SERVERS] if _is_usable(each)],
        kept_local=reasons if sum(map(len, (*reasons, *reasons.values()))) <= _MAX_REASONS_CHARS else {},
    )


def _is_usable(server: ServerOffer) -> bool:
    """True if a configuration can hold the server: one that it cannot would cost the others of the file."""
    times = (server.start_s, server.timeout_s, server.max_total_s, *server.tool_timeouts_s.values())
    return (
        check_server_name(server.name) is None
        and check_tools_prefix(server.tools_prefix or "") is None
        and len(server.launch) <= 64
        and all(0 < each <= _MAX_S for each in times)
        and len(server.tags) <= MAX_WORDS
        and all(each.isprintable() and len(each) <= 64 for each in server.tags)
        and all(name.isprintable() and len(name) <= 256 for name in server.tool_timeouts_s)
    )


def fitting_offer(offer: NodeOffer) -> tuple[NodeOffer, bytes]:
    """Return the offer with as many servers as fit, and its bytes. The others are kept local."""
    servers, left_out = offer.servers[:MAX_SERVERS], offer.servers[MAX_SERVERS:]
    while True:
        reasons = dict.fromkeys((each.name for each in left_out), "the offer of this node is full")
        fitting = replace(offer, servers=servers, kept_local={**offer.kept_local, **reasons})
        data = msgspec.json.encode(fitting)
        if len(data) > MAX_OFFER_BYTES:
            data = msgspec.json.encode(replace(fitting, kept_local={}))
        if len(data) <= MAX_OFFER_BYTES or not servers:
            return fitting, data
        half = len(servers) // 2
        servers, left_out = servers[:half], servers[half:] + left_out


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
            here = name if place == 0 else _name_of(name, group[0][0])
            if here not in taken:
                taken.add(here)
                found[here] = NodeServer(name=here, offer=group[0][1], nodes=[node for node, _ in group])
    return found


def _name_of(server: str, node: str) -> str:
    """Return the name of a node's own kind of a server: `git`, `alpha` -> `git-alpha`."""
    return f"{server[: MAX_SERVER_NAME_CHARS - 1 - len(node)].rstrip('_-')}-{node}"


def choose_node(server: NodeServer, offers: Mapping[str, NodeOffer], own_sessions: Mapping[str, int]) -> str:
    """Return the node for a further session: the least loaded one. Empty: none takes one.

    `own_sessions`: the sessions that this node has at each other one, which offers tell a moment later.
    """
    ready = [node for node in server.nodes if node in offers and not offers[node].is_draining]
    return min(ready, key=lambda node: (max(offers[node].load, own_sessions.get(node, 0)), node), default="")
