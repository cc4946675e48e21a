"""Stories over HTTP whose call went to another node: the answer if no node's process can be asked."""

import asyncio
import hashlib
import json
import socket
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from carpool.http.broker_link import BrokerLink
from carpool.http.core.access import AccessRules
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.server import HttpDoorServer
from carpool_protocol.carrier.streams import frame_line, split_frame
from tests.behaviours import behaviour
from tests.client.http.test_connection import WAIT_S, Client, until

KEY = "the-key-of-the-page"
HANDED = {"type": "WriteCall", "call": {"call": 7}, "instance": 3, "wire": 9}
STORY = {
    "call": "c7",
    "broker": [],
    "supervisor": [{"at": 2.0, "event": {"type": "Call"}, "effects": [HANDED]}],
    "pids": {},
    "nodes": {"3": {"node": "alpha", "session": 5}},
}


def told_story(directory: Path) -> Any:
    """The body that a door answers with if its broker tells this story."""

    async def run() -> Any:
        gate = AccessRules(page_key=hashlib.sha256(KEY.encode()).digest())
        server = HttpDoorServer(str(directory), HttpCore(HttpRules(), gate), HttpLimits(), 9)
        listening = asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            running = asyncio.create_task(server.run(listener, listening.set))
            await listening.wait()
            client = Client(*await asyncio.open_connection(*listener.getsockname()[:2]))
            link = create_autospec(BrokerLink, instance=True, is_congested=False)
            server._broker_connected(link)
            head = f"GET /operator/story?call=c7 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}"
            await client.send(f"{head}\r\n\r\n".encode())
            await until(lambda: link.write.call_count and b"carpool/story" in link.write.call_args.args[0])
            parts = split_frame(link.write.call_args.args[0].removesuffix(b"\n"))
            assert parts is not None
            s, message, x = parts
            answer = {"jsonrpc": "2.0", "id": json.loads(message)["id"], "result": STORY}
            server._line_received(frame_line(s, json.dumps(answer).encode(), x).removesuffix(b"\n"))
            status, body = await client.answer()
            assert status == 200
            client.writer.close()
            server.stop()
            await asyncio.wait_for(running, WAIT_S)
        return json.loads(body)

    return asyncio.run(run())


@behaviour("operate:http", "cluster:story")
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_story_says_that_another_node_could_not_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_broken: bool
) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError

    if is_broken:
        monkeypatch.setattr("carpool.http.server.stories_at_nodes", broken)
    told = told_story(tmp_path)
    (node,) = told["nodes"]
    assert (node["node"], node["steps"]) == ("alpha", [])
    assert ("could not be asked" if is_broken else "does not answer") in node["refused"]
    assert [step["where"] for step in told["steps"]] == ["supervisor"]
