"""The state of one moment for the web page, as JSON: the tables of `carpool top`, instances, recent calls.

Owns the keys of a state (docs/json.md, "The live stream") and the bounds of its lists. Everything in it is
text or a number; the page shows text as text only. Refuses to know: who watches, when readings come
(`live_streams`), how tables are made (`readings.live_view`).
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from carpool.control.verdict import is_well
from carpool.http.core.own_requests import LiveAnswers
from carpool.readings.health_line import health_line
from carpool.readings.live_view import COLUMNS, LiveView, Reading, TableName

MAX_ROWS: Final = 500
"""Rows of a table."""
MAX_RECENT: Final = 100
"""Recent calls that are shown."""
MAX_INSTANCES: Final = 64
"""Instances of a server."""
MAX_NODES: Final = 100
"""Nodes of the cluster, of each sort."""
MAX_TEXT: Final = 2000
"""Characters of an error or a problem."""
_NUMBERS = 4
"""Digits after the point of sorted values."""
_SERVER_KEYS: Final = (
    "state", "sharing", "waiting", "tools", "restarts", "pinned", "tags", "well", "switched", "node",
)  # fmt: skip
_INSTANCE_KEYS: Final = (
    "id", "pid", "state", "in_flight", "calls", "pss_bytes", "cpu_percent", "uptime_s", "holder", "why",
    "node",
)  # fmt: skip

Facts = Mapping[str, Any]


class LiveState:
    """The readings of the last minute, as the page shows them."""

    def __init__(self) -> None:
        self._view = LiveView()
        self._recent: deque[Facts] = deque(maxlen=MAX_RECENT)
        self._left_out = 0
        self.newest = 0
        """The number of the newest recent call that is known."""

    def add(self, found: LiveAnswers, cluster: Facts | None = None) -> bytes:
        """Take the next answers, and the section `cluster` of `carpool status --json`. Returns the state as
        one line of JSON.
        """
        counters = found.counters
        self._view.add(
            Reading(found.status, counters if counters.enabled else None, found.calls, 0.0, cluster)
        )
        self._recent += found.recent["calls"]
        self._left_out, self.newest = found.recent["left_out"], found.recent["newest"]
        return msgspec.json.encode(self._state(found.status, cluster))

    def forget_recent(self) -> None:
        """Another broker answers from now on: its numbers are others."""
        self.newest = 0

    def _state(self, status: Facts, cluster: Facts | None) -> dict[str, Any]:
        broker, config = status.get("broker") or {}, status.get("config") or {}
        facts = {**status, "cluster": cluster}  # the broker knows of no cluster
        return {
            "well": is_well(facts),
            "healthy": bool(status.get("healthy")),
            "reason": status.get("reason", ""),
            "sentence": health_line(facts)[:MAX_TEXT],
            "calls_per_s": round(self._view.calls_per_s, _NUMBERS),
            "version": broker.get("version", ""),
            "uptime_s": broker.get("uptime_s", 0.0),
            "totals": status["totals"],
            "tables": {name: self._table(name) for name in COLUMNS},
            "servers": {name: _server(each) for name, each in [*status["servers"].items()][:MAX_ROWS]},
            "recent": [*reversed(self._recent)],
            "recent_left_out": self._left_out,
            "cluster": None if cluster is None else _cluster(cluster),
            "processes": status.get("processes") or [],
            "hooks": [_hook(each) for each in status.get("hooks") or ()],
            "problems": _problems(status, config),
        }

    def _table(self, name: TableName) -> dict[str, Any]:
        rows = self._view.rows(name)
        return {
            "columns": [[each.title, each.is_number] for each in COLUMNS[name]],
            "rows": [
                [row.key, row.cells, [_rounded(value) for value in row.values]] for row in rows[:MAX_ROWS]
            ],
            "left_out": max(0, len(rows) - MAX_ROWS),
        }


def _rounded(value: float | str) -> float | str:
    return round(value, _NUMBERS) if isinstance(value, float) else value


def _server(server: Facts) -> dict[str, Any]:
    return {
        **{key: server.get(key) for key in _SERVER_KEYS},
        "paused": bool(server.get("paused")),
        "last_error": str(server.get("last_error") or "")[:MAX_TEXT],
        "instances": [
            {key: each.get(key) for key in _INSTANCE_KEYS} for each in server["instances"][:MAX_INSTANCES]
        ],
        "instance_count": len(server["instances"]),
    }


def _cluster(cluster: Facts) -> dict[str, Any]:
    nodes = [_node(each) for each in cluster["nodes"][:MAX_NODES]]
    return {
        **cluster,
        "own": _node(cluster["own"]),
        "nodes": nodes,
        "silent": cluster["silent"][:MAX_NODES],
        "servers": {name: found[:MAX_NODES] for name, found in [*cluster["servers"].items()][:MAX_ROWS]},
        "problem": str(cluster["problem"])[:MAX_TEXT],
    }


def _node(node: Facts) -> dict[str, Any]:
    return {**node, "servers": node["servers"][:MAX_INSTANCES]}


def _hook(hook: Facts) -> dict[str, Any]:
    keys = ("name", "running", "waiting", "allowed", "denied", "rewritten", "failed", "median_s")
    return {**{key: hook.get(key) for key in keys}, "problem": str(hook.get("problem") or "")[:MAX_TEXT]}


def _problems(status: Facts, config: Facts) -> list[str]:
    """Return what is wrong with the configuration, the audit and the traces, each with its place."""
    places = (
        ("configuration", config),
        ("audit", status.get("audit") or {}),
        ("traces", status.get("trace") or {}),
    )
    found = [f"{place}: {each['problem']}"[:MAX_TEXT] for place, each in places if each.get("problem")]
    died = (status.get("broker") or {}).get("restarts")
    return [*found, f"broker: {died} have died since carpool came up"] if died else found
