"""Real servers of both eras whose era nobody configured: found out without harm, kept, shown."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import LIVE, Daemon, Make
from tests.kit.sdks import SERVERS, require_peers
from tests.kit.stateless_agent import Stateless
from tests.live.conftest import shared_daemon

STATELESS_ONLY: Final = """
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    answer = {"error": {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}}}
    result = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": "era", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "stateless"}]},
    }.get(m["method"])
    if result is not None: answer = {"result": {"resultType": "complete", **result}}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **answer}), flush=True)
"""
DIES_OF_THE_PROBE: Final = """
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    result = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo":
            {"name": "frail", "version": "1"}},
        "tools/list": {"tools": [{"name": "era", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "handshake"}]},
    }.get(m["method"])
    if result is None: sys.exit(3)
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
"""
EXITS_OF_A_VERSION: Final = """
import json, sys
how, spoken = sys.argv[1:]
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    offered = m["params"].get("protocolVersion", spoken) if "params" in m else spoken
    error = {"code": -32602, "message": "Unsupported protocol version"}
    if how == "invalid": error = {"code": -32600, "message": "Invalid Request"}
    result = {
        "initialize": {"protocolVersion": spoken, "capabilities": {"tools": {}}, "serverInfo":
            {"name": "old", "version": "1"}},
        "tools/list": {"tools": [{"name": "era", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": spoken}]},
    }.get(m["method"], {})
    if how != "silent" or offered == spoken:
        answer = {"result": result} if offered == spoken else {"error": error}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **answer}), flush=True)
    if offered != spoken and how != "invalid": sys.exit(1)
"""
LEDGER: Final = """
import json, sys
ledger, speaks = sys.argv[1:]
era = ""
for line in sys.stdin:
    m = json.loads(line)
    if not era:
        with open(ledger, "a") as out: print(m["method"], file=out)
    if "id" not in m: continue
    asked = "handshake" if m["method"] == "initialize" else era or "stateless"
    era = era or asked * (speaks in ("both", asked))
    result = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo":
            {"name": "ledger", "version": "1"}},
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": "era", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": era}]},
    }.get(m["method"])
    if era != asked or result is None: answer = {"error": {"code": -32601, "message": "no"}}
    else: answer = {"result": {**({"resultType": "complete"} if era == "stateless" else {}), **result}}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **answer}), flush=True)
"""


def script(text: str, **settings: Any) -> Json:
    return {"command": sys.executable, "args": ["-S", "-E", "-c", text], **settings}


def dual(**settings: Any) -> Json:
    return {"command": sys.executable, "args": [str(LIVE / "modern_server.py")], **settings}


def peer(name: str, **settings: Any) -> Json:
    command, *args = SERVERS[name]
    return {"command": command, "args": args, **settings}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {"new": script(STATELESS_ONLY), "dual": dual(), "fixed": dual(era="modern")}
    yield from shared_daemon(servers)


def eras(facts: Json, server: str) -> list[str]:
    return sorted(each["era"] for each in facts["servers"][server]["instances"])


@behaviour("eras:found-out")
async def test_the_era_of_each_server_is_found_out_by_its_answer_to_initialize(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            tools = await agent.tools()
            assert {"new__era", "dual__echo", "fixed__echo"} <= set(tools)
            assert await agent.text("new__era", {}) == "stateless"
            assert await agent.text("dual__echo", {"text": "x"}) == "x"
        facts = await shared.status()
        assert eras(facts, "new") == ["stateless"]
        assert eras(facts, "dual") == ["handshake"]
        assert eras(facts, "fixed") == ["stateless"]
        for server in ("new", "dual", "fixed"):
            assert facts["servers"][server]["restarts"] == 0


@behaviour("eras:found-out")
async def test_why_tells_the_era_and_since_when_it_is_known(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.tools()
        said = {name: (await shared.carpool("why", name))[1] for name in ("new", "dual", "fixed")}
        assert "the stateless era (MCP 2026-07-28): on 20" in said["new"]
        assert "refused initialize" in said["new"]
        assert "the handshake era" in said["dual"]
        assert "as configured" in said["fixed"]


@behaviour("eras:match")
async def test_each_agent_has_a_process_of_its_own_era_if_the_server_speaks_both(
    daemon: Make,
) -> None:
    require_peers()
    servers = {
        "dual": dual(),
        "frail": script(DIES_OF_THE_PROBE),
        "new": script(STATELESS_ONLY),
        "sdk1": peer("sdk1"),
        "everything": peer("everything"),
    }
    one_era = {"frail": "handshake", "new": "stateless", "sdk1": "handshake", "everything": "handshake"}

    def settled(facts: Json) -> bool:
        return eras(facts, "dual") == ["handshake", "stateless"] and all(
            set(eras(facts, name)) == {era} for name, era in one_era.items()
        )

    with trio.fail_after(2 * LIMIT_S):
        here = daemon(servers)
        async with here.agent() as old, here.agent(greet=False) as line:
            assert {"dual__echo", "frail__era", "everything__echo"} <= set(await old.tools())
            agent = Stateless(line)
            listed = await agent.result("tools/list")
            assert "dual__echo" in [each["name"] for each in listed["tools"]]
            assert await agent.text("dual__echo", {"text": "x"}) == "x"
            assert await agent.text("frail__era") == "handshake"
            assert await agent.text("new__era") == "stateless"
            assert await agent.text("everything__echo", {"message": "z"}) == "Echo: z"
            assert await old.text("dual__echo", {"text": "y"}) == "y"
            facts = await here.until(settled, "each server has a process per era that it speaks")
        assert "It speaks both eras of MCP" in (await here.carpool("why", "dual"))[1]
        assert [facts["servers"][name]["restarts"] for name in servers] == [0] * len(servers)
        kept = json.loads(next(here.base.rglob("eras.json")).read_text())["servers"]
        found = {name.partition(" ")[0]: each["era"] for name, each in kept.items()}
        assert found == one_era


@behaviour("versions:exit")
async def test_a_server_that_exits_at_a_version_that_it_does_not_know_serves_with_an_older_one(
    daemon: Make,
) -> None:
    servers = {}
    for how, spoken in (("silent", "2025-06-18"), ("refuses", "2025-06-18"), ("invalid", "2024-11-05")):
        servers[how] = script(EXITS_OF_A_VERSION, sharing="session", restart={"give_up_after": 1})
        servers[how]["args"] += [how, spoken]
    with trio.fail_after(2 * LIMIT_S):
        here = daemon(servers)
        async with here.agent() as agent:
            for how in servers:
                assert await agent.text(f"{how}__era", {}) == servers[how]["args"][-1]
            async with here.agent() as other:  # a process of its own
                for how in servers:
                    await other.text(f"{how}__era", {})
        facts = await here.status()
        assert [facts["servers"][how]["restarts"] for how in servers] == [0, 0, 0]


def ledger(one: Daemon, speaks: str) -> Json:
    """A server that speaks `speaks`, and writes down each greeting that it gets."""
    return {
        "command": sys.executable,
        "args": ["-S", "-E", "-c", LEDGER, str(one.base / f"{speaks}.ledger"), speaks],
    }


def greetings(one: Daemon, speaks: str) -> list[str]:
    return (one.base / f"{speaks}.ledger").read_text().split()


@behaviour("eras:match")
@pytest.mark.parametrize(
    ("agents", "greeted"),
    [
        (["old"], ["initialize"]),
        (["new"], ["server/discover"]),
        (["old", "new"], ["initialize", "server/discover"]),
        (["new", "old"], ["server/discover", "initialize"]),
    ],
)
async def test_a_server_of_both_eras_has_a_second_process_only_when_agents_of_both_use_it(
    agents: list[str], greeted: list[str]
) -> None:
    with trio.fail_after(LIMIT_S):
        one = Daemon()
        try:
            one.configure({"s": ledger(one, "both")})
            one.up()
            for kind in agents:
                async with one.agent(greet=kind == "old") as line:
                    agent = line if kind == "old" else Stateless(line)
                    if kind == "old":
                        await line.tools()
                    said = await agent.text("s__era", {})
                assert said == ("handshake" if kind == "old" else "stateless")
            assert greetings(one, "both") == greeted
            facts = await one.status()
            assert len(facts["servers"]["s"]["instances"]) == len(agents)
        finally:
            one.close()


@behaviour("eras:asked-once")
@pytest.mark.parametrize("speaks", ["handshake", "stateless"])
async def test_a_server_of_one_era_is_found_out_once_and_the_next_carpool_starts_one_process(
    speaks: str,
) -> None:
    first = "initialize" if speaks == "handshake" else "server/discover"

    async def use(one: Daemon) -> None:
        """By agents of both eras, the stateless one first."""
        async with one.agent(greet=False) as line:
            assert await Stateless(line).text("s__era") == speaks
        async with one.agent() as agent:
            await agent.tools()
            assert await agent.text("s__era", {}) == speaks
        await one.until(lambda facts: eras(facts, "s") == [speaks], "one process serves both")

    with trio.fail_after(2 * LIMIT_S):
        one = Daemon()
        try:
            one.configure({"s": ledger(one, speaks)})
            one.up()
            await use(one)
            asked = greetings(one, speaks)
            assert {"initialize", "server/discover"} <= set(asked)
            assert one.run("down").returncode == 0
            one.up()
            await use(one)
            assert greetings(one, speaks)[len(asked) :] == [first]
        finally:
            one.close()
