"""Spans in the SDK's form: what its own exporter in memory sees, and what is lost and counted."""

import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from carpool_broker.core.model.effects import ExportTrace
from carpool_broker.core.model.traces import TracedSpan
from carpool_broker.tracing import span_pipeline
from carpool_broker.tracing.span_pipeline import SpanPipeline, collector_name, otlp_exporter
from tests.behaviours import behaviour

TRACE, ROOT, CHILD, AGENT = (
    "0af7651916cd43dd8448eb211c80319c",
    "00000000000000a1",
    "00000000000000a2",
    "b" * 16,
)
ENDED = ExportTrace(
    TRACE,
    (
        TracedSpan("tools/call x", "server", ROOT, AGENT, 2.0, 0.0, {"carpool.server": "a"}, "lost"),
        TracedSpan("waiting", "internal", CHILD, ROOT, 2.0, 0.5, {}),
    ),
)
NOW_NS = 10_000_000_000


class Reluctant:
    """Takes spans when it may, and then as it is told."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.is_taking = threading.Event()
        self.outcome: SpanExportResult | Exception = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        outcome = self.outcome
        self.is_taking.set()
        assert self.may.wait(20)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def shutdown(self) -> None:
        pass


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)


@behaviour("traces:one")
def test_a_span_is_what_the_core_has_decided(memory: InMemorySpanExporter) -> None:
    pipeline = SpanPipeline(memory, "1.2")
    pipeline.add(ENDED, NOW_NS)
    pipeline.shut_down()
    request, waiting = memory.get_finished_spans()
    assert request.context is not None
    assert (f"{request.context.trace_id:032x}", f"{request.context.span_id:016x}") == (TRACE, ROOT)
    assert request.parent is not None
    assert (f"{request.parent.span_id:016x}", request.parent.is_remote) == (AGENT, True)
    assert (request.start_time, request.end_time) == (8_000_000_000, NOW_NS)
    assert (request.kind, request.status.status_code) == (SpanKind.SERVER, StatusCode.ERROR)
    assert request.attributes == {"carpool.server": "a", "error.type": "lost"}
    assert request.resource.attributes["service.name"] == "carpool"
    assert request.resource.attributes["service.version"] == "1.2"
    assert waiting.parent is not None
    assert (f"{waiting.parent.span_id:016x}", waiting.parent.is_remote) == (ROOT, False)
    assert (waiting.end_time, waiting.status.status_code) == (9_500_000_000, StatusCode.UNSET)
    assert (pipeline.exported, pipeline.dropped, pipeline.problem) == (2, 0, "")


@behaviour("traces:no-harm")
def test_spans_without_room_are_counted_and_delay_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_pipeline, "MAX_WAITING_SPANS", 512)
    exporter: Any = Reluctant()
    pipeline = SpanPipeline(exporter, "1")
    pipeline.add(ENDED, NOW_NS)
    assert exporter.is_taking.wait(20)
    for _ in range(400):
        pipeline.add(ENDED, NOW_NS)
    assert pipeline.dropped == 2 * (400 - 256)
    exporter.may.set()
    pipeline.shut_down()
    assert (pipeline.exported, pipeline.dropped) == (2 + 512, 2 * (400 - 256))


@behaviour("traces:no-harm")
def test_spans_that_nobody_has_taken_when_the_export_ends_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter: Any = Reluctant()
    pipeline = SpanPipeline(exporter, "1")
    pipeline.add(ENDED, NOW_NS)
    assert exporter.is_taking.wait(20)
    pipeline.add(ENDED, NOW_NS)
    processor: Any = vars(pipeline)["_processor"]
    with monkeypatch.context() as patch:  # the SDK waits for 30 s, and then leaves the spans where they are
        patch.setattr(processor, "shutdown", lambda: None)
        pipeline.shut_down()
    assert (pipeline.exported, pipeline.dropped, pipeline.is_settled) == (0, 2, False)
    exporter.may.set()
    processor.shutdown()
    assert pipeline.is_settled


@behaviour("traces:no-harm")
@pytest.mark.parametrize("outcome", [SpanExportResult.FAILURE, ConnectionError("http://secret@host")])
def test_a_collector_that_fails_is_said_once_and_without_its_words(
    outcome: SpanExportResult | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    exporter: Any = Reluctant()
    exporter.may.set()
    exporter.outcome = outcome
    pipeline = SpanPipeline(exporter, "1", "the collector at h:1")
    for _ in range(3):
        exporter.is_taking.clear()
        pipeline.add(ENDED, NOW_NS)
        assert exporter.is_taking.wait(20)
    exporter.outcome = SpanExportResult.SUCCESS
    pipeline.shut_down()
    said = [each.getMessage() for each in caplog.records]
    assert len([each for each in said if re.match("traces are lost: .*the collector at h:1", each)]) == 1
    assert "secret" not in caplog.text
    assert pipeline.dropped == 6


@pytest.mark.parametrize(
    ("endpoint", "variables", "name"),
    [
        ("http://me:secret@h:1/secret?key=secret", {}, "the collector at h:1"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@h/x"}, "the collector at h"),
        (
            None,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://g", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:2"},
            "the collector at h:2",
        ),
        (None, {}, "the collector at localhost:4318"),
        ("http://[secret", {}, "the collector"),
    ],
)
def test_the_name_of_a_collector_has_no_credentials(
    endpoint: str | None, variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    assert collector_name(endpoint) == name


def test_an_endpoint_is_the_base_or_the_whole_url() -> None:
    for endpoint in ("http://h:1", "http://h:1/", "http://h:1/v1/traces"):
        exporter = otlp_exporter(endpoint)
        assert vars(exporter)["_endpoint"] == "http://h:1/v1/traces"
        exporter.shutdown()
