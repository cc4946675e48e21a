"""Record what a server lists, for `bench.search`.

    python -m bench.record_tools NAME PACKAGE VERSION LICENCE -- COMMAND…

Owns the form of `bench/data/tools/NAME.json`: whose words they are, and of each tool what a model is shown.
The server is run by this alone, as an agent would run it; a made-up key in its environment is enough for
most, since nothing is called. Only servers whose licence lets others pass their words on may be recorded.
"""

import argparse
import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LIMIT_S: Final = 60.0
SHOWN: Final = ("name", "title", "description", "inputSchema")
DATA: Final = Path(__file__).parent / "data" / "tools"


class Server:
    """A server over pipes, for a few requests one after the other."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._last = 0

    def say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request. Junk on stdout, notifications and questions are passed over."""
        self._last += 1
        self.say({"id": self._last, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and said.get("id") == self._last and "result" in said:
                result: dict[str, Any] = said["result"]
                return result
            if isinstance(said, dict) and said.get("id") == self._last and "error" in said:
                raise SystemExit(f"{method}: {said['error']}")
        raise SystemExit(f"{method}: the server has ended, or took more than {LIMIT_S:g} s")

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def listed(command: list[str]) -> list[dict[str, Any]]:
    """All tools of a server, over all pages."""
    server = Server(command)
    timer = threading.Timer(LIMIT_S, server.end)
    timer.start()
    try:
        who = {"name": "recorder", "version": "1"}
        server.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who})
        server.say({"method": "notifications/initialized"})
        tools: list[dict[str, Any]] = []
        cursor: dict[str, Any] = {}
        while True:
            page = server.ask("tools/list", cursor)
            tools += page["tools"]
            if not page.get("nextCursor"):
                return tools
            cursor = {"cursor": page["nextCursor"]}
    finally:
        timer.cancel()
        server.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for word in ("server", "package", "version", "licence"):
        parser.add_argument(word)
    parser.add_argument("command", nargs="+")
    options = vars(parser.parse_args())
    tools = [{key: tool[key] for key in SHOWN if key in tool} for tool in listed(options.pop("command"))]
    lines = ",\n".join(json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools)
    head = json.dumps(options, ensure_ascii=False)[:-1]
    path = DATA / f"{options['server']}.json"
    path.write_text(f'{head}, "tools": [\n{lines}\n]}}\n')
    print(f"{len(tools)} tools in {path}")


if __name__ == "__main__":
    main()
