"""An array with long answers over a real connection: a client that reads gets all of them."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

from carpool.http.broker_link import BrokerLink
from carpool.http.core.access import AccessRules
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import MAX_UNSENT_BYTES, HttpLimits
from carpool.http.server import HttpDoorServer
from carpool_protocol.carrier.streams import StreamOpened, control_line, frame_line, split_frame
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import BOTH, request
from tests.client.http.test_connection import WAIT_S, Client, until

ANSWERS = 6
LONG = "x" * (3 * MAX_UNSENT_BYTES)
VERSION = "2025-03-26"


def post(body: Any, **headers: str) -> bytes:
    text = json.dumps(body)
    fixed = {"Host": "127.0.0.1", "Content-Type": "application/json", "Accept": BOTH}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**fixed, **headers}.items())
    return f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()


class PlayedBroker:
    """The broker's end of a door's link."""

    def __init__(self, server: HttpDoorServer) -> None:
        self._server = server
        self.link = create_autospec(BrokerLink, instance=True, is_congested=False)

    async def asked(self, method: str) -> tuple[int, int]:
        """Wait for a request with this method. Returns its stream and its exchange."""
        said = f'"{method}"'.encode()

        def lines() -> list[bytes]:
            return [each.args[0] for each in self.link.write.call_args_list if said in each.args[0]]

        await until(lambda: bool(lines()))
        parts = split_frame(lines()[-1].removesuffix(b"\n"))
        assert parts is not None
        return parts[0], parts[2]

    def answer(self, s: int, x: int, ident: int, result: Any) -> None:
        line = json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}).encode()
        self.say(frame_line(s, line, x))

    def say(self, frame: bytes) -> None:
        self._server._line_received(frame.removesuffix(b"\n"))


async def answers_read(directory: Path) -> bytes:
    """What a client reads of an array whose long answers come all at once."""
    server = HttpDoorServer(str(directory), HttpCore(HttpRules(), AccessRules()), HttpLimits(), 9)
    broker = PlayedBroker(server)
    listening = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.run(listener, listening.set))
        await listening.wait()
        server._broker_connected(broker.link)
        client = Client(*await asyncio.open_connection(*listener.getsockname()[:2], limit=64 * len(LONG)))
        greeting = {"protocolVersion": VERSION}
        await client.send(post(request(0, "initialize", **greeting)))
        s, x = await broker.asked("initialize")
        broker.say(control_line(s, StreamOpened("sid")))
        broker.answer(s, x, 0, greeting)
        assert (await client.answer())[0] == 200
        calls = [request(each, "tools/call") for each in range(1, ANSWERS + 1)]
        await client.send(post(calls, **{"Mcp-Session-Id": "sid"}))
        s, x = await broker.asked("tools/call")
        for ident in range(1, ANSWERS + 1):
            broker.answer(s, x, ident, LONG)
        found = await client.until(b"\r\n0\r\n\r\n")
        client.writer.close()
        server.stop()
        await asyncio.wait_for(running, WAIT_S)
    return found


@behaviour("http:arrays")
def test_a_client_that_reads_gets_all_long_answers_to_an_array_that_come_at_once(tmp_path: Path) -> None:
    found = asyncio.run(answers_read(tmp_path))
    assert found.count(LONG.encode()) == ANSWERS
