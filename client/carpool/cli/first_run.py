"""Tells how to get a first server, or what is wrong with the file in which servers would be.

Owns these sentences, also for a node of a cluster, whose agents use the servers of other nodes. Refuses to
know if a daemon runs.
"""

from collections.abc import Mapping

from carpool.cluster.node_facts import read_facts
from carpool.terminal import display
from carpool_protocol.config.reading.load import find_config_file, load_config
from carpool_protocol.runtime.node_join import read_join

_CLUSTER_AWAY = (
    "no server is configured here, and the cluster is not reached: servers of other nodes are here once it "
    "is (`carpool cluster status`)"
)
_CLUSTER_EMPTY = (
    "no server is configured here, and no other node of the cluster offers one (`carpool cluster status`)"
)


def nothing_configured(environ: Mapping[str, str]) -> str:
    """Return how to get a first server, or what is wrong with the file that may name some."""
    from carpool.check.file_faults import broken_file  # late: what is found reads no configuration

    if broken := broken_file(environ):
        return broken
    file = display.printable(find_config_file(environ).path)
    return (
        "no server is configured: `carpool setup` moves those of your programs here,\n"
        f"and `carpool add NAME COMMAND` adds one. Both write {file}"
    )


def no_servers(environ: Mapping[str, str], directory: str) -> str:
    """Return what an operator is told while no server is configured; empty: other nodes of the cluster offer
    some. `directory`: the runtime directory.
    """
    facts = read_facts(directory)
    if facts is None:
        config = load_config(find_config_file(environ)).config
        is_member = bool(read_join(directory).url or (config is not None and config.cluster.url))
        return _CLUSTER_AWAY if is_member else nothing_configured(environ)
    if facts.has_left:
        return nothing_configured(environ)
    if not facts.pid or not facts.is_up:
        return _CLUSTER_AWAY
    return "" if facts.servers else _CLUSTER_EMPTY


def has_servers(environ: Mapping[str, str]) -> bool:
    """Return True if the user's file names a server, or cannot be read."""
    config = load_config(find_config_file(environ)).config
    return config is None or bool(config.servers or config.unusable or config.workspaces)


def where_servers_are(environ: Mapping[str, str]) -> str:
    """Return the file of the user's servers as a sentence, with the first steps if it has none."""
    file = find_config_file(environ)
    # A file that the environment names may be a stranger's: it is not opened for the sake of a help text.
    if not file.asked_for and not has_servers(environ):
        text = nothing_configured(environ)
        return f"{text[0].upper()}{text[1:]}"
    return f"Your servers are in {display.printable(file.path)}"
