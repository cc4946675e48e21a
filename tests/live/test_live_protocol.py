"""What an agent behind `carpool connect` meets: the handshake era, to the letter."""

import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, fault_of
from tests.kit.live import LIVE, Daemon, kit, observer
from tests.kit.waits import until
from tests.live.conftest import shared_daemon

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    sdk = {"command": sys.executable, "args": [str(LIVE / "sdk_server.py")]}
    servers = {
        "good": observer(),
        "other": observer(),
        "sdk": sdk,
        "big": kit("big"),
        "bad": kit("bad_answers"),
    }
    yield from shared_daemon(servers)


@behaviour("versions:negotiated-apart")
@pytest.mark.parametrize("version", VERSIONS)
async def test_each_version_of_the_handshake_era_is_agreed_to(shared: Daemon, version: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim(greet=False) as agent:
            result = await agent.greet(version)
            assert result["protocolVersion"] == version
            assert result["capabilities"]["tools"] == {"listChanged": True}
            assert result["serverInfo"]["name"] == "carpool"
            assert await agent.result("ping") == {}


async def test_an_unknown_version_is_answered_with_the_newest_we_speak(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as agent:
            assert (await agent.greet("1999-01-01"))["protocolVersion"] == VERSIONS[-1]


async def test_a_listed_tool_can_be_called_through_the_shim(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert {"good__echo", "sdk__echo", "big__big"} <= set(await agent.tools())
            said = 'äöü \u2028 😀 \\u0041 "quoted" \\ and more'
            assert await agent.text("good__echo", {"text": said}) == said


async def test_progress_comes_back_under_the_agents_token_with_its_json_type(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            for token in ("7", 7, "", 0, -1, "ä", 2**63):
                before = len(agent.notices)
                id_ = await agent.start("good__steps", {"count": 3, "text": "on"}, token=token)
                answer = await agent.answer(id_)
                assert answer["result"]["content"][0]["text"] == "on"
                told = [each["params"] for each in agent.notices[before:]]
                assert [each["progress"] for each in told] == [1, 2, 3]
                for each in told:
                    assert each["progressToken"] == token
                    assert type(each["progressToken"]) is type(token)


async def test_a_call_without_a_token_gets_no_progress(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.call("good__steps", {"count": 3})
            assert not agent.notices


async def test_a_cancel_reaches_the_server_and_no_answer_comes(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            before = await agent.seen("good")
            id_ = await agent.start("good__wait", {"gate": "cancel"}, id_="to be cancelled")
            await agent.inside("good", before["inside"] + 1)
            await agent.cancel(id_)
            count = len(before["cancels"])
            await agent.until_seen("good", lambda seen: len(seen["cancels"]) > count, "the cancel has come")
            # The server answers all the same: late, so nobody must hear of it.
            await agent.call("good__open", {"gate": "cancel"})
            await agent.inside("good", before["inside"])
            await agent.result("ping")
            assert id_ not in agent.answers


IDS = (
    b"1",
    b'"1"',
    b"1.0",
    b"1e3",
    b"-0",
    b"0",
    b"9007199254740993",
    b"123456789012345678901234567890",
    b'""',
    b'"\\u00e4\\/\\u0041"',
    '"ä😀"'.encode(),
    b'"with \\"quotes\\" and \\\\"',
    b'"' + b"x" * 1000 + b'"',
)


async def test_ids_of_every_shape_come_back_byte_for_byte(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            for id_ in IDS:  # all open at once
                params = b'{"name":"good__echo","arguments":{"text":"hello"}}'
                await agent.line(
                    b'{"jsonrpc":"2.0","method":"tools/call","params":%s,"id":%s}' % (params, id_)
                )
            for id_ in IDS:
                assert (await agent.answer(id_))["result"]["content"][0]["text"] == "hello"


async def test_an_id_that_is_still_open_is_refused_and_the_first_call_goes_on(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            id_ = await agent.start("good__wait", {"gate": "double"}, id_=77)
            await agent.start("good__echo", {"text": "second"}, id_=77)
            refused = await agent.answer(id_)
            assert refused["error"]["data"]["code"] == "duplicate_request_id"
            agent.answers.clear()
            await agent.call("good__open", {"gate": "double"})
            assert (await agent.answer(id_))["result"]["content"][0]["text"] == "opened"


@pytest.mark.parametrize("method", ["no/such", "tasks/list", "roots/list", "carpool/status", ""])
async def test_an_unknown_method_is_answered_with_32601(shared: Daemon, method: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            assert (await agent.ask(method, {}))["error"]["code"] == -32601


async def test_an_unknown_tool_is_a_protocol_error_with_a_suggestion(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.tools()
            error = (await agent.ask("tools/call", {"name": "good__ecko"}))["error"]
            assert error["code"] == -32602
            assert "good__echo" in error["message"]


async def test_other_spellings_of_a_name_reach_the_same_tool(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            for name in (
                "good__echo",
                "good_echo",
                "mcp__good__echo",
                "mcp:good:echo",
                "good.echo",
                "mcp:good.echo",
            ):
                assert await agent.text(name, {"text": name}) == name
            assert await agent.text("big", {"bytes": 3}) == "xxx"
            error = (await agent.ask("tools/call", {"name": "seen"}))["error"]
            assert error["code"] == -32602
            assert "good__seen" in error["message"]
            assert "other__seen" in error["message"]


GARBAGE = (
    b"not json at all",
    b"{",
    b'{"jsonrpc":"2.0","id":',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"42",
    b'"words"',
    b"null",
    b"[]",
    b"[1,2]",
    b"{}",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"1.0","id":5,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":6,"method":7}',
    b'{"jsonrpc":"2.0","id":8,"result":{},"error":{}}',
    b'{"jsonrpc":"2.0","id":"never asked","result":{}}',
    b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":[]}',
    b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":5}}',
    b'{"jsonrpc":"2.0","id":11,"method":"tools/call"}',
    b'{"jsonrpc":"2.0","id":12,"method":"tools/list","params":{"cursor":"made up"}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"nobody"}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}',
    b'{"jsonrpc":"2.0","method":"notifications/unheard_of"}',
    b"",
    b"   ",
    b"\r",
)


async def test_garbage_lines_end_nobodys_session(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:
            for line in GARBAGE:
                await agent.line(line)
                assert await agent.text("good__echo", {"text": "still here"}) == "still here"
            assert await other.text("good__echo", {"text": "me too"}) == "me too"
            for id_ in (b"9", b"10", b"11", b"12"):
                assert (await agent.answer(id_))["error"]["code"] in {-32602, -32600}
            assert (await agent.answer(b"null"))["error"]["code"] in {-32700, -32600}


SMUGGLED = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"reset","arguments":{}}}'


@pytest.mark.parametrize("space", [b"\r", b"\r\r", b"\t\r\t", b"\x0b", b"\x1e", b"\x0c"])
@pytest.mark.parametrize("server", ["sdk", "good"])
async def test_a_carriage_return_in_arguments_smuggles_nothing_to_a_shared_server(
    shared: Daemon, server: str, space: bytes
) -> None:
    """A reader with universal newlines takes a bare \\r for the end of a line."""
    tool = f"{server}__echo".encode()
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            array = (
                b"[1," + space + SMUGGLED + space + b",3]"
                if server == "good"
                else b"[1," + space + b"2" + space + b",3]"
            )
            params = b'{"name":"' + tool + b'","arguments":{"items":' + array + b"}}"
            await agent.line(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":' + params + b"}")
            answer = await agent.answer(b"5")
            if space.strip(b"\r\t"):  # a control byte that is no JSON white space
                assert answer["error"]["code"] in {-32700, -32600, -32602}, answer
            elif server == "sdk":
                assert answer["result"]["content"][0]["text"].startswith("3 items"), answer
            else:
                assert answer["result"]["content"][0]["text"] == "echo"


@behaviour("lines:no-smuggling")
async def test_a_whole_request_between_carriage_returns_is_not_run_by_a_real_sdk_server(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            params = b'{"name":"sdk__echo","arguments":{"items":[\r' + SMUGGLED + b"\r]}}"
            await agent.line(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":' + params + b"}")
            refused = await agent.answer(b"5")
            assert refused["result"]["isError"], refused  # the SDK: items are no integers
            said = await agent.text("sdk__echo", {"items": [1]})
            assert not said.split()[-1].startswith("-"), said  # nobody has called `reset`


@behaviour("lines:lone-surrogates")
@pytest.mark.parametrize("place", ["arguments", "progressToken", "id"])
async def test_a_lone_surrogate_from_an_agent_is_passed_or_refused_but_answered(
    shared: Daemon, place: str
) -> None:
    values = {"arguments": "x", "progressToken": "x", "id": '"x"'} | {
        place: '"cut \\ud83d"' if place == "id" else "cut \\ud83d"
    }
    params = f'"arguments":{{"text":"{values["arguments"]}"}}'
    params += f',"_meta":{{"progressToken":"{values["progressToken"]}"}}'
    head = f'{{"jsonrpc":"2.0","id":{values["id"]},"method":"tools/call"'
    line = f'{head},"params":{{"name":"good__echo",{params}}}}}'
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            await agent.line(line.encode())
            answer = await agent.answer(values["id"].encode())
            assert answer["result"]["content"][0]["text"] == json.loads(f'"{values["arguments"]}"')
            assert await agent.text("good__echo", {"text": "next"}) == "next"


@behaviour("lines:lone-surrogates")
async def test_a_lone_surrogate_from_a_server_reaches_the_agent(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert await agent.text("bad__bad", {"kind": "surrogate"}) == "cut emoji \ud83d"


REPAIRED = {"string": "just a string", "text": "bare text", "result": "nested"}


@behaviour("answers:repaired")
async def test_each_answer_that_breaks_the_protocol_has_its_definite_answer(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            kinds = (await agent.text("bad__bad")).split()
            assert len(kinds) > 10
            answers: dict[str, Json] = {}
            for kind in kinds:
                answers[kind] = await agent.answer(await agent.start("bad__bad", {"kind": kind}))
            for kind, said in REPAIRED.items():
                assert answers[kind]["result"]["content"][0]["text"] == said, answers[kind]
            for kind in ("number", "null", "list", "content_string", "no_result"):
                assert answers[kind]["result"]["isError"], (kind, answers[kind])
            for kind in ("no_result", "both", "invalid_utf8"):
                assert "result" in answers[kind], (kind, answers[kind])
                fault = fault_of(answers[kind]["result"])
                assert (fault["code"], fault["delivered"]) == ("bad_answer", "maybe"), (kind, answers[kind])
            assert answers["error_no_code"]["error"]["code"] == -32603
            assert answers["error_string"]["error"] == {"code": -32603, "message": "no object"}
            assert answers["control"]["result"]["content"][0]["text"] == "white space"


async def test_arguments_over_8_mib_are_refused_under_their_id(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:
            id_ = await agent.start("good__echo", {"text": "x" * (8 * MIB)}, id_="too big")
            answer = await agent.answer(id_)
            data = answer["error"]["data"] if "error" in answer else fault_of(answer["result"])
            assert data["code"] == "too_large"
            assert data["delivered"] == "no"
            text = "y" * (7 * MIB)
            assert await agent.text("good__echo", {"text": text}) == text
            assert await other.text("good__echo", {"text": "small"}) == "small"
            # The TypeScript SDK writes the id last: it has to be found behind the 8 MiB.
            params = b'{"name":"good__echo","arguments":{"text":"' + b"z" * (9 * MIB) + b'"}}'
            await agent.line(b'{"method":"tools/call","params":' + params + b',"jsonrpc":"2.0","id":"last"}')
            late = await agent.answer(b'"last"')
            assert "error" in late or late["result"]["isError"]


async def test_an_answer_of_16_mib_passes_whole(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            assert await agent.text("big__big") == "x" * (16 * MIB)


@behaviour("modes:concurrent")
async def test_20_calls_on_one_instance_are_inside_it_at_the_same_time(shared: Daemon) -> None:
    """The tool lets nobody go before all 20 have come in: one after the other they would never end."""
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            ids = [await agent.start("good__hold", {"seconds": 0.2, "party": 20}) for _ in range(20)]
            for id_ in ids:
                assert (await agent.answer(id_))["result"]["content"][0]["text"] == "held"
            assert (await agent.seen("good"))["most"] >= 20
            assert len(await shared.pids("good")) == 1


async def test_a_server_frozen_in_mid_call_delays_no_other_servers_calls(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            frozen = (await agent.seen("other"))["pid"]
            held = await agent.start("other__wait", {"gate": "frozen"})
            await agent.inside("other", 1)
            os.kill(frozen, signal.SIGSTOP)
            try:
                more = [await agent.start("other__echo", {"text": str(at)}) for at in range(5)]
                for at in range(100):
                    assert await agent.text("good__echo", {"text": str(at)}) == str(at)
                assert not {held, *more} & set(agent.answers)
            finally:
                os.kill(frozen, signal.SIGCONT)
            await agent.call("other__open", {"gate": "frozen"})
            assert (await agent.answer(held))["result"]["content"][0]["text"] == "opened"
            for id_ in more:
                await agent.answer(id_)


@behaviour("failure:death-ends-calls")
async def test_kill_9_of_an_instance_with_10_calls_gives_10_honest_answers(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            pid = (await agent.seen("other"))["pid"]
            ids = [await agent.start("other__wait", {"gate": "never"}) for _ in range(10)]
            await agent.inside("other", 10)
            os.kill(pid, signal.SIGKILL)
            for id_ in ids:
                fault = fault_of((await agent.answer(id_))["result"])
                assert (fault["code"], fault["delivered"]) == ("instance_died", "maybe")
                assert (fault["server"], fault["tool"]) == ("other", "wait")
            assert await agent.text("other__echo", {"text": "again"}) == "again"
            assert (await agent.seen("other"))["pid"] != pid


async def test_the_agents_stderr_says_nothing_and_its_stdout_only_mcp(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            await agent.text("good__say", {"text": "for the log"})
            await until(lambda: "for the log" in shared.log("server-good"), "stderr is logged")
            assert all(json.loads(line)["jsonrpc"] == "2.0" for line in agent.lines)
            assert b"for the log" not in agent.lines[-1] or b'"result"' in agent.lines[-1]
