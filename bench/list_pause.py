"""`python -m bench.list_pause`: how long a server whose long list changes all the time holds up others.

A private carpool with two servers: `echo`, which an agent calls one call after the other, and `many`, with
so many tools, each other words every second. Measures the agent's calls first while `many` does nothing, then
while its list changes. Prints p50, p99 and the worst. Bounded: so many seconds each.
Knows nothing of: how lists are read.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any, Final

from bench.leases import LIMIT_S, GreetedShim
from carpool.bench.spawn import until
from carpool.launcher.sandbox import PrivateCarpool

SERVER: Final = """
import json, sys, threading, time
count, every_s = int(sys.argv[1]), float(sys.argv[2])
lock = threading.Lock()
def send(text):
    with lock:
        sys.stdout.write(text + "\\n"); sys.stdout.flush()
def page(version):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    words = "x" * 60
    text = f"{version} {words}"
    return json.dumps({"tools": [{"name": f"tool_{at}", "description": text, "inputSchema": schema}
                                 for at in range(count)]})
pages = [page(0), page(1)]
told = 0
changing = threading.Event()
def change():
    while changing.wait():
        send('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        time.sleep(every_s)
threading.Thread(target=change, daemon=True).start()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    identity = json.dumps(message["id"])
    if message["method"] == "initialize":
        result = json.dumps({"protocolVersion": "2025-06-18",
                             "capabilities": {"tools": {"listChanged": True}},
                             "serverInfo": {"name": "many", "version": "1"}})
    elif message["method"] == "tools/list":
        told += 1
        result = pages[told % 2]
    elif message["method"] == "tools/call":
        changing.set() if message["params"]["name"] == "tool_0" else changing.clear()
        result = json.dumps({"content": [{"type": "text", "text": str(told)}]})
    else:
        result = "{}"
    send('{"jsonrpc":"2.0","id":%s,"result":%s}' % (identity, result))
"""
EVERY_S: Final = 1.0


def call(agent: GreetedShim, number: int, tool: str) -> tuple[float, str]:
    """Seconds until the answer, and its text."""
    began = time.perf_counter()
    agent.send({"id": number, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
    answer = agent.answer(number)
    text: str = answer["result"]["content"][0]["text"]
    return time.perf_counter() - began, text


def calls(agent: GreetedShim, seconds: float, first: int) -> list[float]:
    """One call after the other, with a short pause, for so long."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        took.append(call(agent, first + len(took), "echo__tool_1")[0])
        time.sleep(0.002)
    return took


def figures(took: list[float]) -> dict[str, Any]:
    """In milliseconds."""
    every = sorted(1000 * each for each in took)
    return {
        "calls": len(every),
        "p50_ms": round(statistics.median(every), 2),
        "p99_ms": round(every[int(len(every) * 0.99)], 2),
        "worst_ms": round(every[-1], 2),
    }


def measure(tools: int, seconds: float) -> dict[str, Any]:
    """Both, with a list of so many tools."""
    private = PrivateCarpool("cpp-")
    try:
        program = private.base / "many.py"
        program.write_text(SERVER)

        def server(count: int) -> dict[str, Any]:
            arguments = ["-S", "-E", str(program), str(count), str(EVERY_S)]
            return {"command": sys.executable, "args": arguments, "sharing": "concurrent"}

        servers = {"echo": server(3), "many": server(tools)}
        private.config_file.write_text(json.dumps({"mcpServers": servers}))
        private.up()
        agent, other = GreetedShim(private), GreetedShim(private)
        for each in (agent, other):
            call(each, 1, "many__tool_1")
        call(agent, 2, "echo__tool_1")
        until(lambda: private.status()["servers"]["many"]["tools"] == tools, LIMIT_S, "the list is read")
        quiet = figures(calls(agent, seconds, 100))
        before = int(call(other, 3, "many__tool_0")[1])
        changing = figures(calls(agent, seconds, 1_000_000))
        read = int(call(other, 4, "many__tool_1")[1]) - before
        for each in (agent, other):
            each.close()
    finally:
        troubles = private.close()
    if troubles:
        raise SystemExit("\n".join(troubles))
    return {"tools": tools, "lists_read": read, "quiet": quiet, "changing": changing}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.list_pause", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--tools", type=int, nargs="*", default=[20_000, 60_000], help="lengths of the list")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each part (default 15)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(argv)
    found = [measure(tools, options.seconds) for tools in options.tools]
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for each in found:
        print(f"{each['tools']:,} tools, read {each['lists_read']} times while they changed")
        for part in ("quiet", "changing"):
            its = each[part]
            times = f"p50 {its['p50_ms']:.1f} ms, p99 {its['p99_ms']:.1f} ms, worst {its['worst_ms']:.1f} ms"
            print(f"  {part:9} {its['calls']} calls: {times}")


if __name__ == "__main__":
    main(sys.argv[1:])
