"""Logs over HTTP, with files: the names of those that are there, and one that cannot be read."""

import asyncio
import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from carpool.http.core.access import AccessRules
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.server import HttpDoorServer
from tests.behaviours import behaviour
from tests.client.http.test_connection import WAIT_S, Client

KEY = "the-key-of-the-page"


def logs_answer(folder: Path, query: str) -> tuple[int, Any]:
    """The status and the body that a door with these logs answers with."""

    async def run() -> tuple[int, Any]:
        gate = AccessRules(page_key=hashlib.sha256(KEY.encode()).digest())
        core = HttpCore(HttpRules(), gate, patience_s=0.0)
        server = HttpDoorServer(str(folder), core, HttpLimits(), 9, logs=str(folder))
        listening = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            running = asyncio.create_task(server.run(listener, listening.set))
            await listening.wait()
            client = Client(*await asyncio.open_connection(*listener.getsockname()[:2]))
            lines = [f"GET /operator/logs{query} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {KEY}"]
            await client.send("\r\n".join([*lines, "", ""]).encode())
            status, body = await client.answer()
            client.writer.close()
            server.stop()
            await asyncio.wait_for(running, WAIT_S)
        return status, json.loads(body)

    return asyncio.run(run())


@behaviour("web:access")
def test_the_names_of_all_logs_come_with_each_answer(tmp_path: Path) -> None:
    for name in ("supervisor-sup1.log", "node.log", "server-git.log", "server-git.log.1", "audit.jsonl"):
        (tmp_path / name).write_text("a line\n")
    status, found = logs_answer(tmp_path, "")
    assert (status, found) == (200, {"logs": ["node", "server-git", "supervisor-sup1"], "lines": []})
    status, found = logs_answer(tmp_path, "?log=supervisor-sup1")
    assert (status, [each["message"] for each in found["lines"]]) == (200, ["a line"])
    status, found = logs_answer(tmp_path, "?log=supervisor")
    assert (status, "names of those that are there" in found["error"]["message"]) == (404, True)


@behaviour("web:access")
def test_a_log_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError

    (tmp_path / "broker.log").write_text("a line\n")
    monkeypatch.setattr("carpool.http.server.last_records", broken)
    status, found = logs_answer(tmp_path, "?log=broker")
    assert (status, "could not be read" in found["error"]["message"]) == (503, True)
