"""The HTTP door's own pages, for programs that speak no MCP: health, metrics, and the list of tools.

Knows nothing of: who may see them (`core`), streams of events.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from carpool.http.core import own_requests
from carpool.http.core.body import INTERNAL_ERROR, INVALID_REQUEST
from carpool.http.core.effects import HttpRequest, Respond, refusal
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.shared_budgets import BudgetShare, SharedBudget
from carpool.http.core.shared_questions import SharedQuestions
from carpool.http.core.streams import BrokerStream, Endpoint
from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.counters.snapshot import CountersSnapshot

AWAY = "carpool's broker is not there (it may be starting); this was not delivered, try again in a moment"


HEALTH_S: Final = 0.8
"""`/health` waits no longer than this for the broker, because probes give up after a second."""


HEALTH_KEPT_S: Final = 1.0
"""An answer of the broker to `/health` counts for this long: anybody may ask as often as they like, and each
answer costs all of the daemon.
"""


METRICS_S: Final = 5.0
"""`/metrics` waits no longer than this for the broker: less than a scrape does by default (10 s)."""


METRICS_KEPT_S: Final = 1.0
"""The metrics count for this long: each reading costs all of the daemon, and scrapers ask less often."""


MAX_LIST_BYTES: Final = 128 * 1024 * 1024
"""The bytes of all lists of tools that are being collected, shared by the principals."""

_NO_ROOM: Final = (
    f"lists of tools are being collected, and with this one they exceed {MAX_LIST_BYTES >> 20} MiB, or the "
    "share of this token in that; try again, or read the list in pages (tools/list)"
)
_NO_LIST: Final = "the list could not be had; try again"


class _CollectedList:
    """A list of tools that is being collected."""

    __slots__ = ("is_too_long", "share", "size_bytes")

    def __init__(self, share: BudgetShare) -> None:
        self.share = share
        self.size_bytes = 0
        self.is_too_long = False

    def has_room(self, size_bytes: int) -> bool:
        """Count so much more of it. Returns False if there is no room."""
        if not self.share.reserve(size_bytes):
            self.is_too_long = True
            return False
        self.size_bytes += size_bytes
        return True


class Pages:
    """`/health`, `/metrics` and the list of tools."""

    def __init__(self, table: ExchangeTable, questions: SharedQuestions) -> None:
        self._table = table
        self._questions = questions
        self._last: dict[str, Any] = NOTHING
        """The last health that the broker has told."""
        self._last_until = float("-inf")
        """The time until which that is given to everybody who asks."""
        self._waiting: list[tuple[int, bool]] = []
        """The requests that wait for the health, and if their client may read which servers run. The broker
        is asked once for all of them, because anybody may ask.
        """
        self.refused: Counter[str] = Counter()
        """Clients that were refused, by reason."""
        self._silent_since: float | None = None
        """The time since which the broker has not answered a question about its health, or is gone."""
        self.is_full = False
        """The door has all its connections, so new clients are refused."""
        self.cluster: Mapping[str, Any] | None = None
        """The section `cluster` of `carpool status --json`: the metrics share its verdict."""
        self._list_budget = SharedBudget(MAX_LIST_BYTES)
        self._metrics: _KeptMetrics | None = None
        """The last metrics that the broker has told."""

    def tools(
        self, x: int, request: HttpRequest, endpoint: Endpoint, now: float, *, linked: bool
    ) -> Respond | None:
        """Return all tools of an endpoint."""
        if request.method != "GET":
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET")
        if not linked:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")
        stream = self._table.stateless_stream(endpoint, now)
        if stream is None:
            return self._table.no_room(x)
        refused = self._table.count_waiting(x, endpoint[0])
        if refused is not None:
            return refused

        def answer(make: Callable[[int], Respond]) -> Respond:
            self._table.release_waiting(x)
            return make(x)

        key = ("tools", endpoint)
        if not self._questions.join(x, key, answer):
            question = self._questions.open(x, None, key, answer)
            self._collect(partial(self._questions.answered, question), stream, endpoint, now)
        return None

    def _collect(
        self,
        tell: Callable[[Callable[[int], Respond]], None],
        stream: BrokerStream,
        endpoint: Endpoint,
        now: float,
    ) -> None:
        """Collect a list, and `tell` what makes an answer of it."""
        collected = _CollectedList(self._list_budget.share_of(endpoint[0]))

        def found(tools: Any, _now: float) -> None:
            collected.share.release(collected.size_bytes)
            if tools is not None:
                tell(partial(Respond, status=200, body=msgspec.json.encode({"tools": tools})))
            elif stream.refused:
                tell(partial(refusal, status=404, code=INVALID_REQUEST, text=stream.refused))
            elif collected.is_too_long:
                tell(partial(refusal, status=503, code=INTERNAL_ERROR, text=_NO_ROOM, Retry_After="1"))
            else:
                tell(partial(refusal, status=502, code=INTERNAL_ERROR, text=_NO_LIST))

        dialogue = own_requests.list_tools(collected.has_room)
        self._table.start_own_request(self._table.next_number(), stream, dialogue, found, now)

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
                self._last_until = now + HEALTH_KEPT_S
                page = self._with_connections(page)
            waiting, self._waiting = self._waiting, []
            self._table.out += [_health_page(x, page, known=known) for x, known in waiting]

        asked_at = now
        if not linked:
            return _health_page(x, self._unwell("broker_away", now, now), known=known)
        if now < self._last_until:
            return _health_page(x, self._with_connections(self._last), known=known)
        self._waiting.append((x, known))
        if len(self._waiting) == 1:
            stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
            own_x = self._table.next_number()
            self._table.start_own_request(own_x, stream, own_requests.health(), found, now, limit_s=HEALTH_S)
        return None

    def _with_connections(self, page: dict[str, Any]) -> dict[str, Any]:
        """Return the health that the broker has told, with what the door adds to it."""
        if self.is_full and page["reason"] == "ok":
            return {**page, "reason": "connections_used_up"}
        return page

    def broker_lost(self) -> None:
        """The broker is gone: what it has told of its health does not count for the next one."""
        self._last_until = float("-inf")
        self._metrics = None

    def metrics(self, x: int, request: HttpRequest, now: float, *, linked: bool) -> Respond | None:
        """Return the metrics for Prometheus."""
        if request.method != "GET":
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET")
        if not linked:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")

        accept = request.headers.get("accept", "")
        if self._metrics is not None and now < self._metrics.until:
            return self._metrics.answer(x, accept)

        def answer(kept: "_KeptMetrics | None") -> Respond:
            if kept is None:
                return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")
            return kept.answer(x, accept)

        if not self._questions.join(x, METRICS_KEY, answer):
            question = self._questions.open(x, None, METRICS_KEY, answer)

            def found(facts: Any, now: float) -> None:
                self._metrics = None
                if facts is not None:
                    counters, status = facts
                    told = (counters, {**status, "cluster": self.cluster})
                    self._metrics = _KeptMetrics(told, self.refused, now + METRICS_KEPT_S)
                self._questions.answered(question, self._metrics)

            stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
            own_x = self._table.next_number()
            self._table.start_own_request(
                own_x, stream, own_requests.metrics(), found, now, limit_s=METRICS_S
            )
        return None

    def _unwell(self, reason: str, asked_at: float, now: float) -> dict[str, Any]:
        """Return the last known health, because the broker does not answer."""
        if self._silent_since is None:
            self._silent_since = asked_at
        silent = {"process": "broker", "for_s": round(now - self._silent_since, 3)}
        return {**self._last, "healthy": False, "reason": reason, "silent": silent}


class _KeptMetrics:
    """The metrics of one moment. A page is made once for each format that is wanted."""

    def __init__(
        self, found: tuple[dict[str, Any], dict[str, Any]], refused: Mapping[str, int], until: float
    ) -> None:
        self._found = found
        self._refused = refused
        self.until = until
        """The time until which they are given to everybody who asks."""
        self._pages: dict[str, bytes] = {}

    def answer(self, x: int, accept: str) -> Respond:
        """Return the page. The Prometheus library is imported here, because few HTTP doors are scraped."""
        if find_spec("prometheus_client") is None:  # the extra of an earlier carpool had it not
            text = f"/metrics needs more than is installed: {install_command('http')}"
            return refusal(x, 501, INTERNAL_ERROR, text)
        from carpool.http.core import metrics_page

        media = metrics_page.media_of(accept)
        body = self._pages.get(media)
        if body is None:
            counters, status = self._found
            facts = metrics_page.MetricFacts(
                msgspec.convert(counters, CountersSnapshot), status, self._refused
            )
            body, _ = metrics_page.metrics_page(facts, accept)
            self._pages[media] = body
        return Respond(x, 200, body, (("Cache-Control", "no-store"),), media)


METRICS_KEY: Final = "metrics"
"""The question for the metrics, among the shared ones."""

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
    """Return the page. Not `known`: of a client without the needed token, or whose token is not for all
    servers. It reads whether carpool is well, not what runs.
    """
    shown = page if known else {**page, "tool_count": 0, "servers": {}}
    body, headers = msgspec.json.encode(shown), (("Cache-Control", "no-store"),)
    return Respond(x, 200 if page["healthy"] else 503, body, headers)
