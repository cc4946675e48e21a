"""A server on the official SDK that exports its spans: `traced_server.py COLLECTOR_URL`."""

import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "server"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{sys.argv[1]}/v1/traces")))
trace.set_tracer_provider(provider)
server: MCPServer[None] = MCPServer("traced")


@server.tool(annotations=ToolAnnotations(title="Echo"))
def echo(text: str) -> str:
    """Say it again; `fail` fails."""
    if text == "fail":
        raise ValueError("no")
    return text


if __name__ == "__main__":
    server.run()
