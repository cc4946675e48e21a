"""Spans in the form of the OpenTelemetry SDK, whose own thread sends them to a collector.

Owns the only use of the SDK, the bound of spans that wait for the collector, and the count of those that are
lost. The log says once that spans are lost, and once that they are exported again. Imported by
`trace_exporter` when traces are turned on.

Refuses to know: settings, calls, the SDK's own log lines (`sdk_log`).
"""

import logging
import os
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from carpool_broker.core.model.effects import ExportTrace
from carpool_broker.core.model.traces import TracedSpan
from carpool_protocol.carrier.remote import host_of

log = logging.getLogger("carpool.broker")

MAX_WAITING_SPANS: Final = 4096
"""Spans that wait for the collector. Further ones are lost."""
_PATH: Final = "/v1/traces"
_DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_GOOD: Final = Status()


class SpanPipeline:
    """The SDK's batch processor in front of one exporter."""

    def __init__(self, exporter: SpanExporter, release: str, collector: str = "the collector") -> None:
        """`collector`: names it in the log and in `status`."""
        self._resource = _resource(release)
        self._scope = InstrumentationScope("carpool", release)
        self._counting = _CountingExporter(exporter, collector)
        counting: Any = self._counting
        self._processor = BatchSpanProcessor(counting, max_queue_size=MAX_WAITING_SPANS)
        self._added = self._refused = 0
        self._is_shut_down = False

    @property
    def problem(self) -> str:
        """Why the last spans were lost; empty: they were not."""
        return self._counting.problem

    @property
    def exported(self) -> int:
        """The number of spans that the collector has taken."""
        return self._counting.exported

    @property
    def dropped(self) -> int:
        """The number of spans that are lost: there was no room, the collector did not take them, or they
        still waited when the export ended.
        """
        left = self._added - self._counting.taken if self._is_shut_down else 0
        return self._refused + self._counting.lost + left

    @property
    def is_settled(self) -> bool:
        """True if the export has ended and no span is on its way, so that the counts stay."""
        counting = self._counting
        return self._is_shut_down and counting.taken == counting.exported + counting.lost

    def add(self, ended: ExportTrace, now_ns: int) -> None:
        """Hand over the spans of a call that ended at `now_ns`, or count them as lost."""
        if self._added - self._counting.taken + len(ended.spans) > MAX_WAITING_SPANS:
            self._refused += len(ended.spans)
            return
        self._added += len(ended.spans)
        trace = int(ended.trace, 16)
        for span in ended.spans:
            self._processor.on_end(self._readable(trace, span, ended, now_ns))

    def shut_down(self) -> None:
        """Export what waits, and end the thread. Blocks until the collector has answered or timed out."""
        processor: Any = self._processor
        processor.shutdown()
        self._is_shut_down = True

    def _readable(self, trace: int, span: TracedSpan, ended: ExportTrace, now_ns: int) -> ReadableSpan:
        parent = None
        if span.parent:
            is_remote = span.parent == ended.spans[0].parent
            parent = SpanContext(trace, int(span.parent, 16), is_remote, _SAMPLED)
        return ReadableSpan(
            span.name,
            SpanContext(trace, int(span.span, 16), False, _SAMPLED),
            parent,
            self._resource,
            {**span.attributes, "error.type": span.error} if span.error else span.attributes,
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else _GOOD,
            start_time=now_ns - int(span.start_ago_s * 1e9),
            end_time=now_ns - int(span.end_ago_s * 1e9),
            instrumentation_scope=self._scope,
        )


class _CountingExporter:
    """Counts what an exporter takes. Runs in the SDK's thread."""

    def __init__(self, exporter: SpanExporter, collector: str) -> None:
        self._exporter = exporter
        self._collector = collector
        self.taken = self.exported = self.lost = 0
        self.problem = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
            why = "" if result is SpanExportResult.SUCCESS else f"{self._collector} does not take them"
        except Exception as error:  # noqa: BLE001 - of the network, in the SDK's thread
            result = SpanExportResult.FAILURE
            why = f"they cannot be sent to {self._collector} ({type(error).__name__})"
        if why:
            self.lost += len(spans)
        else:
            self.exported += len(spans)
        before, self.problem = self.problem, why
        if why and not before:
            log.warning("traces are lost: %s; calls go on", why)
        elif before and not why:
            log.info("traces are exported to %s again; %d spans were lost", self._collector, self.lost)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


def collector_name(endpoint: str | None) -> str:
    """Return what people read of a collector: host and port, without path, user and query.

    None: the one that the variables of the SDK name.
    """
    variables = (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
    host = host_of(endpoint or next(filter(None, map(os.environ.get, variables)), _DEFAULT_ENDPOINT))
    return f"the collector at {host}" if host else "the collector"


def otlp_exporter(endpoint: str | None) -> SpanExporter:
    """Return the exporter to a collector; None: the one that the variables of the SDK name."""
    if endpoint is None:
        return OTLPSpanExporter()
    base = endpoint.rstrip("/")
    return OTLPSpanExporter(endpoint=base if base.endswith(_PATH) else base + _PATH)


def _resource(release: str) -> Resource:
    """Return who exports; the variables of the SDK may give another name."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({**({} if named else {"service.name": "carpool"}), "service.version": release})
