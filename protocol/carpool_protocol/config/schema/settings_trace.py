"""The settings of OpenTelemetry traces: `trace` in the file.

Knows nothing of: OpenTelemetry, how calls are sampled.
"""

from typing import Final

from carpool_protocol.config.schema.setting import Setting


def _check_endpoint(url: str) -> str | None:
    """The problem of the URL of a collector; None if it may be used."""
    if not url.startswith(("http://", "https://")) or not url.isprintable() or " " in url:
        return "must be a URL, such as http://localhost:4318"
    return None


TRACE_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="trace.on",
        field="trace.on",
        kind="switch",
        default=False,
        text="Export an OpenTelemetry trace of each sampled call ([traces.md](traces.md)). Needs "
        "the extra `otel`.",
    ),
    Setting(
        key="trace.sample",
        field="trace.sample",
        kind="fraction",
        default=1.0,
        text="Part of the calls that are traced. If an agent sends a `traceparent`, that decides instead.",
    ),
    Setting(
        key="trace.endpoint",
        field="trace.endpoint",
        kind="text",
        check=_check_endpoint,
        text="URL of the OTLP collector (HTTP), such as `http://localhost:4318`. Without it the `OTEL_` "
        "variables of an explicit `carpool up` count.",
    ),
)
"""Settings of the object `trace`."""
