"""The HTTP door is replaced while agents use it: restarts, an upgrade, new settings (docs/decisions/0054)."""

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.handover import broken, executions, findings, load
from bench.http_worker import workers
from carpool import launcher_lock
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.kit.waits import until
from tests.live.test_live_http import BOTH, META, ask, door, modern, request, session
from tests.live.test_live_upgrade import Installed

MODERN = {
    "Content-Type": "application/json",
    "Accept": BOTH,
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
}


def port_of(daemon: Daemon) -> int:
    return int(door(daemon)[0].split(":")[2].partition("/")[0])


def send(connection: HTTPConnection, name: str, **arguments: Any) -> None:
    """A call of the stateless era on this connection."""
    call = request(1, "tools/call", _meta=META, name=name, arguments=arguments)
    connection.request("POST", "/mcp", json.dumps(call), {**MODERN, "Mcp-Name": name})


def text(connection: HTTPConnection) -> str:
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == 200, said
    return str(json.loads(said)["result"]["content"][0]["text"])


async def draining(daemon: Daemon, count: int = 1) -> None:
    await until(lambda: daemon.log("broker").count("draining") == count, "the broker drains", WAIT_S)


@pytest.fixture
def connection() -> Iterator[HTTPConnection]:
    """A connection that does not come back by itself."""
    with closing(HTTPConnection("127.0.0.1", timeout=LIMIT_S)) as found:
        found.auto_open = 0
        yield found


@behaviour("handover:address", "handover:requests", "handover:keep-alive", "upgrade:in-place")
def test_a_crowd_notices_a_pause_of_two_restarts_and_an_upgrade_in_place(tmp_path: Path) -> None:
    order = tmp_path / "order"
    order.touch()
    one = Installed({"good": observer("--order", str(order), pool={"max": 1})}, http=open_door())

    def restart() -> None:
        done = one.run("restart", "--all")
        assert done.returncode == 0, done.stderr

    def upgrade() -> None:
        one.install("2.0.0", moved=True)
        restart()

    try:
        one.up()
        crowd = workers(8, port_of(one))
        asyncio.run(load(crowd, "good__steps", [restart, upgrade, restart], 0.5))
        assert one.facts()["broker"]["version"] == "2.0.0"
        found = findings(crowd, executions(order))
        assert not broken(found), found
        for worker in crowd:
            outcomes = Counter(worker.calls.values())
            others = {"closing, delivered no", "session ended (404)"} if worker.in_session else set()
            assert set(outcomes) <= {"good", *others}, outcomes
            assert outcomes["session ended (404)"] <= 3, "a session ends once with each restart"
    finally:
        one.close()


@behaviour("handover:requests", "handover:keep-alive")
async def test_open_posts_are_answered_and_later_ones_run_at_the_next_daemon(
    daemon: Make, tmp_path: Path, connection: HTTPConnection
) -> None:
    order, end = tmp_path / "order", tmp_path / "end"
    one = daemon({"good": observer("--order", str(order), pool={"max": 1})}, http=open_door())
    url, first = door(one)
    open_, late = HTTPConnection("127.0.0.1", port_of(one), timeout=LIMIT_S), connection
    late.port = open_.port
    with trio.fail_after(LIMIT_S):
        late.connect()
        send(open_, "good__hold", text="open", seconds=0, until=str(end))
        await one.until(lambda facts: facts["totals"]["in_flight"] == 1, "the call is at the server")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.carpool, "restart", "--all")
            await draining(one)
            send(late, "good__echo", text="late")
            new = await trio.to_thread.run_sync(
                lambda: HTTPConnection("127.0.0.1", open_.port, timeout=LIMIT_S)
            )
            send(new, "good__echo", text="new")
            end.touch()
            assert await trio.to_thread.run_sync(text, open_) == "held"
            assert await trio.to_thread.run_sync(text, late) == "late"
            assert await trio.to_thread.run_sync(text, new) == "new"
        for each in (open_, late, new):  # on the same connections
            each.auto_open = 0
            send(each, "good__echo", text="after")
            assert await trio.to_thread.run_sync(text, each) == "after"
            each.close()
    assert door(one) == (url, door(one)[1])
    assert door(one)[1] != first
    assert Counter(order.read_text().split()) == {"open": 1, "late": 1, "new": 1, "after": 3}


@behaviour("handover:requests")
async def test_a_question_is_answered_over_http_while_carpool_drains(daemon: Make) -> None:
    one = daemon({"asks": kit("asks_back")}, http=open_door())
    url, _ = door(one)
    greeting = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"sampling": {}},
        "clientInfo": {"name": "t", "version": "1"},
    }
    sid = ask(url, "POST", "", request(1, "initialize", **greeting)).headers["Mcp-Session-Id"]
    ask(url, "POST", "", {"jsonrpc": "2.0", "method": "notifications/initialized"}, Mcp_Session_Id=sid)
    asking = HTTPConnection("127.0.0.1", port_of(one), timeout=LIMIT_S)
    headers = {"Content-Type": "application/json", "Accept": BOTH, "Mcp-Session-Id": sid}
    with trio.fail_after(LIMIT_S):
        call = request(2, "tools/call", name="asks__ask", arguments={"text": "who?"})
        asking.request("POST", "/mcp", json.dumps(call), headers)
        answer = await trio.to_thread.run_sync(asking.getresponse)

        def message() -> Any:
            while not (line := answer.readline()).startswith(b"data: {"):
                assert line, "the stream ended"
            return json.loads(line[6:])

        question = await trio.to_thread.run_sync(message)
        assert question["method"] == "sampling/createMessage"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.carpool, "restart", "--all")
            await draining(one)
            said = {"role": "assistant", "content": {"type": "text", "text": "me"}, "model": "m"}
            told = {"jsonrpc": "2.0", "id": question["id"], "result": said}
            taken = await trio.to_thread.run_sync(lambda: ask(url, "POST", "", told, Mcp_Session_Id=sid))
            assert taken.status == 202
            assert "me" in (await trio.to_thread.run_sync(message))["result"]["content"][0]["text"]
        await trio.to_thread.run_sync(answer.read)  # raises where the stream was cut
        asking.close()
        gone = ask(url, "POST", "", request(3, "ping"), Mcp_Session_Id=sid)
        assert gone.status == 404
    session(url)


@behaviour("handover:requests")
async def test_an_event_stream_ends_properly_and_its_connection_goes_on(
    daemon: Make, connection: HTTPConnection
) -> None:
    one = daemon({"good": observer()}, http=open_door())
    url, _ = door(one)
    sid = session(url)
    connection.port = port_of(one)
    with trio.fail_after(LIMIT_S):
        connection.connect()
        connection.request("GET", "/mcp", headers={"Accept": "text/event-stream", "Mcp-Session-Id": sid})
        listening = await trio.to_thread.run_sync(connection.getresponse)
        assert listening.status == 200
        assert (await one.carpool("restart", "--all"))[0] == 0
        await trio.to_thread.run_sync(listening.read)  # raises where the stream was cut
        send(connection, "good__echo", text="after")
        assert await trio.to_thread.run_sync(text, connection) == "after"


@behaviour("handover:requests", "handover:keep-alive", "handover:address")
async def test_a_door_with_other_settings_goes_on_with_connections_and_sessions(
    daemon: Make, tmp_path: Path, connection: HTTPConnection
) -> None:
    port, end = free_port(), tmp_path / "end"
    servers = {"good": observer(pool={"max": 1})}
    one = daemon(servers, http=open_door(port))
    url, first = door(one)
    sid = session(url)
    connection.port = port
    with trio.fail_after(LIMIT_S):
        connection.connect()
        send(connection, "good__hold", text="open", seconds=0, until=str(end))
        await one.until(lambda facts: facts["totals"]["in_flight"] == 1, "the call is at the server")
        one.configure(servers, http=open_door(port, json_response=True))
        await until(lambda: "it starts again" in one.log("http"), "the door has seen it", WAIT_S)
        waiting = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        send(waiting, "good__echo", text="waiting")
        in_session: list[Any] = []

        def call_in_session() -> None:
            call = request(2, "tools/call", name="good__echo", arguments={"text": "in session"})
            in_session.append(ask(url, "POST", "", call, Mcp_Session_Id=sid))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, call_in_session)
            end.touch()
        assert in_session[0].json["result"]["content"][0]["text"] == "in session"
        assert await trio.to_thread.run_sync(text, connection) == "held"
        assert await trio.to_thread.run_sync(text, waiting) == "waiting"
        await until(lambda: door(one)[1] != first, "the next door listens", WAIT_S)
        send(connection, "good__echo", text="after")
        assert await trio.to_thread.run_sync(text, connection) == "after"
        ping = await trio.to_thread.run_sync(
            lambda: ask(url, "POST", "", request(2, "ping"), Mcp_Session_Id=sid)
        )
        assert ping.status == 200
    waiting.close()


@behaviour("http:bounds-at-once")
async def test_another_bound_holds_at_once_and_holds_up_no_request_while_a_long_call_runs(
    daemon: Make, tmp_path: Path
) -> None:
    port, end = free_port(), tmp_path / "end"
    servers = {"good": observer()}
    one = daemon(servers, http=open_door(port, max_open=1))
    url, first = door(one)
    connections = [HTTPConnection("127.0.0.1", port, timeout=LIMIT_S) for _ in range(3)]
    with trio.fail_after(LIMIT_S):
        for number, connection in enumerate(connections[:2]):
            send(connection, "good__hold", text=str(number), seconds=0, until=str(end))
            if number == 0:
                await one.until(lambda facts: facts["totals"]["in_flight"] == 1, "the call is at the server")
        refused = await trio.to_thread.run_sync(connections[1].getresponse)
        assert (refused.status, bool(refused.read())) == (429, True)
        one.configure(servers, http=open_door(port, max_open=3, max_sessions=77))
        await until(lambda: modern(url, "tools/list").status == 200, "the new bound holds", WAIT_S)
        for connection in connections[1:]:
            send(connection, "good__hold", text="more", seconds=0, until=str(end))
        await one.until(lambda facts: facts["totals"]["in_flight"] == 3, "all are at the server at once")
        assert door(one) == (url, first), "the door stays"
        end.touch()
        for connection in connections:
            assert await trio.to_thread.run_sync(text, connection) == "held"
            connection.close()


@behaviour("handover:address")
async def test_a_request_to_a_killed_door_waits_for_the_next_one(daemon: Make) -> None:
    one = daemon({"good": observer()}, http=open_door())
    url, first = door(one)
    with trio.fail_after(LIMIT_S):
        os.kill(first, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                """It connects to the kernel, which nobody tells to accept it."""
                found = await trio.to_thread.run_sync(
                    lambda: modern(url, "tools/call", name="good__echo", arguments={"text": "x"})
                )
                assert found.status == 200

            nursery.start_soon(call)
            listening = f":{port_of(one):04X} "
            await until(
                lambda: Path("/proc/net/tcp").read_text().count(listening) > 1, "it is connected", WAIT_S
            )
            os.kill(first, signal.SIGKILL)


@behaviour("handover:requests")
async def test_a_request_that_does_not_arrive_in_time_is_refused(daemon: Make) -> None:
    one = daemon({"good": observer()}, http=open_door())
    with trio.fail_after(LIMIT_S):
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(one))
        async with stream, trio.open_nursery() as nursery:
            await stream.send_all(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf")
            nursery.start_soon(one.carpool, "restart", "--all")
            answer = await stream.receive_some()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"try it again" in answer


@behaviour("handover:requests")
async def test_a_session_goes_on_while_a_slow_client_holds_up_the_change_of_settings(
    daemon: Make, connection: HTTPConnection
) -> None:
    port = free_port()
    servers = {"good": observer()}
    one = daemon(servers, http=open_door(port))
    url, first = door(one)
    sid = session(url)
    connection.port = port
    headers = {"Content-Type": "application/json", "Accept": BOTH, "Mcp-Session-Id": sid}
    with trio.fail_after(LIMIT_S):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf")
            connection.connect()
            one.configure(servers, http=open_door(port, json_response=True))
            await until(lambda: "it starts again" in one.log("http"), "the door has seen it", WAIT_S)
            for ident in (2, 3):
                connection.request("POST", "/mcp", json.dumps(request(ident, "ping")), headers)
                answer = await trio.to_thread.run_sync(connection.getresponse)
                assert (answer.status, json.loads(answer.read())["id"]) == (200, ident)
        await until(lambda: door(one)[1] != first, "the next door listens", WAIT_S)


@behaviour("handover:requests")
async def test_a_call_of_a_session_is_refused_also_if_the_settings_change_while_carpool_drains(
    daemon: Make, tmp_path: Path
) -> None:
    """Its session ends with the broker, so the next door, with the new settings, could not run it."""
    port, order, end = free_port(), tmp_path / "order", tmp_path / "end"
    servers = {"good": observer("--order", str(order), pool={"max": 1})}
    one = daemon(servers, http=open_door(port))
    url, _ = door(one)
    sid = session(url)
    with trio.fail_after(LIMIT_S):
        open_ = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        send(open_, "good__hold", text="open", seconds=0, until=str(end))
        await one.until(lambda facts: facts["totals"]["in_flight"] == 1, "the call is at the server")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.carpool, "restart", "--all")
            await draining(one)
            one.configure(servers, http=open_door(port, json_response=True))
            await until(lambda: "it starts again" in one.log("http"), "the door has seen it", WAIT_S)
            call = request(2, "tools/call", name="good__echo", arguments={"text": "late"})
            late = await trio.to_thread.run_sync(lambda: ask(url, "POST", "", call, Mcp_Session_Id=sid))
            end.touch()
            assert await trio.to_thread.run_sync(text, open_) == "held"
        open_.close()
    fault = late.json["result"]["_meta"]["carpool/error"]
    assert (late.status, fault["code"], fault["delivered"]) == (200, "closing", "no")
    assert order.read_text().split() == ["open"]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


@behaviour("handover:ends")
async def test_nothing_listens_once_the_door_has_ended_although_down_waits_for_the_broker(
    daemon: Make,
) -> None:
    one = daemon({"good": observer()}, http=open_door())
    port, broker = port_of(one), one.facts()["broker"]["pid"]
    with trio.fail_after(LIMIT_S):
        os.kill(broker, signal.SIGSTOP)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.carpool, "down")
                await until(lambda: not listens(port), "nothing listens", WAIT_S)
                assert broker in one.running()
                os.kill(broker, signal.SIGCONT)
        finally:
            if broker in one.running():
                os.kill(broker, signal.SIGCONT)


@behaviour("handover:address")
async def test_processes_that_take_nothing_of_an_ended_launcher_are_bounded_and_the_next_one_goes_on(
    daemon: Make,
) -> None:
    one = daemon({"good": observer()}, http=open_door())
    port, offer = port_of(one), paths.handover_socket(str(one.directory))
    crowd: list[socket.socket] = []
    with trio.fail_after(LIMIT_S):
        holder = launcher_lock.holder(str(one.directory))
        assert holder is not None
        os.kill(holder.pid, signal.SIGUSR1)  # as a verb that is killed right after this
        await until(lambda: launcher_lock.holder(str(one.directory)) is None, "it has ended", WAIT_S)
        for _ in range(70):
            crowd.append(socket.socket(socket.AF_UNIX))
            await trio.to_thread.run_sync(crowd[-1].connect, offer)
            crowd[-1].settimeout(WAIT_S)
            _, fds, _, _ = await trio.to_thread.run_sync(socket.recv_fds, crowd[-1], 1, 3)
            for fd in fds:
                os.close(fd)
        assert await trio.to_thread.run_sync(crowd[0].recv, 1) == b"", "the oldest gives way"
        one.up()
        assert port_of(one) == port
        assert listens(port)
    for each in crowd:
        each.close()
