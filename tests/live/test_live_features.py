"""Prompts, resources and completions through the whole of carpool, beside a direct connection."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mcp import MCPError
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import PromptReference, ResourceTemplateReference
from pydantic import BaseModel

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, settled
from tests.kit.live import LIVE, Daemon, Make, kit
from tests.live.conftest import shared_daemon

SDK_SERVER: Json = {"command": sys.executable, "args": [str(LIVE / "sdk_server.py")]}
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"sdk": SDK_SERVER, "one": kit("full", "one"), "two": kit("full", "two")})


@asynccontextmanager
async def client(daemon: Daemon, command: str, *args: str, **rest: Any) -> AsyncIterator[Client]:
    """The official client on a server that it starts."""
    with (daemon.base / "sdk.log").open("a") as stderr:
        parameters = StdioServerParameters(command=command, args=list(args), env=daemon.environ)
        async with Client(stdio_client(parameters, errlog=stderr), mode="legacy", **rest) as one:
            yield one


def plain(found: BaseModel) -> Json:
    return found.model_dump(mode="json", by_alias=True, exclude_unset=True)


async def names(agent: LineAgent) -> list[str]:
    return [prompt["name"] for prompt in (await agent.result("prompts/list"))["prompts"]]


async def uris(agent: LineAgent) -> list[str]:
    return [each["uri"] for each in (await agent.result("resources/list"))["resources"]]


async def content(agent: LineAgent, uri: str) -> Json:
    [found] = (await agent.result("resources/read", {"uri": uri}))["contents"]
    return dict(found)


async def said(agent: LineAgent, name: str, **arguments: str) -> str:
    """The text of a prompt."""
    result = await agent.result("prompts/get", {"name": name, "arguments": arguments})
    return str(result["messages"][0]["content"]["text"])


async def seen(agent: LineAgent, server: str, method: str) -> list[Any]:
    """The ids (of a cancel: the cancelled one) of all messages of this method that `full.py` got."""
    return [id_ for each, id_ in json.loads(await agent.text(f"{server}__seen")) if each == method]


@behaviour("features:as-direct")
async def test_every_feature_answers_as_on_a_direct_connection(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        command, *args = shared.command("connect")
        async with (
            client(shared, SDK_SERVER["command"], *SDK_SERVER["args"]) as direct,
            client(shared, command, *args) as through,
        ):
            for family in ("prompts", "resources", "completions", "tools"):
                assert getattr(through.server_capabilities, family) is not None

            theirs = plain(await direct.list_prompts())["prompts"]
            mine = [it for it in plain(await through.list_prompts())["prompts"] if it["name"][:3] == "sdk"]
            for prompt in theirs:
                prompt["name"] = f"sdk__{prompt['name']}"
            assert [prompt["name"] for prompt in mine] == ["sdk__plain", "sdk__review"]
            assert mine == sorted(theirs, key=lambda it: str(it["name"]))

            listed = plain(await direct.list_resources())["resources"]
            found = plain(await through.list_resources())["resources"]
            assert [it for it in found if it["uri"].startswith("sdk:")] == listed
            [template] = plain(await direct.list_resource_templates())["resourceTemplates"]
            assert template in plain(await through.list_resource_templates())["resourceTemplates"]

            for own, arguments in (
                ("review", {"code": 'x = "☂"\n\u2028', "tone": "stern"}),
                ("review", {"code": "y"}),
                ("plain", None),
            ):
                expected = plain(await direct.get_prompt(own, arguments))
                assert plain(await through.get_prompt(f"sdk__{own}", arguments)) == expected
            for uri in ("sdk://notes", "sdk://picture", "sdk://users/anna/profile"):
                expected = plain(await direct.read_resource(uri))
                assert plain(await through.read_resource(uri)) == expected

            argument, context = {"name": "tone", "value": "ki"}, {"code": "z"}
            for own_ref, ref in (
                (PromptReference(name="review"), PromptReference(name="sdk__review")),
                (ResourceTemplateReference(uri="sdk://users/{user}/profile"),) * 2,
            ):
                expected = plain(await direct.complete(own_ref, argument, context))
                assert expected["completion"]["values"][1:] == ["tone", "ki", "code"]
                assert plain(await through.complete(ref, argument, context)) == expected

            # The server's own refusals pass untouched.
            with pytest.raises(MCPError) as mine_of:
                await through.get_prompt("sdk__review", {"tone": "no code"})
            with pytest.raises(MCPError) as theirs_of:
                await direct.get_prompt("review", {"tone": "no code"})
            assert mine_of.value.error == theirs_of.value.error
            with pytest.raises(MCPError) as mine_of:
                await through.read_resource("sdk://notes/none")
            with pytest.raises(MCPError) as theirs_of:
                await direct.read_resource("sdk://notes/none")
            assert mine_of.value.error == theirs_of.value.error


async def test_other_spellings_of_a_prompt_resolve_and_unknown_ones_are_refused(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            listed = await names(agent)
            assert listed == sorted(listed)
            assert {"one__tell", "two__tell", "sdk__plain"} <= set(listed)
            assert not [name for name in listed if "__" not in name]
            for spelling in ("one__tell", "mcp__one__tell", "mcp:one:tell", "one.tell", "one_tell"):
                assert await said(agent, spelling, who="x") == 'one tells tell {"who": "x"}'
            assert await said(agent, "plain") == "Say something."
            for name in ("nobody__tell", "one__tells", "tell", "", "one__"):
                error = (await agent.ask("prompts/get", {"name": name}))["error"]
                assert error["code"] == -32602, name
                assert error["data"]["code"] == "unknown_prompt", name
            assert (
                "one__tell, two__tell"
                in (await agent.ask("prompts/get", {"name": "tell"}))["error"]["message"]
            )
            ref = {"type": "ref/prompt", "name": "none__such"}
            argument = {"name": "a", "value": "b"}
            error = (await agent.ask("completion/complete", {"ref": ref, "argument": argument}))["error"]
            assert error["code"] == -32602
            for params in ({}, {"name": 7}, {"name": None}):
                assert (await agent.ask("prompts/get", params))["error"]["code"] == -32602
            for ref in ({"type": "ref/tool"}, {"type": "ref/prompt"}, {}):
                asked = await agent.ask("completion/complete", {"ref": ref, "argument": argument})
                assert asked["error"]["code"] == -32602


async def test_unknown_resources_are_refused_by_us_or_by_the_server_that_would_have_them(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            await uris(agent)
            error = (await agent.ask("resources/read", {"uri": "nowhere://x"}))["error"]
            assert (error["code"], error["data"]["code"]) == (-32002, "unknown_resource")
            error = (await agent.ask("resources/read", {"uri": "two://parts/nothing"}))["error"]
            assert error == {"code": -32002, "message": "two has no such resource"}
            for params in ({}, {"uri": 7}):
                assert (await agent.ask("resources/read", params))["error"]["code"] == -32602


async def test_two_servers_with_one_uri_are_both_listed_and_read(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            listed = await uris(agent)
            one, other = "carpool+one+shared://doc", "carpool+two+shared://doc"
            assert [uri for uri in listed if uri.endswith("shared://doc")] == [one, other]
            assert {"one://own", "two://own", "sdk://notes"} <= set(listed)
            error = (await agent.ask("resources/read", {"uri": "shared://doc"}))["error"]
            assert "carpool+one+, carpool+two+" in error["message"]
            assert await content(agent, one) == {
                "uri": one,
                "mimeType": "text/plain",
                "text": "one has shared://doc",
            }
            assert await content(agent, other) == {
                "uri": other,
                "mimeType": "text/plain",
                "text": "two has shared://doc",
            }
            assert (await content(agent, "two://own"))["text"] == "two has two://own"

            found = (await agent.result("resources/templates/list"))["resourceTemplates"]
            templates = [it["uriTemplate"] for it in found if "shared" in it["uriTemplate"]]
            assert templates == [f"{one}/{{part}}", f"{other}/{{part}}"]
            assert (await content(agent, f"{one}/7"))["text"] == "one has shared://doc/7"
            assert await content(agent, f"{other}/7") == {
                "uri": f"{other}/7",
                "mimeType": "text/plain",
                "text": "two has shared://doc/7",
            }
            for template, server in zip(templates, ("one", "two"), strict=True):
                params = {
                    "ref": {"type": "ref/resource", "uri": template},
                    "argument": {"name": "part", "value": "7"},
                }
                values = (await agent.result("completion/complete", params))["completion"]["values"]
                assert values[0] == server
                assert json.loads(values[1])["uri"] == "shared://doc/{part}"

            # Links lead back to the server that said them.
            for server, uri in (("one", one), ("two", other)):
                blocks = (await agent.call(f"{server}__rich"))["content"]
                assert (blocks[1]["uri"], blocks[2]["resource"]["uri"]) == (uri, uri)
                messages = (await agent.result("prompts/get", {"name": f"{server}__rich"}))["messages"]
                assert [message["content"] for message in messages] == blocks


@pytest.mark.parametrize("server", ["one", "sdk"])
async def test_changes_of_prompts_and_resources_reach_who_had_listed(daemon: Make, server: str) -> None:
    entry = SDK_SERVER if server == "sdk" else kit("full", "one")
    own = daemon({server: entry})
    with trio.fail_after(LIMIT_S):
        async with own.shim() as agent, own.agent() as templates, own.agent() as other:
            count = (len(await names(agent)), len(await uris(agent)))
            await templates.result("resources/templates/list")
            if server == "sdk":
                await other.call("sdk__grow")
            else:
                await other.call("one__change", {"family": "prompts"})
                await other.call("one__change", {"family": "resources"})
            await agent.notice(PROMPTS_CHANGED)
            await agent.notice(RESOURCES_CHANGED)
            await templates.notice(RESOURCES_CHANGED)
            assert (len(await names(agent)), len(await uris(agent))) == (count[0] + 1, count[1] + 1)
            if server == "sdk":
                assert await said(agent, "sdk__grown") == "grown"
                assert (await content(agent, "sdk://grown"))["text"] == "grown"
            else:
                assert await said(agent, "one__more_0") == "one tells more_0 {}"
                assert (await content(agent, "one://more/0"))["text"] == "one has one://more/0"
            assert [each["method"] for each in templates.notices] == [RESOURCES_CHANGED]
            assert not other.notices, "it has listed nothing"


@behaviour("downgrade:content")
async def test_an_agent_of_2024_gets_what_it_cannot_know_as_text(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim(greet=False) as old, shared.agent(greet=False) as new:
            assert (await old.greet("2024-11-05"))["protocolVersion"] == "2024-11-05"
            await new.greet("2025-11-25")
            for agent, kinds in (
                (old, ["text", "text", "resource", "text"]),
                (new, ["audio", "resource_link", "resource", "text"]),
            ):
                messages = (await agent.result("prompts/get", {"name": "one__rich"}))["messages"]
                blocks = [message["content"] for message in messages]
                assert [block["type"] for block in blocks] == kinds
                assert blocks == (await agent.call("one__rich"))["content"]
                if agent is old:
                    assert "audio/wav" in blocks[0]["text"]
                    assert "shared://doc" in blocks[1]["text"]
            links = (await old.call("two__rich"))["content"]
            assert "carpool+two+shared://doc" in links[1]["text"], "a link in words leads back as well"
            assert links[2]["resource"]["uri"] == "carpool+two+shared://doc"


IDS: list[bytes] = [
    b"0",
    b"-7",
    b"1.50",
    b"1e2",
    b"18446744073709551616",
    b'"1"',
    b'""',
    b'"\\u00e9 \\/ \xc3\xa9"',
    b'"carpool-prompts-1"',
]
TOKENS: list[bytes] = [b"7", b'"7"', b"-1", b'"\\u00e9\\/"', b"18446744073709551616", b'""']


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", b'"name":"one__tell","arguments":{"who":"x"}'),
        ("resources/read", b'"uri":"one://own"'),
        (
            "completion/complete",
            b'"ref":{"type":"ref/prompt","name":"one__tell"},"argument":{"name":"who","value":""}',
        ),
    ],
)
async def test_ids_and_progress_tokens_come_back_byte_for_byte(
    shared: Daemon, method: str, params: bytes
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            for id_ in IDS:
                request = b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":{%b}}'
                await agent.line(request % (id_, method.encode(), params))
                assert "result" in await agent.answer(id_)
            if method == "completion/complete":
                return  # it does not say how far it is
            for at, token in enumerate(TOKENS):
                request = (
                    b'{"jsonrpc":"2.0","id":"t%d","method":"%b","params":{%b,"_meta":{"progressToken":%b}}}'
                )
                since = len(agent.lines)
                await agent.line(request % (at, method.encode(), params, token))
                assert "result" in await agent.answer(b'"t%d"' % at)
                [told] = [line for line in agent.lines[since:] if b"notifications/progress" in line]
                assert b'"progressToken":%b' % token in told
                assert b'"message":"one"' in told


async def test_a_reference_in_a_string_smuggles_no_message_to_the_server(shared: Daemon) -> None:
    change = {"name": "change", "arguments": {"family": "prompts"}}
    smuggled = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": change})
    ref = '{"type":"ref/prompt","name":"tell","x":[\n%s\n]}' % smuggled  # noqa: UP031 - braces
    argument = {"name": "who", "value": ""}
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent:
            calls = len(await seen(agent, "one", "tools/call"))
            for text in (ref, ref.replace('"tell"', '"one__tell"')):
                asked = await agent.ask("completion/complete", {"ref": text, "argument": argument})
                assert asked["error"]["code"] == -32602
            assert len(await seen(agent, "one", "tools/call")) == calls + 1
            assert "one__more_0" not in await names(agent)


@behaviour("cancel:reaches-server")
@pytest.mark.parametrize(
    ("method", "params"), [("resources/read", {"uri": "two://hang"}), ("prompts/get", {"name": "two__hang"})]
)
async def test_a_cancel_reaches_the_server_and_its_late_answer_is_nobodys(
    shared: Daemon, method: str, params: Json
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.shim() as agent, shared.agent() as other:

            async def at_server(what: str) -> Json:
                return {"ids": await seen(other, "two", what)}

            before, cancels = (
                await seen(other, "two", method),
                await seen(other, "two", "notifications/cancelled"),
            )
            id_ = await agent.request(method, params)
            came = await settled(
                lambda: at_server(method), lambda it: len(it["ids"]) > len(before), "it came"
            )
            await agent.cancel(id_)
            gone = await settled(
                lambda: at_server("notifications/cancelled"),
                lambda it: len(it["ids"]) > len(cancels),
                "cancelled",
            )
            assert gone["ids"][-1] == came["ids"][-1]
            await other.call("two__open")
            assert (await content(agent, "two://own"))["text"] == "two has two://own"
            assert id_ not in agent.answers
            facts = await shared.status()
            assert not facts["servers"]["two"].get("last_error"), "a late answer is no fault of the server"


async def test_a_server_that_never_tells_its_prompts_holds_up_the_others_once(daemon: Make) -> None:
    servers = {
        "one": kit("full", "one"),
        "mute": kit("full", "mute", "--mute", "prompts/list", first_start_s=300.0),
    }
    own = daemon(servers, list_wait_s=3.0)
    # 120 lists that wait 3 s each take twice the limit.
    with trio.fail_after(LIMIT_S):
        async with own.shim() as agent, own.agent() as other:
            while not await names(agent):
                pass  # on a busy machine its prompts may be known later than after `list_wait_s`
            for _ in range(60):
                assert {name.split("__")[0] for name in await names(agent)} == {"one"}
                assert "one://own" in await uris(other)
            assert await said(agent, "one__tell") == "one tells tell {}"
            assert (await content(agent, "one://own"))["text"] == "one has one://own"
