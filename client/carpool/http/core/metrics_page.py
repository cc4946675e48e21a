"""`/metrics`: the counters and the state of carpool in the formats of Prometheus.

Owns the names, labels and sums of the metrics (docs/metrics.md lists them, held by a test). The formats are
those of the Prometheus client library, which is imported with this module: the HTTP door imports it at the
first scrape. Labels are bounded, because rows of counters are (docs/counters.md). Histograms are by server
only: by tool they would be some hundred thousand series.

Knows nothing of: who may read the page (`core`), how the facts were fetched (`own_requests`), when all is
well (`control.verdict`).
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from carpool.control.verdict import is_well
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.histogram import BUCKETS_S, DurationHistogram
from carpool_protocol.counters.snapshot import CountersSnapshot
from carpool_protocol.counters.summary import sum_by


class MetricFacts(NamedTuple):
    """What the page is made of."""

    counters: CountersSnapshot
    status: Mapping[str, Any]
    """The answer to `carpool/status`."""
    refused: Mapping[str, int] = {}
    """Clients that this HTTP door has refused, by reason."""


class MetricDefinition(NamedTuple):
    """One metric: its name without the suffix `_total`, its labels, and what it says."""

    name: str
    labels: tuple[str, ...]
    help: str


_TOOL: Final = ("server", "tool")
_AGENT: Final = ("agent", "profile", "token", "door")

CALLS: Final = MetricDefinition("carpool_calls", _TOOL, "Calls that are at the supervisor, or have ended.")
RESUMED: Final = MetricDefinition(
    "carpool_resumed_calls", _TOOL, "Calls that an earlier broker had sent, and that go on at this one."
)
ANSWERS: Final = MetricDefinition("carpool_answers", _TOOL, "Calls that ended with a result.")
TOOL_ERRORS: Final = MetricDefinition(
    "carpool_tool_errors", _TOOL, "Answers in which the tool says that it failed."
)
ERRORS: Final = MetricDefinition(
    "carpool_errors", (*_TOOL, "code"), "Calls that ended with an error after they were sent, by code."
)
REFUSALS: Final = MetricDefinition(
    "carpool_refusals", (*_TOOL, "code"), "Calls that were refused and never delivered, by code."
)
CANCELLED: Final = MetricDefinition(
    "carpool_cancelled_calls", _TOOL, "Calls that their agent cancelled or left behind."
)
BYTES_IN: Final = MetricDefinition(
    "carpool_received_bytes", _TOOL, "Bytes of the params of calls that have ended."
)
BYTES_OUT: Final = MetricDefinition(
    "carpool_sent_bytes", _TOOL, "Bytes of the results and errors in which calls ended."
)
AGENT_CALLS: Final = MetricDefinition(
    "carpool_agent_calls", _AGENT, "Calls by kind of agent: its name, profile, token and door."
)
AGENT_FAILURES: Final = MetricDefinition(
    "carpool_agent_failed_calls", _AGENT, "Calls of these agents that ended with an error or a refusal."
)
NODE_CALLS: Final = MetricDefinition(
    "carpool_node_calls", ("node",), "Calls by the node where they ran, if it is another one."
)
NODE_FAILURES: Final = MetricDefinition(
    "carpool_node_failed_calls", ("node",), "Calls at these nodes that ended with an error or a refusal."
)
DURATION: Final = MetricDefinition(
    "carpool_call_duration_seconds",
    ("server", "part"),
    "Time of calls: until they were sent (waiting), until the answer (server), from begin to end (total).",
)
STARTS: Final = MetricDefinition("carpool_server_starts", ("server",), "Processes that were started.")
DEATHS: Final = MetricDefinition(
    "carpool_server_deaths",
    ("server",),
    "Processes that ended by themselves, were ended as silent or broken, or could not be started.",
)
RESTARTS: Final = MetricDefinition(
    "carpool_server_restarts", ("server",), "Starts that were planned after a failure."
)
ASKS: Final = MetricDefinition("carpool_server_asks", ("server",), "Asks that reached an agent.")
LEASE_WAITS: Final = MetricDefinition(
    "carpool_server_lease_waits",
    ("server",),
    "Times that a session began to wait because no instance was free for it to lease.",
)
REFUSED_CLIENTS: Final = MetricDefinition(
    "carpool_http_refused",
    ("why",),
    "Requests that this HTTP door has refused, by reason: `wrong_token`, `no_token`, `wrong_code`, `host`, "
    "`origin`, `proxied`, `other_user`, `own_bridge`.",
)
HEALTHY: Final = MetricDefinition("carpool_healthy", (), "1 if `carpool status` says that all is well.")
REASON: Final = MetricDefinition(
    "carpool_status", ("reason",), "1 for the present `reason` of `carpool status --json`."
)
INFO: Final = MetricDefinition(
    "carpool_info", ("version", "run"), "1; the version, and the broker that counts."
)
UPTIME: Final = MetricDefinition("carpool_broker_uptime_seconds", (), "Time since the broker started.")
SESSIONS: Final = MetricDefinition("carpool_sessions", (), "Sessions of agents.")
IN_FLIGHT: Final = MetricDefinition(
    "carpool_calls_in_flight", ("server",), "Calls that were sent and are open."
)
WAITING: Final = MetricDefinition(
    "carpool_calls_waiting", ("server",), "Calls that wait for a turn or an instance."
)
INSTANCES: Final = MetricDefinition("carpool_server_instances", ("server",), "Instances of the server.")
MEMORY: Final = MetricDefinition("carpool_server_pss_bytes", ("server",), "Memory of the instances (PSS).")
STATE: Final = MetricDefinition("carpool_server_state", ("server", "state"), "1 for the present state.")

COUNTERS: Final = (
    CALLS, RESUMED, ANSWERS, TOOL_ERRORS, ERRORS, REFUSALS, CANCELLED, BYTES_IN, BYTES_OUT, AGENT_CALLS,
    AGENT_FAILURES, NODE_CALLS, NODE_FAILURES, STARTS, DEATHS, RESTARTS, ASKS, LEASE_WAITS,
    REFUSED_CLIENTS,
)  # fmt: skip
HISTOGRAMS: Final = (DURATION,)
GAUGES: Final = (
    HEALTHY, REASON, INFO, UPTIME, SESSIONS, IN_FLIGHT, WAITING, INSTANCES, MEMORY, STATE,
)  # fmt: skip

TOOL_FIELDS: Final = (
    (CALLS, "calls"), (RESUMED, "resumed"), (ANSWERS, "answers"), (TOOL_ERRORS, "tool_errors"),
    (CANCELLED, "cancelled"), (BYTES_IN, "bytes_in"), (BYTES_OUT, "bytes_out"),
)  # fmt: skip
SERVER_FIELDS: Final = (
    (STARTS, "starts"), (DEATHS, "deaths"), (RESTARTS, "restarts"), (ASKS, "asks"),
    (LEASE_WAITS, "lease_waits"),
)  # fmt: skip


def media_of(accept: str) -> str:
    """Return the media type of the page for a client that accepts this."""
    return choose_encoder(accept)[1]


def metrics_page(facts: MetricFacts, accept: str) -> tuple[bytes, str]:
    """Return the page and its media type: OpenMetrics if `accept` names it, else the text format."""
    encode, media = choose_encoder(accept)
    return encode(_Facts(facts)), media


class _Facts(Collector):
    """The metrics of one moment, as the library wants them."""

    def __init__(self, facts: MetricFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from _call_metrics(self._facts.counters)
        yield from _server_metrics(self._facts.counters)
        yield from _state_metrics(self._facts)
        refused = (((why,), count) for why, count in sorted(self._facts.refused.items()))
        yield _counter(REFUSED_CLIENTS, refused, None)


def _call_metrics(snapshot: CountersSnapshot) -> Iterator[Metric]:
    since = datetime.fromisoformat(snapshot.since).timestamp() if snapshot.since else None
    by_tool: dict[tuple[str, str], CallCounts] = {}
    by_agent: dict[tuple[str, ...], CallCounts] = {}
    for row in snapshot.rows:
        by_tool.setdefault((row.server, row.tool), CallCounts()).merge(row.counts)
        agent = row.agent
        key = (agent.agent, agent.profile, agent.token, agent.door)
        by_agent.setdefault(key, CallCounts()).merge(row.counts)
    for definition, name in TOOL_FIELDS:
        yield _counter(definition, ((key, getattr(each, name)) for key, each in by_tool.items()), since)
    for definition, name in ((ERRORS, "errors"), (REFUSALS, "refusals")):
        codes = (
            ((*key, code), count)
            for key, each in by_tool.items()
            for code, count in sorted(getattr(each, name).items())
        )
        yield _counter(definition, codes, since)
    yield _counter(AGENT_CALLS, ((key, each.calls) for key, each in by_agent.items()), since)
    yield _counter(AGENT_FAILURES, ((key, _failed(each)) for key, each in by_agent.items()), since)
    by_node = {node: counts for node, counts in sum_by(snapshot.rows, "node").items() if node}
    yield _counter(NODE_CALLS, (((node,), each.calls) for node, each in by_node.items()), since)
    yield _counter(NODE_FAILURES, (((node,), _failed(each)) for node, each in by_node.items()), since)
    durations = HistogramMetricFamily(DURATION.name, DURATION.help, labels=DURATION.labels)
    for server, counts in sum_by(snapshot.rows, "server").items():
        for part in ("waiting", "server", "total"):
            histogram: DurationHistogram = getattr(counts, part)
            durations.add_metric((server, part), _buckets(histogram), histogram.sum_s)
    yield durations


def _server_metrics(snapshot: CountersSnapshot) -> Iterator[Metric]:
    for definition, name in SERVER_FIELDS:
        counts = (((server,), getattr(each, name)) for server, each in sorted(snapshot.servers.items()))
        yield _counter(definition, counts, None)


def _state_metrics(facts: MetricFacts) -> Iterator[Metric]:
    status = facts.status
    broker: Mapping[str, Any] = status.get("broker") or {}
    servers: Mapping[str, Any] = status.get("servers") or {}
    yield _gauge(HEALTHY, [((), float(is_well(status)))])
    yield _gauge(REASON, [((str(status.get("reason", "")),), 1.0)])
    yield _gauge(INFO, [((str(broker.get("version", "")), facts.counters.run), 1.0)])
    yield _gauge(UPTIME, [((), float(broker.get("uptime_s", 0.0)))])
    yield _gauge(SESSIONS, [((), float(len(status.get("sessions") or ())))])
    open_calls = sum_by(facts.counters.rows, "server").items()
    yield _gauge(IN_FLIGHT, [((name,), float(counts.in_flight)) for name, counts in open_calls])
    yield _gauge(WAITING, [((name,), float(each.get("waiting", 0))) for name, each in servers.items()])
    instances = {name: each.get("instances") or [] for name, each in servers.items()}
    yield _gauge(INSTANCES, [((name,), float(len(each))) for name, each in instances.items()])
    sizes = {name: sum(one.get("pss_bytes", 0) for one in each) for name, each in instances.items()}
    yield _gauge(MEMORY, [((name,), float(size)) for name, size in sizes.items()])
    yield _gauge(STATE, [((name, str(each.get("state", ""))), 1.0) for name, each in servers.items()])


def _failed(counts: CallCounts) -> int:
    return sum(counts.errors.values()) + sum(counts.refusals.values())


def _buckets(histogram: DurationHistogram) -> list[tuple[str, float]]:
    """Return the cumulative counts, as the library wants them."""
    bounds = (*map(str, BUCKETS_S), "+Inf")
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(histogram.counts), strict=True)]


def _counter(
    definition: MetricDefinition, values: Iterable[tuple[tuple[str, ...], float]], since: float | None
) -> Metric:
    family = CounterMetricFamily(definition.name, definition.help, labels=definition.labels)
    for labels, value in values:
        family.add_metric(labels, value, created=since)
    return family


def _gauge(definition: MetricDefinition, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
