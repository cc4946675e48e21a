"""Whatever a server writes: each call of it is answered once, its agents can read what they get, and agents
of other servers do not notice.

Level: both real shells in one thread (`tests.kit.in_process_daemon`), invariants checked after every event.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.behaviours import behaviour
from tests.fuzz.test_fuzz_agents import EVERYTHING_ENDS_S, QUICK, legible, nothing_is_left, raw_id
from tests.kit.fuzzing import fuzz
from tests.kit.hostile_servers import Hostile
from tests.kit.in_process_daemon import in_process_daemon
from tests.kit.in_process_servers import InProcessServer, Json, echo

CALLS: Final[tuple[tuple[str, Json], ...]] = (
    ("tools/call", {"name": "bad__echo", "arguments": {"text": "x"}, "_meta": {"progressToken": "p"}}),
    ("tools/call", {"name": "bad__echo", "arguments": {}}),
    ("tools/call", {"name": "bad__a"}),
    ("prompts/get", {"name": "bad__tell"}),
    ("resources/read", {"uri": "x://y"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "bad__tell"}, "argument": {"name": "a"}}),
    *((f"{what}/list", {}) for what in ("tools", "prompts", "resources", "resources/templates")),
    ("resources/subscribe", {"uri": "x://y"}),
    ("logging/setLevel", {"level": "debug"}),
)
STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}, "url": {}}, "sampling": {}},
}


def served(rng: Random, house: Path, era: str) -> None:
    """A hostile server, an agent that uses it, and one that uses another."""
    server = Hostile(rng, era, badness=0.0)
    settings = {"sharing": rng.choice(("concurrent", "serial", "session", "auto")), "era": "auto", **QUICK}
    servers: dict[str, Json] = {
        "good": {"command": "x", "args": ["echo"], "sharing": "concurrent", **QUICK},
        "bad": {"command": "x", "args": ["hostile"], **settings},
    }
    with in_process_daemon(house, servers, {"echo": echo, "hostile": server}) as one:
        good, user = one.connect(), one.connect()
        good.greet()
        good.echo("first")
        can: Json = rng.choice(
            ({}, {"elicitation": {}}, {"elicitation": {"url": {}, "form": {}}, "sampling": {}})
        )
        hello = {"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": {"name": "user"}}
        server.badness = rng.choice((0.0, 0.1, 0.5))  # some get past its greeting
        user.send(line(0, "initialize", hello))
        asked = [0]
        for _ in range(rng.randrange(1, 5)):
            for _ in range(rng.randrange(1, 5)):
                method, params = rng.choice(CALLS)
                if rng.random() < 0.2 and not method.startswith(("logging", "resources/sub")):
                    params = {**params, "_meta": STATELESS}
                user.send(line(len(asked), method, params))
                asked.append(len(asked))
            server.badness = rng.choice((0.1, 0.5, 0.9))
            process = one.server("bad")
            if process is not None:
                server.babble(process)
                one.settle()
            good.echo("undisturbed")
            if rng.random() < 0.3:
                one.wait(rng.choice((0.1, 1.0, 5.0)))
        one.wait(EVERYTHING_ENDS_S)
        good.echo("still undisturbed")
        legible(user.lines)
        answered = Counter(map(raw_id, user.lines))
        for each in asked:
            assert answered[b"%d" % each] == 1, f"request {each} was answered {answered[b'%d' % each]} times"
        user.close()
        server.badness = 0.0
        nothing_is_left(one)


def line(ident: int, method: str, params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": ident, "method": method, "params": params}).encode() + b"\n"


@behaviour("bad-input:servers")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_whatever_a_server_writes_each_call_is_answered_once_and_nobody_notices(
    house: Path, era: str
) -> None:
    fuzz(lambda rng: served(rng, house, era), examples=10, seeds=60)


def alone(program: Callable[[InProcessServer, Json], None]) -> dict[str, Any]:
    return {"good": echo, "bad": program}


BESIDE: Final[dict[str, Json]] = {
    "good": {"command": "x", "args": ["good"], **QUICK},
    "bad": {"command": "x", "args": ["bad"], **QUICK},
}


def test_a_server_that_says_a_change_after_every_list_keeps_nobody_busy(house: Path) -> None:
    """Found by hand: it and the supervisor asked and answered each other as fast as they could, for ever."""
    lists = 0

    def restless(process: InProcessServer, message: Json) -> None:
        nonlocal lists
        echo(process, message)
        if str(message.get("method")).endswith("/list"):
            lists += 1
            for family in ("tools", "prompts", "resources"):
                process.say({"method": f"notifications/{family}/list_changed"})

    with in_process_daemon(house, BESIDE, alone(restless)) as one:
        good = one.connect()
        good.greet()
        good.echo("x")
        good.echo("x", "bad__echo")
        before = lists
        one.wait(10.0)
        assert before < 60
        assert lists - before < 600, "a few lists a second"
        assert lists > before, "what changed is read in the end"
        good.echo("x", "bad__echo")


def test_a_server_that_calls_itself_something_else_each_time_is_served_as_before(house: Path) -> None:
    lives = 0

    def renamed(process: InProcessServer, message: Json) -> None:
        nonlocal lives
        if message.get("method") == "initialize":
            lives += 1
            who = {"name": f"\x1b[31mname {lives}", "version": str(lives)}
            said = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": who}
            process.say({"id": message["id"], "result": said})
        else:
            echo(process, message)

    with in_process_daemon(house, BESIDE, alone(renamed)) as one:
        good = one.connect()
        good.greet()
        good.echo("x", "bad__echo")
        names = [each["name"] for each in good.ask("tools/list")["result"]["tools"]]
        (mortal,) = [at for at, each in one.processes.running.items() if each is one.server("bad")]
        one.processes.exit(mortal, -9)
        one.settle()
        one.wait(2.0)
        good.echo("x", "bad__echo")
        assert lives == 2
        assert [each["name"] for each in good.ask("tools/list")["result"]["tools"]] == names
