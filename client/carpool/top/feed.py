"""The requests of `carpool top` to the broker: readings, and the acts of its keys.

Owns the connections: one for readings, kept from one to the next, and one for each act, because an act may
take minutes. After the broker's death the next reading connects anew.

Refuses to know: the screen, what a reading means (`live_view`).
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from carpool.cluster.node_facts import cluster_section, read_facts
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.logs.log_tail import LogTail
from carpool.logs.records import LogReader
from carpool.readings.live_view import Reading
from carpool_protocol.bootstrap import paths
from carpool_protocol.counters.snapshot import CountersSnapshot

ANSWER_S: Final = 5.0
ACT_S: Final = 320.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class FeedError(Exception):
    """The broker cannot be asked. The text says why."""


class BrokerFeed:
    """The readings of one carpool. Used by one thread at a time."""

    def __init__(self, directory: str, logs: str) -> None:
        """`directory`: the runtime directory; `logs`: that of its logs."""
        self._directory = directory
        self._logs = logs
        self._client: ControlClient | None = None

    def read(self) -> Reading:
        """Return the state of now. Raises `FeedError`."""
        began = time.monotonic()
        try:
            if self._client is None:
                self._client = ControlClient(self._directory, control=True, attach_s=ANSWER_S)
            status = self._ask("carpool/status", {"within_s": 1.0})
            counted = msgspec.convert(self._ask("carpool/counters", {"within_s": 1.0}), CountersSnapshot)
            calls = self._ask("carpool/calls", {})["calls"]
        except (ControlClientError, AnsweredError, msgspec.MsgspecError) as error:
            self.close()
            raise FeedError(str(error)) from None
        took_s = time.monotonic() - began
        cluster = cluster_section(read_facts(self._directory))
        return Reading(status, counted if counted.enabled else None, calls, took_s, cluster)

    def close(self) -> None:
        """Close the connection; the next reading opens another one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def act(self, method: str, params: dict[str, Any]) -> str:
        """Do what a key stands for. Returns a sentence about the result."""
        try:
            with ControlClient(self._directory, control=True, attach_s=ANSWER_S) as client:
                answer = _decode(client.request(method, params, ACT_S))
        except (ControlClientError, AnsweredError, msgspec.MsgspecError) as error:
            return str(error)
        rows: Sequence[dict[str, Any]] = answer.get("results", [])
        return "; ".join(f"{row['server']}: {row['text']}" for row in rows) or "done"

    def last_lines(self, server: str, count: int) -> list[str]:
        """Return the last lines of a server's log."""
        lines = LogTail(paths.server_log(self._logs, server)).last_lines(count)
        records = LogReader(f"server-{server}").read(lines)
        return [f"{each.at[11:19]} {each.message}" for each in records]

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        return _decode(self._client.request(method, params, ANSWER_S))
