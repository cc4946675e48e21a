"""A collector of OpenTelemetry spans in this process: takes OTLP over HTTP on a loopback port.

Knows nothing of: carpool.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class CollectedSpan:
    """One span as the collector got it."""

    def __init__(self, service: str, span: Any) -> None:
        self.service = service
        self.name: str = span.name
        self.trace: str = span.trace_id.hex()
        self.id: str = span.span_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.kind: int = span.kind
        self.error: str = span.status.message if span.status.code == 2 else ""
        self.start_ns: int = span.start_time_unix_nano
        self.end_ns: int = span.end_time_unix_nano
        self.attributes: dict[str, Any] = {
            each.key: each.value.string_value or each.value.int_value for each in span.attributes
        }
        self.text = str(span)


class Collector:
    """What was exported to `url`."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.status = 200
        self.headers: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    collector.take(ExportTraceServiceRequest.FromString(body))
                collector.headers.append(self.headers.get("X-Key", ""))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, request: Any) -> None:
        for of_resource in request.resource_spans:
            named = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                self.spans += [CollectedSpan(named.get("service.name", ""), span) for span in scope.spans]

    def close(self) -> None:
        """End it. Doing it again changes nothing."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector until the end of the block."""
    made = Collector()
    try:
        yield made
    finally:
        made.close()
