"""An agent on the official SDK that traces: it calls `sdk__echo` through a shim, and prints its spans."""

import json
import os
import sys

import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

memory = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(provider)


async def main() -> None:
    shim = StdioServerParameters(
        command=sys.executable, args=["-m", "carpool", "connect"], env=dict(os.environ)
    )
    async with stdio_client(shim) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        await session.call_tool("sdk__echo", {"text": "hunter2"})
    spans = [
        {"name": span.name, "trace": f"{span.context.trace_id:032x}", "id": f"{span.context.span_id:016x}"}
        for span in memory.get_finished_spans()
        if span.context is not None
    ]
    print(json.dumps(spans))


anyio.run(main)
