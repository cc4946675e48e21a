"""A server that is reached over a URL, in a process of its own on loopback (`tests/kit/servers/far.py`).

Knows nothing of: carpool, what is tried with it.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]
WAIT_S = 40.0
_PROGRAM = Path(__file__).parent / "servers" / "far.py"


class RemoteServer:
    """One such server. It may be killed and come back on the same port."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        assert self._process is None
        words = [sys.executable, str(_PROGRAM), str(self.port), *self._options]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.seen()

    def kill(self) -> None:
        """At once, with every connection."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/mcp") -> str:
        return f"http://{self.host}{path}"

    def seen(self) -> Json:
        """Its facts, and every request that came in."""
        with urllib.request.urlopen(self.url("/seen"), timeout=WAIT_S) as response:
            found: Json = json.load(response)
            return found

    def requests(self, path: str = "/mcp") -> list[Json]:
        return [each for each in self.seen()["seen"] if each["path"] == path]

    def change(self, **what: Any) -> None:
        with urllib.request.urlopen(self.url("/change"), json.dumps(what).encode(), timeout=WAIT_S):
            pass


@contextmanager
def remote_server(*options: str) -> Iterator[RemoteServer]:
    one = RemoteServer(*options)
    try:
        yield one
    finally:
        with suppress(ProcessLookupError):
            one.close()
