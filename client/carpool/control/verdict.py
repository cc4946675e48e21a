"""The verdict on a running carpool, which `carpool status`, its colours and the metrics share.

Owns what "all is well" means, and the place of a closed HTTP door among the reasons of the broker
(`admin.status`). Refuses to know: how the facts were fetched, the sentence for a reason.
"""

from collections.abc import Mapping
from typing import Any, Final

Facts = Mapping[str, Any]

DOOR_CLOSED: Final = "door_closed"


def with_verdict(facts: Facts) -> dict[str, Any]:
    """Return the facts of `carpool/status` with the verdict on the HTTP door (key `door`).

    A closed door outranks a reason that leaves carpool healthy, and yields to one that does not.
    """
    worse = is_door_closed(facts) and facts.get("healthy")
    return {**facts, **({"healthy": False, "reason": DOOR_CLOSED} if worse else {})}


def is_well(facts: Facts) -> bool:
    """True if all is well. A carpool that serves although something fails is healthy, and not well."""
    well = with_verdict(facts).get("reason") == "ok"
    return well and not is_cluster_away(facts) and not broken_projects(facts)


def broken_projects(facts: Facts) -> list[str]:
    """Return the problems of project files that cannot be read. Everything else is served."""
    return [text for each in facts.get("workspaces") or () for text in each.get("problems") or ()]


def is_cluster_away(facts: Facts) -> bool:
    """True if this machine is a node, and its link to the cluster does not work. Everything local does. A
    node that has left by `carpool cluster leave` is none.
    """
    cluster = facts.get("cluster")
    return cluster is not None and not cluster["is_up"] and not cluster.get("has_left")


def is_door_closed(facts: Facts) -> bool:
    """True if an HTTP door is wanted and not open."""
    door = facts.get("door")
    return door is not None and not door["url"]
