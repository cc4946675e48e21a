"""Log lines of the OpenTelemetry SDK become carpool's own, bounded, and without any value."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from carpool_broker.tracing import sdk_log
from carpool_broker.tracing.sdk_log import MAX_LINES, WINDOW_S, SdkLogHandler, log_as_carpool
from tests.behaviours import behaviour

SDK = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


@pytest.fixture(autouse=True)
def _sdk_logger() -> Iterator[None]:
    logger = logging.getLogger(sdk_log.SDK_LOGGER)
    before = logger.handlers[:], logger.propagate
    yield
    logger.handlers[:], logger.propagate = before


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "carpool.broker"]


@behaviour("traces:no-harm")
def test_a_line_of_the_sdk_is_a_json_line_of_carpool_and_nothing_else() -> None:
    code = (
        "import logging\n"
        "from carpool_broker.tracing.sdk_log import log_as_carpool\n"
        "from carpool_protocol.runtime.process import log_to_stderr\n"
        "log_to_stderr('broker')\n"
        "log_as_carpool()\n"
        "log_as_carpool()\n"
        f"logging.getLogger({SDK.name!r}).error('Failed to export %s batch code: %s', 'spans', 503)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, io.StringIO(done.stderr))
    assert (line["level"], line["process"]) == ("error", "broker")
    assert line["message"] == "OpenTelemetry: Failed to export spans batch code: 503"


@behaviour("traces:no-harm")
@pytest.mark.parametrize(
    ("template", "args", "text"),
    [
        (
            "Failed to export %s batch code: %s, reason: %s",
            ("spans", 401, "Unauthorized"),
            "code: 401, reason: Unauthorized",
        ),
        ("code: %s, reason: %s", (None, "no such key hunter2"), "code: None, reason: …"),
        ("code: %s, reason: %s", (None, ConnectionError("http://me:hunter2@h")), "reason: ConnectionError"),
        ("Header format invalid! %s", ("authorization=hunter2",), "Header format invalid! …"),
        ("Invalid timeout value %r, using %s seconds", ("hunter2", 10), "value …, using 10 seconds"),
        ("retrying in %.2fs at http://me:hunter2@h/x?key=hunter2 now", (1.5,), "1.50s at http://h/x now"),
        ("%(a)s", ({"a": "hunter2"},), "…"),
        ("%d spans", ("hunter2",), "%d spans"),
        ("odd 100% text", (), "odd 100% text"),
    ],
)
def test_a_line_keeps_numbers_and_known_words_and_no_value(
    template: str, args: tuple[object, ...], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_as_carpool()
    SDK.error(template, *args)
    (line,) = said(caplog)
    assert text in line
    assert "hunter2" not in line


def test_a_traceback_of_the_sdk_is_the_type_of_its_error(caplog: pytest.LogCaptureFixture) -> None:
    log_as_carpool()
    error = ConnectionError("http://me:hunter2@h")
    SDK.error("Exception while exporting %s.", "Span", exc_info=error)
    assert said(caplog) == ["OpenTelemetry: Exception while exporting Span. (ConnectionError)"]
    assert caplog.records[0].exc_info is None


@behaviour("traces:no-harm")
def test_lines_are_bounded_and_the_next_one_counts_those_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    handler = SdkLogHandler(lambda: now)
    record = logging.LogRecord(SDK.name, logging.WARNING, "", 0, "the same", (), None)
    for _ in range(5):
        handler.handle(record)
    assert said(caplog) == ["OpenTelemetry: the same"]
    for number in range(2 * MAX_LINES):
        handler.handle(logging.LogRecord(SDK.name, logging.WARNING, "", 0, f"line {number}", (), None))
    assert len(said(caplog)) == MAX_LINES
    caplog.clear()
    now = WINDOW_S
    handler.handle(record)
    left_out = 2 * MAX_LINES - (MAX_LINES - 1)
    assert said(caplog) == [f"OpenTelemetry: the same ({left_out} lines were left out before)"]


def test_lines_that_are_no_warnings_are_not_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log_as_carpool()
    SDK.info("Shutdown called, ignoring %s.", "Span")
    assert said(caplog) == []
