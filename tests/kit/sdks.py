"""The official SDKs as agents and as servers: processes of `.venv/peers`, and what agents do with servers.

Owns where the peers are, how an agent is sent on a tour of a server's features (`tests/kit/peers/agent.*`),
and what a tour of each server is. Knows nothing of carpool: an agent starts whatever command it is given.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from tests.kit.line_agent import Json

ROOT: Final = Path(__file__).parents[2]
PEERS: Final = ROOT / ".venv" / "peers"
PYTHON1: Final = str(PEERS / "bin" / "python")
NODE: Final = str(PEERS / "bin" / "node")
_KIT: Final = Path(__file__).parent
_ASKING: Final = str(_KIT / "servers" / "asking.py")
_MODULES: Final = PEERS / "node_modules" / "@modelcontextprotocol"
TOUR_S: Final = 120.0
ASKABLE: Final[Json] = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
"""What every agent here declares that it can be asked."""

SERVERS: Final[dict[str, list[str]]] = {
    "sdk2": [sys.executable, _ASKING],
    "sdk1": [PYTHON1, _ASKING],
    "everything": [NODE, str(_MODULES / "server-everything" / "dist" / "index.js")],
}
"""The command of each server."""

AGENTS: Final[dict[str, list[str]]] = {
    "python2": [sys.executable, str(_KIT / "peers" / "agent.py")],
    "python1": [PYTHON1, str(_KIT / "peers" / "agent.py")],
    "typescript": [NODE, str(_KIT / "peers" / "agent.mjs")],
}


def entry(server: str, **settings: Any) -> Json:
    """The configuration of a server, its names as they are."""
    command, *args = SERVERS[server]
    return {"command": command, "args": args, "tools_prefix": "", **settings}


def require_peers() -> None:
    """Fails with what to do where the peers are not installed."""
    assert (PEERS / "ready").exists(), "no .venv/peers: run `make .venv/peers/ready` first"


async def tour(
    kind: str,
    name: str,
    command: Sequence[str],
    steps: Sequence[Json],
    *,
    environ: Mapping[str, str],
    directory: Path,
    **more: Any,
) -> Json:
    """Send an agent of this kind and name to the server that `command` starts; its report.

    `environ` is the environment of the server. Files go to `directory`.
    """
    plan = {"name": name, "command": command[0], "args": list(command[1:]), "env": dict(environ)}
    file = directory / f"{kind}-{name}.json"
    file.write_text(json.dumps({**plan, "steps": list(steps), **more}))
    with trio.fail_after(TOUR_S), (directory / f"{kind}-{name}.err").open("wb") as stderr:
        done = await trio.run_process(
            [*AGENTS[kind], str(file)],
            env={**environ, "CARPOOL_PEERS": str(PEERS)},
            capture_stdout=True,
            stderr=stderr,
            check=False,
        )
    said = (directory / f"{kind}-{name}.err").read_text()
    assert done.returncode == 0, f"the {kind} agent failed: {said[-3000:]}"
    report: Json = json.loads(done.stdout)
    return report


def do(method: str, **params: Any) -> Json:
    return {"method": method, "params": params}


def call(tool: str, /, **arguments: Any) -> Json:
    return do("tools/call", name=tool, arguments=arguments)


def _asking(name: str, *, subscribes: bool) -> list[Json]:
    own = f"asking://users/{name}"
    watched = [
        do("resources/subscribe", uri=own),
        {**call("touch", uri=own), "until": {"notifications/resources/updated": 1}},
        do("resources/unsubscribe", uri=own),
    ]
    return [
        do("tools/list"),
        call("echo", text=f"{name} ☂\n\u2028"),
        call("add", a=2, b=3),
        call("add", a="two"),
        {**call("none"), "unknown": True},
        call("form", text=name),
        {**call("url", text=name), "until": {"notifications/elicitation/complete": 1}},
        call("sample", text=name),
        call("sample_with_tools", text=name),
        call("both", text=name, room=name),
        {**call("steps", count=3), "progress": True},
        do("prompts/list"),
        do("prompts/get", name="review", arguments={"code": name, "tone": "stern"}),
        do("prompts/get", name="review", arguments={}),
        do("resources/list"),
        do("resources/templates/list"),
        do("resources/read", uri="asking://notes"),
        do("resources/read", uri=own),
        {**do("resources/read", uri="asking://none"), "unknown": True},
        do(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "review"},
            argument={"name": "tone", "value": name},
            context={"arguments": {"code": "x"}},
        ),
        do(
            "completion/complete",
            ref={"type": "ref/resource", "uri": "asking://users/{user}"},
            argument={"name": "user", "value": name},
        ),
        *(watched if subscribes else []),
        do("ping"),
    ]


def _everything(name: str) -> list[Json]:
    dynamic = "demo://resource/dynamic"
    document = "demo://resource/static/document/features.md"
    own = f"{name}.gz"
    return [
        do("tools/list"),
        call("echo", message=f"{name} ☂\n\u2028"),
        call("echo"),
        {**call("none"), "unknown": True},
        call("get-sum", a=2, b=3),
        call("get-annotated-message", messageType="error", includeImage=True),
        call("get-structured-content", location="Chicago"),
        call("get-tiny-image"),
        call("get-resource-links", count=4),
        call("get-resource-reference", resourceType="Text", resourceId=3),
        call("trigger-sampling-request", prompt=name, maxTokens=7),
        call("trigger-elicitation-request"),
        call("trigger-url-elicitation", url="https://example.org/x"),
        {**call("trigger-long-running-operation", duration=0.2, steps=2), "progress": True},
        call("gzip-file-as-resource", name=own, data=f"data:text/plain,{name}", outputType="resourceLink"),
        do("resources/read", uri=f"demo://resource/session/{own}"),
        do("prompts/list"),
        do("prompts/get", name="simple-prompt"),
        do("prompts/get", name="args-prompt", arguments={"city": name}),
        do("prompts/get", name="args-prompt", arguments={}),
        do("prompts/get", name="resource-prompt", arguments={"resourceType": "Blob", "resourceId": "2"}),
        do("resources/list"),
        do("resources/templates/list"),
        do("resources/read", uri=document),
        do("resources/read", uri=f"{dynamic}/text/7"),
        do("resources/read", uri=f"{dynamic}/blob/7"),
        {**do("resources/read", uri="demo://none"), "unknown": True},
        do(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "completable-prompt"},
            argument={"name": "name", "value": ""},
            context={"arguments": {"department": "Sales"}},
        ),
        do(
            "completion/complete",
            ref={"type": "ref/resource", "uri": f"{dynamic}/text/{{resourceId}}"},
            argument={"name": "resourceId", "value": "5"},
        ),
        do("resources/subscribe", uri=document),
        do("resources/unsubscribe", uri=document),
        do("logging/setLevel", level="error"),
        do("ping"),
    ]


def steps_of(server: str, name: str) -> list[Json]:
    """Every feature of the server that several agents can use at once; what one does is told by its name."""
    if server == "everything":
        return _everything(name)
    return _asking(name, subscribes=server == "sdk2")


def lone_steps_of(server: str) -> list[Json]:
    """The features that only one agent can use at a time: what nobody can say whose it is (rule 5)."""
    if server != "everything":
        return [
            do("logging/setLevel", level="info"),
            {**call("log", level="warning", text="w"), "until": {"notifications/message": 1}},
        ]
    updated = {"notifications/resources/updated": 1}
    return [
        do("resources/subscribe", uri="demo://resource/dynamic/text/1"),
        {**call("toggle-subscriber-updates"), "until": updated},
        call("toggle-subscriber-updates"),
        do("resources/unsubscribe", uri="demo://resource/dynamic/text/1"),
        do("logging/setLevel", level="debug"),
        {**call("toggle-simulated-logging"), "until": {"notifications/message": 1}},
        call("toggle-simulated-logging"),
    ]
