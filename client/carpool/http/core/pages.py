"""The HTTP door's own pages, for programs that speak no MCP: health, metrics, and the list of tools.

Knows nothing of: who may see them (`core`), streams of events.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from carpool.http.core import own_requests
from carpool.http.core.body import INTERNAL_ERROR, INVALID_REQUEST
from carpool.http.core.effects import HttpRequest, Respond, refusal
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.streams import Endpoint
from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.counters.snapshot import CountersSnapshot

AWAY = "carpool's broker is not there (it may be starting); this was not delivered, try again in a moment"


HEALTH_S: Final = 0.8
"""`/health` waits no longer than this for the broker, because probes give up after a second."""


METRICS_S: Final = 5.0
"""`/metrics` waits no longer than this for the broker: less than a scrape does by default (10 s)."""


class Pages:
    """`/health`, `/metrics` and the list of tools."""

    def __init__(self, table: ExchangeTable) -> None:
        self._table = table
        self._last: dict[str, Any] = NOTHING
        """The last health that the broker has told."""
        self._silent_since: float | None = None
        """The time since which the broker has not answered a question about its health, or is gone."""
        self.cluster: Mapping[str, Any] | None = None
        """The section `cluster` of `carpool status --json`: the metrics share its verdict."""

    def tools(
        self, x: int, request: HttpRequest, endpoint: Endpoint, now: float, *, linked: bool
    ) -> Respond | None:
        """Return all tools of an endpoint."""
        if request.method != "GET":
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET")
        if not linked:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")

        def found(tools: Any, now: float) -> None:
            if tools is None and stream.refused:
                self._table.out.append(refusal(x, 404, INVALID_REQUEST, stream.refused))
            elif tools is None:
                text = "the list could not be had; try again"
                self._table.out.append(refusal(x, 502, INTERNAL_ERROR, text))
            else:
                self._table.out.append(Respond(x, 200, msgspec.json.encode({"tools": tools})))

        stream = self._table.shared_stream("shared", endpoint, now)
        self._table.start_own_request(x, stream, own_requests.list_tools(), found, now)
        return None

    def health(
        self, x: int, request: HttpRequest, now: float, *, known: bool, linked: bool
    ) -> Respond | None:
        """Return the health. `known`: the client may also read which servers run."""
        if request.method not in {"GET", "HEAD"}:
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET, HEAD")

        def found(page: Any, now: float) -> None:
            if page is None:
                page = self._unwell("broker_silent", asked_at, now)
            else:
                self._last, self._silent_since = page, None
            self._table.out.append(_health_page(x, page, known=known))

        asked_at = now
        if not linked:
            return _health_page(x, self._unwell("broker_away", now, now), known=known)
        stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
        self._table.start_own_request(x, stream, own_requests.health(), found, now, limit_s=HEALTH_S)
        return None

    def metrics(self, x: int, request: HttpRequest, now: float, *, linked: bool) -> Respond | None:
        """Return the metrics for Prometheus."""
        if request.method != "GET":
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET")
        if not linked:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")

        def found(facts: Any, now: float) -> None:
            if facts is None:
                self._table.out.append(refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1"))
            else:
                counters, status = facts
                told = (counters, {**status, "cluster": self.cluster})
                self._table.out.append(_metrics_page(x, told, request.headers.get("accept", "")))

        stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
        self._table.start_own_request(x, stream, own_requests.metrics(), found, now, limit_s=METRICS_S)
        return None

    def _unwell(self, reason: str, asked_at: float, now: float) -> dict[str, Any]:
        """Return the last known health, because the broker does not answer."""
        if self._silent_since is None:
            self._silent_since = asked_at
        silent = {"process": "broker", "for_s": round(now - self._silent_since, 3)}
        return {**self._last, "healthy": False, "reason": reason, "silent": silent}


def _metrics_page(x: int, found: tuple[dict[str, Any], dict[str, Any]], accept: str) -> Respond:
    """Return the page. The Prometheus library is imported here, because few HTTP doors are scraped."""
    if find_spec("prometheus_client") is None:  # the extra of an earlier carpool had it not
        text = f"/metrics needs more than is installed: {install_command('http')}"
        return refusal(x, 501, INTERNAL_ERROR, text)
    from carpool.http.core import metrics_page

    counters, status = found
    facts = metrics_page.MetricFacts(msgspec.convert(counters, CountersSnapshot), status)
    body, media = metrics_page.metrics_page(facts, accept)
    return Respond(x, 200, body, (("Cache-Control", "no-store"),), media)


NOTHING: Final[dict[str, Any]] = {
    "healthy": False,
    "reason": "",
    "silent": None,
    "tool_count": 0,
    "uptime_s": 0.0,
    "servers": {},
}
"""The health of a broker that has not answered yet."""


def _health_page(x: int, page: dict[str, Any], *, known: bool) -> Respond:
    """Return the page. Clients without the needed token read whether carpool is well, not what runs."""
    shown = page if known else {**page, "tool_count": 0, "servers": {}}
    body, headers = msgspec.json.encode(shown), (("Cache-Control", "no-store"),)
    return Respond(x, 200 if page["healthy"] else 503, body, headers)
