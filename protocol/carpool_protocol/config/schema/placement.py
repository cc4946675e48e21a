"""Where servers of a cluster run: labels of nodes, and the `on` of servers.

Pure. Knows nothing of: files, links, what a node offers.
"""

import re
from collections.abc import Iterable

from carpool_protocol.config.schema.settings_cluster import check_node_name


def node_name(configured: str, machine: str) -> str:
    """Return the name of this node: the configured one, or a valid name from the machine's (before the first
    dot, other characters as `-`).
    """
    plain = re.sub(r"[^a-z0-9]+", "-", machine.lower().partition(".")[0]).strip("-")[:32].strip("-")
    return configured or (plain if plain and check_node_name(plain) is None else "node")


def is_placed_on(on: Iterable[str], node: str, labels: Iterable[str]) -> bool:
    """True if a server with this `on` may run on a node: it has one of the wanted labels, and none of the
    excluded ones (`!LABEL`). `host:NAME` is a label that the node of that name has.
    """
    has = {*labels, f"host:{node}"}
    wanted = {each for each in on if not each.startswith("!")}
    excluded = {each[1:] for each in on if each.startswith("!")}
    return not (excluded & has) and (not wanted or bool(wanted & has))
