"""The servers that this node offers to others, from its configuration.

Owns the reasons why a server is not offered: it needs values of the agent's environment or the agent's
directory, which never travel; it is disabled, another node's, or placed elsewhere; the profile of peers bars
it.

Pure. Knows nothing of: files, links, running servers.
"""

import hashlib
from collections.abc import Collection, Mapping

import msgspec

from carpool.cluster.core.offers import ServerOffer
from carpool_protocol.config.schema.expand import PLACE_NAMES, references
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.schema.placement import is_placed_on

GRACE_S = 15.0
"""Limits of calls are longer at the agent's node, so that the answer about a limit comes from this node."""


def own_offers(
    config: Config,
    node: str,
    known: Collection[str],
    stateful: Mapping[str, bool],
    barred: Collection[str] = (),
) -> tuple[list[ServerOffer], dict[str, str]]:
    """Return the offered servers, and the reasons of the others.

    `known`: the variables that are set here. `stateful`: for servers with `sharing` `auto`, whether each
    agent has an instance of its own; those that are not in it yet count as if it had. `barred`: servers
    that the profile of peers does not grant.
    """
    offers: list[ServerOffer] = []
    reasons: dict[str, str] = {}
    for name, server in config.servers.items():
        if server.disabled or server.node is not None or server.is_offline:
            continue
        if why := _reason(server, config, node, known, barred):
            reasons[name] = why
        else:
            offers.append(_offer(server, keeps_state=_keeps_state(server, stateful)))
    return offers, reasons


def own_names(config: Config, node: str) -> frozenset[str]:
    """Return the servers of this node, offered or not: their names are taken."""
    return frozenset(
        name
        for name, server in config.servers.items()
        if server.node is None and is_placed_on(server.on, node, config.cluster.labels)
    )


def _reason(
    server: ServerConfig, config: Config, node: str, known: Collection[str], barred: Collection[str]
) -> str:
    if not is_placed_on(server.on, node, config.cluster.labels):
        return "`on` places it on other nodes"
    names = {name for _, text in server.templates() for name in references(text)}
    if server.roots is not None or names & PLACE_NAMES:
        return "it works in the directory of its agent, which is on the agent's machine"
    if missing := sorted(names - set(known)):
        return f"it needs values from its agent's environment: {', '.join(missing)}"
    if server.name in barred:
        return f"the profile of other nodes ({config.cluster.profile}) does not grant it"
    return ""


def _keeps_state(server: ServerConfig, stateful: Mapping[str, bool]) -> bool:
    sharing = server.policy.sharing
    return stateful.get(server.name, True) if sharing == "auto" else sharing == "session"


def _offer(server: ServerConfig, *, keeps_state: bool) -> ServerOffer:
    policy = server.policy
    return ServerOffer(
        name=server.name,
        launch=launch_hash(server),
        keeps_state=keeps_state,
        start_s=policy.first_start_s + GRACE_S,
        timeout_s=policy.timeout_s + GRACE_S,
        max_total_s=policy.max_total_s + GRACE_S,
        tool_timeouts_s={tool: each + GRACE_S for tool, each in policy.tool_timeouts_s.items()},
        tools_prefix=server.tools_prefix,
        tags=list(server.tags),
    )


def launch_hash(server: ServerConfig) -> str:
    """Return a hash of what a server runs. Names of variables are part of it, values of `env` are not: they
    may be secrets, and the hash is seen by all nodes.
    """
    parts = [
        server.command,
        server.args,
        server.python,
        server.url,
        sorted(server.env),
        server.tools_allow,
        server.tools_deny,
    ]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def node_servers_text(node: str, servers: Mapping[str, tuple[str, ServerOffer]]) -> str:
    """Return the text of the file that gives the broker the servers of other nodes.

    `node`: this node's name. `servers`: by name here, the node (`*`: any) and the offer.
    """
    written = {
        name: {
            "node": there,
            "server": offer.name,
            "sharing": "session" if offer.keeps_state else "concurrent",
            "timeout_s": offer.timeout_s,
            "max_total_s": max(offer.max_total_s, offer.timeout_s),
            "tool_timeouts_s": offer.tool_timeouts_s,
            "first_start_s": offer.start_s,
            "start_s": offer.start_s,
            "tags": offer.tags,
            **({} if offer.tools_prefix is None else {"tools_prefix": offer.tools_prefix}),
        }
        for name, (there, offer) in servers.items()
    }
    return (
        msgspec.json.format(
            msgspec.json.encode({"cluster": {"node": node}, "mcpServers": written}), indent=1
        ).decode()
        + "\n"
    )
