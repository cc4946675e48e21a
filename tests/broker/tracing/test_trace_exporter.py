"""When the SDK is imported, which variables it sees, and what is said where it cannot be."""

import os
import subprocess
import sys
import threading

import pytest
import trio

from carpool_broker.core.model.effects import ExportTrace
from carpool_broker.core.model.traces import TracedSpan
from carpool_broker.tracing import trace_exporter
from carpool_broker.tracing.trace_exporter import TraceExporter
from carpool_protocol.config.schema.model import TraceConfig
from tests.behaviours import behaviour
from tests.kit.waits import until

OFF = TraceConfig(on=False, sample=1.0, endpoint=None)
ON = TraceConfig(on=True, sample=1.0, endpoint="http://127.0.0.1:9")
ENDED = ExportTrace("a" * 32, (TracedSpan("tools/call x", "server", "b" * 16, "", 2.0, 0.0, {}, ""),))
NOTHING = {"on": False, "problem": "", "exported": 0, "dropped": 0}


@behaviour("traces:off")
def test_without_traces_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, carpool_broker.__main__\n"
        "from carpool_broker.tracing.trace_exporter import TraceExporter\n"
        "from carpool_protocol.config.schema.model import TraceConfig\n"
        "TraceExporter('1', {}).configure(TraceConfig(on=False, sample=1.0, endpoint=None))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_an_exporter_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_exporter, "is_installed", lambda _: False)
    exporter = TraceExporter("1", {})
    exporter.configure(ON)
    exporter.add(ExportTrace("a" * 32, ()))
    facts = exporter.facts()
    assert "-m pip install 'opentelemetry-sdk" in facts.pop("problem")
    assert facts == {"on": False, "exported": 0, "dropped": 0}
    exporter.configure(OFF)
    assert exporter.facts() == NOTHING


@behaviour("traces:variables")
async def test_the_sdk_sees_the_variables_that_up_brought_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from carpool_broker.tracing import span_pipeline

    seen: list[dict[str, str]] = []

    def exporter_of(endpoint: str | None) -> object:
        seen.append({name: text for name, text in os.environ.items() if name.startswith("OTEL_")})
        return make(endpoint)

    make = span_pipeline.otlp_exporter
    monkeypatch.setattr(span_pipeline, "otlp_exporter", exporter_of)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://of.an.agent")
    exporter = TraceExporter("1", {"OTEL_SERVICE_NAME": "mine", "GITHUB_TOKEN": "x"})
    exporter.configure(ON)
    assert exporter.is_on
    assert seen == [{"OTEL_SERVICE_NAME": "mine"}]
    assert os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://of.an.agent"
    assert "OTEL_SERVICE_NAME" not in os.environ
    exporter.configure(ON)
    assert len(seen) == 1, "nothing has changed"
    await exporter.close()
    assert exporter.facts() == NOTHING


class HeldExporter:
    """An exporter that loses what it is given once it may, and that knows when it is asked."""

    def __init__(self) -> None:
        self.is_asked, self.may = threading.Event(), threading.Event()

    def export(self, _: object) -> object:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.is_asked.set()
        assert self.may.wait(20)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass


@behaviour("traces:no-harm")
@pytest.mark.parametrize("after", [TraceConfig(on=True, sample=1.0, endpoint="http://127.0.0.1:10"), OFF])
async def test_spans_that_are_lost_after_the_endpoint_has_changed_are_counted(
    after: TraceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from carpool_broker.tracing import span_pipeline

    held = HeldExporter()
    monkeypatch.setattr(span_pipeline, "otlp_exporter", lambda _: held)
    exporter = TraceExporter("1", {"OTEL_BSP_SCHEDULE_DELAY": "10"})
    exporter.configure(ON)
    exporter.add(ENDED)
    assert await trio.to_thread.run_sync(held.is_asked.wait, 20)
    exporter.add(ENDED)
    exporter.configure(after)
    assert exporter.facts()["dropped"] == 0
    held.may.set()
    await until(lambda: exporter.facts()["dropped"] == 2, "both spans are lost")
    for _ in range(3):
        exporter.configure(after)
    assert exporter.facts()["dropped"] == 2
    await exporter.close()


async def test_variables_that_the_sdk_refuses_are_a_problem_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    exporter = TraceExporter("1", {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100000"})
    exporter.configure(ON)
    assert exporter.facts()["problem"] == "the OpenTelemetry SDK does not start (ValueError)"
    await exporter.close()
