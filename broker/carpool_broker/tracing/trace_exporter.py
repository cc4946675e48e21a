"""Turns the export of traces on and off, and says why nothing is exported.

Owns when the OpenTelemetry SDK is imported: when traces are turned on, and never before. Owns the variables
that the SDK sees: those of an explicit `carpool up`, never those of an agent's program.

Invariant: no failure of the SDK or the collector reaches a caller or delays a call. Refuses to know: which
calls are traced, which spans a call has (`call_tracing`), the form of spans (`span_pipeline`), what the SDK
logs (`sdk_log`).
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from carpool_broker.core.model.effects import ExportTrace
from carpool_broker.tracing.sdk_log import log_as_carpool
from carpool_protocol.bootstrap.extras import install_command, is_installed
from carpool_protocol.config.schema.model import TRACE_VARIABLES, TraceConfig

if TYPE_CHECKING:
    from carpool_broker.tracing.span_pipeline import SpanPipeline

log = logging.getLogger("carpool.broker")

CLOSE_S: Final = 2.0
"""How long the broker waits at its end for the collector."""


class TraceExporter:
    """The export of traces of one broker. `variables`: some of them are for the SDK."""

    def __init__(self, release: str, variables: Mapping[str, str]) -> None:
        self._release = release
        self._variables = {n: text for n, text in variables.items() if n.startswith(TRACE_VARIABLES)}
        self._endpoint: str | None = None
        self._pipeline: SpanPipeline | None = None
        self._problem = ""
        self._ending: list[SpanPipeline] = []
        """Earlier pipelines, of which spans may still be on their way."""
        self._exported = self._dropped = 0
        """Spans of pipelines that have ended."""

    @property
    def is_on(self) -> bool:
        """True if spans are exported."""
        return self._pipeline is not None

    def facts(self) -> dict[str, Any]:
        """Return what `status` says of the export. `problem`: why nothing is exported although it is on."""
        pipeline = self._pipeline
        self._settle()
        counted = [*self._ending, *([pipeline] if pipeline else [])]
        return {
            "on": self.is_on,
            "problem": self._problem or (pipeline.problem if pipeline else ""),
            "exported": self._exported + sum(each.exported for each in counted),
            "dropped": self._dropped + sum(each.dropped for each in counted),
        }

    def configure(self, config: TraceConfig) -> None:
        """Turn the export on or off."""
        if self._pipeline is not None and config.on and config.endpoint == self._endpoint:
            return
        self._settle()
        if (old := self._take()) is not None:
            # The collector may be slow, and the loop must not wait for it.
            threading.Thread(target=old.shut_down, daemon=True).start()
        self._problem = ""
        if config.on:
            self._start(config)

    def _start(self, config: TraceConfig) -> None:
        if not is_installed("otel"):
            self._fail(f"they need more than is installed: {install_command('otel')}")
            return
        log_as_carpool()
        try:
            with _environment(self._variables):
                from carpool_broker.tracing.span_pipeline import SpanPipeline, collector_name, otlp_exporter

                collector = collector_name(config.endpoint)
                self._pipeline = SpanPipeline(otlp_exporter(config.endpoint), self._release, collector)
        except Exception as error:  # noqa: BLE001 - whatever the SDK finds wrong with its variables
            self._fail(f"the OpenTelemetry SDK does not start ({type(error).__name__})")
            return
        self._endpoint = config.endpoint
        log.info("traces are exported to %s", collector)

    def add(self, ended: ExportTrace) -> None:
        """Export the spans of a call that ends now."""
        if self._pipeline is not None:
            self._pipeline.add(ended, time.time_ns())

    async def close(self) -> None:
        """Stop the export, and wait a bounded time for the collector."""
        if (pipeline := self._take()) is not None:
            with trio.move_on_after(CLOSE_S):
                await trio.to_thread.run_sync(pipeline.shut_down, abandon_on_cancel=True)

    def _take(self) -> "SpanPipeline | None":
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            self._ending.append(pipeline)
        return pipeline

    def _settle(self) -> None:
        """Keep only the counts of pipelines that have ended."""
        for pipeline in [each for each in self._ending if each.is_settled]:
            self._ending.remove(pipeline)
            self._exported += pipeline.exported
            self._dropped += pipeline.dropped

    def _fail(self, why: str) -> None:
        self._problem = why
        log.error("traces are on and cannot be exported: %s", why)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let the SDK read these variables, and no other ones of its own, while it starts."""
    before = {name: text for name, text in os.environ.items() if name.startswith(TRACE_VARIABLES)}
    for name in before:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)
