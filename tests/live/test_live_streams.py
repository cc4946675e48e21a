"""Many sessions on one connection (rule 9), against a real daemon: what an HTTP door is to the broker."""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import pytest
import trio

from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession, attach_line
from carpool_protocol.carrier.streams import (
    CONTROL,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    ExchangeEnded,
    OpenStream,
    StreamOpened,
    StreamRefused,
    control_line,
    frame_line,
    read_control,
    split_frame,
)
from carpool_protocol.wire.lines import LineBuffer
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json
from tests.kit.live import Daemon, Make, observer
from tests.kit.sdks import entry
from tests.live.conftest import shared_daemon

GREETING: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
ENVELOPE: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class StreamsDoor:
    """A tiny door: what came on each stream, in order, with its exchange."""

    def __init__(self, end: trio.SocketStream) -> None:
        self._end = end
        self._turn = trio.Lock()
        self._news = trio.Event()
        self.came: dict[int, list[tuple[int, Json]]] = {}
        self.words: dict[int, list[ControlMessage | None]] = {}
        self.ended = False

    async def send(self, *frames: bytes) -> None:
        async with self._turn:
            await self._end.send_all(b"".join(frames))

    async def post(self, stream: int, exchange: int, message: Json | list[Json]) -> None:
        await self.send(frame_line(stream, json.dumps(message).encode(), exchange))

    async def request(
        self, stream: int, exchange: int, method: str, params: Json | None = None, *, id_: object = 1
    ) -> None:
        await self.post(
            stream, exchange, {"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}
        )

    async def result(
        self, stream: int, exchange: int, method: str, params: Json | None = None, *, id_: object = 1
    ) -> Json:
        """What the exchange's answer says; it is the last thing there."""
        await self.request(stream, exchange, method, params, id_=id_)
        answer = await self.answer(stream, exchange)
        assert "result" in answer, answer
        assert answer["id"] == id_
        found: Json = answer["result"]
        return found

    async def answer(self, stream: int, exchange: int) -> Json:
        await self.until(lambda: any("method" not in m for m in self.of(stream, exchange)), "an answer")
        *_, last = self.of(stream, exchange)
        assert "method" not in last, "the answer is the last of its exchange"
        return last

    async def open(self, number: int, opening: OpenStream) -> ControlMessage | None:
        await self.send(control_line(number, opening))
        await self.until(lambda: self.words.get(number), "the broker's word on the stream")
        return self.words[number][0]

    async def greet(self, number: int, opening: OpenStream | None = None) -> None:
        assert isinstance(await self.open(number, opening or OpenStream()), StreamOpened)
        await self.result(number, 1, "initialize", GREETING)
        await self.post(number, 2, {"jsonrpc": "2.0", "method": "notifications/initialized"})

    def of(self, stream: int, exchange: int) -> list[Json]:
        return [message for its, message in self.came.get(stream, []) if its == exchange]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        with trio.move_on_after(WAIT_S):
            while not condition():
                assert not self.ended, f"the broker has gone; still not: {what}"
                await self._news.wait()
            return
        raise AssertionError(f"not within {WAIT_S:g} s: {what}; came: {self.came}, {self.words}")

    async def close(self) -> None:
        with suppress(trio.BrokenResourceError):
            await self.send(
                *(control_line(s, CloseStream()) for s, (word, *_) in self.words.items() if _here(word))
            )

    async def read(self) -> None:
        buffer = LineBuffer(cap_bytes=1 << 26)
        while data := await self._end.receive_some(1 << 16):
            for line in buffer.feed(data):
                assert isinstance(line, bytes)
                cut = split_frame(line)
                if cut is None:
                    assert b"carpool/attached" in line, line
                elif cut[2] == CONTROL:
                    self.words.setdefault(cut[0], []).append(read_control(cut[1]))
                else:
                    self.came.setdefault(cut[0], []).append((cut[2], json.loads(cut[1])))
            self._news.set()
            self._news = trio.Event()
        self.ended = True
        self._news.set()


def comes_back(public: str) -> OpenStream:
    return OpenStream(resume=ResumeSession(session="", secret=public))


def _here(word: ControlMessage | None) -> bool:
    return isinstance(word, StreamOpened)


@asynccontextmanager
async def desk(daemon: Daemon, *, dies: bool = False) -> AsyncIterator[StreamsDoor]:
    """A door, that ends its streams in the end unless it `dies`."""
    end = await trio.open_unix_socket(paths.agents_socket(str(daemon.directory)))
    one = StreamsDoor(end)
    async with end:
        attach = Attach(version=ATTACH_VERSION, carrier="door", pid=os.getpid(), streams=True)
        await one.send(attach_line(attach))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.read)
            yield one
            if not dies:
                await one.close()
            nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "obs": observer(sharing="concurrent"),
        "ask": entry("sdk2", sharing="concurrent"),
        "off": observer(disabled=True),
    }
    yield from shared_daemon(servers)


@behaviour("streams:many-sessions", "streams:equal-ids")
async def test_two_sessions_on_one_connection_use_equal_ids_and_hear_only_their_own(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            for number in (1, 2):
                await one.greet(number, OpenStream(agent=f"agent {number}"))
            gate = {"name": "obs__wait", "arguments": {"gate": "equal"}}
            await one.request(1, 5, "tools/call", gate, id_=7)
            for number in (1, 2):
                said = await one.result(
                    number,
                    6,
                    "tools/call",
                    {"name": "obs__echo", "arguments": {"text": f"to {number}"}},
                    id_=8,
                )
                assert said["content"][0]["text"] == f"to {number}"
            await one.result(2, 7, "tools/call", {"name": "obs__open", "arguments": {"gate": "equal"}}, id_=7)
            await one.answer(1, 5)
            assert not one.of(2, 5)
            facts = await shared.status()
            rows = [each for each in facts["sessions"] if each["carrier"] == "http"]
            assert len(rows) == 2
            assert {each["pid"] for each in rows} == {os.getpid()}
            await one.send(control_line(1, CloseStream()))
            await shared.until(
                lambda facts: sum(each["carrier"] == "http" for each in facts["sessions"]) == 1, "one is over"
            )


@behaviour("streams:own-exchange")
async def test_progress_travels_on_the_exchange_of_its_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.greet(1)
            for exchange in (5, 6):
                steps = {"count": 3, "text": f"of {exchange}"}
                params = {"name": "obs__steps", "arguments": steps, "_meta": {"progressToken": exchange}}
                await one.request(1, exchange, "tools/call", params, id_=exchange)
            for exchange in (5, 6):
                await one.answer(1, exchange)
                *progress, answer = one.of(1, exchange)
                assert [each["params"]["progressToken"] for each in progress] == [exchange] * 3
                assert answer["id"] == exchange
            assert not one.of(1, 0), "nothing came apart from them"


@behaviour("streams:own-exchange")
async def test_a_question_travels_on_the_exchange_of_its_call_and_is_answered_by_any_other(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            able = {**GREETING, "capabilities": {"elicitation": {}}}
            for number in (1, 2):
                await one.open(number, OpenStream())
                await one.result(number, 1, "initialize", able)
                await one.post(number, 2, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            for number in (1, 2):
                form = {"name": "form", "arguments": {"text": f"q{number}"}}
                await one.request(number, 5, "tools/call", form, id_=7)
            for number in (1, 2):
                await one.until(partial(one.of, number, 5), "the question")
                (ask,) = one.of(number, 5)
                assert ask["method"] == "elicitation/create"
                assert f"q{number}" in ask["params"]["message"]
                said = {"action": "accept", "content": {"answer": f"n{number}"}}
                await one.post(number, 6, {"jsonrpc": "2.0", "id": ask["id"], "result": said})
            for number in (1, 2):
                assert f"n{number}" in json.dumps((await one.answer(number, 5))["result"])
                assert not one.of(number, 0)
                assert not one.of(number, 6)


@behaviour("reattach:http:door")
async def test_when_the_door_dies_its_sessions_are_there_for_the_next_one(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as other:
            async with desk(shared, dies=True) as one:
                for number in (1, 2, 3):
                    await one.greet(number)
                await one.open(4, OpenStream(kind="shared"))
                gate = {"name": "obs__wait", "arguments": {"gate": "dead", "obeys": True}}
                await one.request(1, 5, "tools/call", gate, id_=7)
                await other.inside("obs", 1)
                was = [one.words[number][0] for number in (1, 2, 3)]
            await shared.until(lambda facts: len(facts["sessions"]) == 4, "who is shared by many is gone")
            assert await other.text("obs__echo", {"text": "still here"}) == "still here"
            async with desk(shared) as heir:
                for number, word in enumerate(was, 1):
                    assert isinstance(word, StreamOpened)
                    found = await heir.open(number, comes_back(word.session))
                    assert isinstance(found, StreamOpened)
                    assert (found.name, found.session) == (word.name, word.session)
                    assert found.version == "2025-11-25"
                    assert await heir.result(number, 2, "ping") == {}
                await other.inside("obs", 1)
                assert isinstance(was[0], StreamOpened)
                await heir.open(9, comes_back(was[0].session))
                assert isinstance(heir.words[9][0], StreamRefused), "it is nobody's twice"
            await shared.until(lambda facts: len(facts["sessions"]) == 1, "only the other stays")
            await other.inside("obs", 0)


async def test_an_open_id_that_comes_again_is_refused_on_its_own_exchange(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.greet(1)
            gate = {"name": "obs__wait", "arguments": {"gate": "double"}}
            await one.request(1, 5, "tools/call", gate, id_=7)
            await one.request(1, 6, "ping", id_=7)
            assert (await one.answer(1, 6))["error"]["code"] == 4101
            await one.result(
                1, 7, "tools/call", {"name": "obs__open", "arguments": {"gate": "double"}}, id_=8
            )
            assert (await one.answer(1, 5))["result"]


async def test_a_cancelled_call_ends_its_exchange_without_an_answer(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.greet(1)
            gate = {"name": "obs__wait", "arguments": {"gate": "never", "obeys": True}}
            await one.request(1, 5, "tools/call", gate, id_=7)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            await one.post(1, 6, cancel)
            await one.until(lambda: ExchangeEnded(5) in one.words[1], "the exchange is over")
            assert not one.of(1, 5)


@behaviour("streams:gone-is-no-cancel")
async def test_a_client_of_the_handshake_era_that_goes_away_still_gets_its_answer_kept(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.greet(1)
            await one.request(1, 5, "tools/call", {"name": "obs__wait", "arguments": {"gate": "gone"}}, id_=7)
            await one.send(control_line(1, ExchangeClientGone(5)))
            await one.result(1, 6, "tools/call", {"name": "obs__open", "arguments": {"gate": "gone"}}, id_=8)
            await one.until(lambda: one.of(1, 0), "the answer, on no exchange")
            assert one.of(1, 0)[0]["id"] == 7
            assert not one.of(1, 5)


async def test_each_request_of_a_batch_is_answered_on_its_exchange(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.open(1, OpenStream())
            await one.result(1, 1, "initialize", {**GREETING, "protocolVersion": "2025-03-26"})
            batch = [{"jsonrpc": "2.0", "id": id_, "method": "ping"} for id_ in ("a", "b")]
            await one.post(1, 2, [*batch, {"jsonrpc": "2.0", "method": "notifications/initialized"}])
            await one.until(lambda: len(one.of(1, 2)) == 2, "both answers")
            assert {each["id"] for each in one.of(1, 2)} == {"a", "b"}


@behaviour("streams:one-server")
async def test_a_session_may_see_one_server_under_its_own_names(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.greet(1)
            await one.greet(2, OpenStream(server="obs"))
            everything = {each["name"] for each in (await one.result(1, 5, "tools/list"))["tools"]}
            assert "obs__echo" in everything
            tools = [each["name"] for each in (await one.result(2, 5, "tools/list"))["tools"]]
            assert sorted(f"obs__{name}" for name in tools) == sorted(
                name for name in everything if name.startswith("obs__")
            )
            pids = []
            for number, name in ((1, "obs__seen"), (2, "seen")):
                said = await one.result(number, 6, "tools/call", {"name": name, "arguments": {}})
                pids.append(json.loads(said["content"][0]["text"])["pid"])
            assert pids[0] == pids[1], "it is the same process that all others share"
            for number, opening in ((3, OpenStream(server="nope")), (4, OpenStream(server="off"))):
                refused = await one.open(number, opening)
                assert isinstance(refused, StreamRefused)
                assert refused.why == "unknown_server"
            refused = await one.open(5, OpenStream(profile="reader"))
            assert isinstance(refused, StreamRefused)
            assert refused.why == "unknown_profile"


async def test_an_operator_may_ask_on_a_stream_and_an_agent_may_not(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            assert isinstance(await one.open(1, OpenStream(kind="control")), StreamOpened)
            assert isinstance(await one.open(2, OpenStream()), StreamOpened)
            assert (await one.result(1, 1, "carpool/status"))["servers"]
            await one.request(2, 1, "carpool/status")
            assert (await one.answer(2, 1))["error"]["code"] == -32601


@behaviour("streams:equal-ids")
async def test_stateless_agents_share_a_stream_with_equal_ids(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one:
            await one.open(1, OpenStream(kind="shared", principal="ann"))
            for exchange in (5, 6, 7):
                params = {"name": "obs__echo", "arguments": {"text": f"x{exchange}"}, "_meta": ENVELOPE}
                await one.request(1, exchange, "tools/call", params)
            for exchange in (5, 6, 7):
                answer = await one.answer(1, exchange)
                assert answer["id"] == 1
                assert answer["result"]["content"][0]["text"] == f"x{exchange}"
                assert len(one.of(1, exchange)) == 1


@behaviour("streams:gone-cancels")
async def test_a_stateless_client_that_goes_away_cancels_its_call(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one, shared.agent() as other:
            await one.open(1, OpenStream(kind="shared"))
            gate = {"name": "obs__wait", "arguments": {"gate": "left", "obeys": True}, "_meta": ENVELOPE}
            for exchange in (5, 6):
                await one.request(1, exchange, "tools/call", gate)
            await other.inside("obs", 2)
            before = len((await other.seen("obs"))["cancels"])
            await one.send(control_line(1, ExchangeClientGone(5)))
            await other.until_seen("obs", lambda seen: len(seen["cancels"]) == before + 1, "the cancel")
            await other.inside("obs", 1)
            await other.call("obs__open", {"gate": "left"})
            assert (await one.answer(1, 6))["result"]
            assert not one.of(1, 5)


async def test_nobody_can_cancel_anothers_request_on_a_shared_stream(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with desk(shared) as one, shared.agent() as other:
            await one.open(1, OpenStream(kind="shared"))
            gate = {"name": "obs__wait", "arguments": {"gate": "kept", "obeys": True}, "_meta": ENVELOPE}
            await one.request(1, 5, "tools/call", gate)
            await other.inside("obs", 1)
            for id_ in (1, "@5 1"):
                cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id_}}
                await one.post(1, 6, cancel)
            await one.result(
                1, 7, "tools/call", {"name": "obs__echo", "arguments": {"text": "x"}, "_meta": ENVELOPE}
            )
            await other.inside("obs", 1)
            await other.call("obs__open", {"gate": "kept"})
            assert (await one.answer(1, 5))["result"]


@behaviour("streams:frozen-door")
async def test_a_door_that_stands_still_is_cut_off_and_agents_on_sockets_notice_nothing(daemon: Make) -> None:
    mine = daemon({"obs": observer(sharing="concurrent")}, session={"slow_reader_s": 1})
    with trio.fail_after(LIMIT_S):
        async with mine.agent() as other:
            await other.text("obs__echo", {"text": "warm"})
            end = await trio.open_unix_socket(paths.agents_socket(str(mine.directory)))
            async with end, trio.open_nursery() as nursery:
                nursery.start_soon(speak_and_never_listen, StreamsDoor(end))
                while "has not read" not in mine.log("broker"):
                    assert await other.text("obs__echo", {"text": "still here"}) == "still here"
                await mine.until(lambda facts: len(facts["sessions"]) == 1, "only the other stays")


async def speak_and_never_listen(frozen: StreamsDoor) -> None:
    attach = Attach(version=ATTACH_VERSION, carrier="door", pid=os.getpid(), streams=True)
    await frozen.send(attach_line(attach))
    with suppress(trio.BrokenResourceError):
        for number in range(1, 101):
            await frozen.send(control_line(number, OpenStream()))
            await frozen.request(number, 1, "initialize", GREETING)
            echo = {"name": "obs__echo", "arguments": {"text": "x" * 50_000}}
            await frozen.request(number, 2, "tools/call", echo, id_=2)
