"""Servers of other nodes in a configuration: those that are offered, and those that do not run here (`on`).

Owns the rules of names: a server of the file keeps its name, unless `on` places it elsewhere; then the name
is that of the offered server, or the server cannot be used and the reason says where it would run.

Pure. Knows nothing of: how offers come, the choice of a node.
"""

from typing import Final

from msgspec.structs import replace

from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.schema.placement import is_placed_on
from carpool_protocol.config.text.problems import ConfigProblem, render_path

PLACED_NOWHERE: Final = (
    "places the server on other nodes than this one, and none of them offers it now "
    "(`carpool cluster status`)"
)


def with_node_servers(config: Config, offered: Config | None, node: str) -> Config:
    """Return the configuration with the servers of other nodes. `node`: the name of this one."""
    theirs = {} if offered is None else offered.servers
    servers, unusable = dict(config.servers), dict(config.unusable)
    for name, server in config.servers.items():
        if is_placed_on(server.on, node, config.cluster.labels):
            continue
        del servers[name]
        if name not in theirs and not server.disabled:
            unusable[name] = _nowhere(server)
    for name, server in theirs.items():
        if name not in servers and name not in unusable and server.node is not None:
            servers[name] = server
    return replace(config, servers=servers, unusable=unusable)


def _nowhere(server: ServerConfig) -> str:
    where = render_path((*server.under, "on"))
    line = server.lines.get(("on",), server.lines[()])
    return ConfigProblem(server.file, line, where, PLACED_NOWHERE).render()
