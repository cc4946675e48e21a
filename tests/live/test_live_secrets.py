"""Planted secrets: in the environment, its file, arguments, headers, tokens, URIs, words of agents. None of
them is found in a file, an output or a process of carpool's, whatever happens to those who carry them.

Some of the servers repeat what they were given, in every way in which a server can speak before it serves.
"""

import json
import os
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import trio

from carpool.control.control_client import ControlClientError
from carpool.http.core.access import hash_of
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, fault_of
from tests.kit.live import DAEMON_WORDS, Daemon, Make, kit, observer, texts_below
from tests.kit.open_door import open_door
from tests.kit.waits import until
from tests.live.test_live_http import ask, door, request, session

REPORTS = (
    ("status",),
    ("status", "--json"),
    ("ps", "--json"),
    ("tools", "--json"),
    ("check", "--all"),
    ("logs", "--daemon"),
    ("logs", "frail"),
    ("logs", "exits"),
    ("logs", "refuses"),
    ("logs", "babbles"),
    ("why", "dies"),
    ("why", "typo"),
)


class Secrets:
    """One secret for each way in: `way in → what is looked for`."""

    def __init__(self) -> None:
        self.by_place: dict[str, str] = {}

    def __getitem__(self, place: str) -> str:
        return self.by_place.setdefault(place, f"canary{secrets.token_hex(8)}")

    def found_in(self, text: str) -> list[str]:
        return [place for place, secret in self.by_place.items() if secret in text]


def files(one: Daemon) -> Iterator[tuple[str, str]]:
    """Everything that carpool has written, in its directories and on the stderr of its shims."""
    own = (one.config, one.base / "secrets.env")
    return ((str(path), text) for path, text in texts_below(one.base) if path not in own)


def processes(one: Daemon) -> Iterator[tuple[str, str]]:
    """Command lines of all processes but the instances', which get what they are configured with; and the
    environments of the daemon's."""
    instances = {each["pid"] for server in one.facts()["servers"].values() for each in server["instances"]}
    for pid, line in one.running().items():
        if pid not in instances:
            yield f"command of {pid}", line
        if any(word in line for word in DAEMON_WORDS):
            yield f"environment of {line}", Path(f"/proc/{pid}/environ").read_text(errors="replace")


async def reports(one: Daemon) -> list[tuple[str, str]]:
    """What the command line has to say."""
    said = []
    for words in REPORTS:
        _, out, err = await one.carpool(*words)
        said.append((f"carpool {' '.join(words)}", out + err))
    return said


def leaks(one: Daemon, hidden: Secrets, said: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Where a secret is to be seen: in what was said, in files and in processes."""
    places = [*said, *files(one), *processes(one)]
    assert len(places) > 12
    kept = paths.last_good_file(str(one.directory))
    found = [(place, secret) for place, text in places for secret in hidden.found_in(text)]
    # A copy of the user's own file holds what he has written out in it, and nothing else.
    written_out = {(kept, "env of the configuration"), (kept, "args of the configuration")}
    return [f"{secret} in {place}" for place, secret in found if (place, secret) not in written_out]


def serves(one: Daemon) -> bool:
    try:
        return bool(one.facts()["supervisors"])
    except ControlClientError:
        return False


def servers(hidden: Secrets) -> Json:
    quick = {"restart": {"first_delay_s": 0}}
    secret = {
        "OF_AGENT": "${OF_AGENT:-none}",
        "OF_FILE": "${OF_FILE}",
        "LITERAL": hidden["env of the configuration"],
    }
    return {
        "good": observer(env=secret, tool_timeouts_s={"wait": 1}),
        "dies": kit("dies_after", "0", "--kill", env=secret, **quick),
        "frail": kit("dies_at_start", "--key", "${OF_FILE}", env=secret, restart={"give_up_after": 1}),
        "bad": kit("bad_answers", env=secret),
        "half": kit("half_line", env=secret, **quick),
        "typo": {"command": "/no/such/program", "args": [hidden["args of the configuration"]], "env": secret},
        **repeating(secret),
        "frank": {"command": "${OF_FILE}", "env": {"NEEDS": "${NOBODY_HAS_IT}"}},
    }


def repeating(secret: Json) -> Json:
    """Servers that are given a value by `args`, a path or a URL, and that repeat it or are told with it."""
    refuse = (
        "import json, sys; asked = json.loads(sys.stdin.readline());"
        "print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'],"
        " 'error': {'code': -32000, 'message': f'bad key {sys.argv[1]}'}}), flush=True); sys.stdin.read()"
    )
    babble = "import sys; print(f'connecting with {sys.argv[1]}', flush=True); sys.stdin.read()"
    once: Json = {"restart": {"give_up_after": 1}, "start_s": 3, "first_start_s": 3}
    python = {"command": sys.executable, **once}
    return {
        "exits": {
            "command": "sh",
            "args": ["-c", 'echo "bad key $1" >&2; exit 2', "sh", "${OF_FILE}"],
            **once,
        },
        "refuses": {**python, "args": ["-c", refuse, "${OF_FILE}"]},
        "babbles": {**python, "args": ["-c", babble, "${OF_FILE}"]},
        "astray": {"command": "/no/${OF_FILE}/program", **once},
        "homeless": {"command": "sh", "cwd": "/no/${OF_FILE}", "env": secret, **once},
        "far": {"url": "http://127.0.0.1:9/${OF_FILE}", **once},
    }


async def misfortunes(agent: LineAgent, hidden: Secrets, way: str) -> None:
    """Calls that work, and that fail in every way there is, each with a secret in what it says."""
    said = {"text": hidden[f"argument by {way}"], "gate": hidden[f"gate by {way}"]}
    assert await agent.text("good__echo", said) == said["text"]
    assert fault_of(await agent.call("good__wait", said))["delivered"] == "maybe"
    given_up = await agent.start("good__wait", said)
    await agent.inside("good", 2)
    why = {"requestId": json.loads(given_up), "reason": hidden[f"reason of a cancel by {way}"]}
    await agent.tell("notifications/cancelled", why)
    for server in repeating({}):
        answer = json.dumps(await agent.ask("tools/call", {"name": f"{server}__x", "arguments": {}}))
        assert hidden.found_in(answer) == [], f"{server} is told with {answer}"
    for server, tool in (("dies", "echo"), ("typo", "x"), ("frail", "x"), ("bad", "bad"), ("half", "half")):
        await agent.ask("tools/call", {"name": f"{server}__{tool}", "arguments": {"kind": "shape", **said}})
    for method, params in (
        ("tools/call", {"name": "no__such", "arguments": said}),
        ("tools/call", {"name": 7, "arguments": said}),
        ("tools/call", {"name": said["text"], "arguments": said}),
        ("resources/read", {"uri": f"postgres://u:{hidden[f'URI by {way}']}@h/d"}),
        ("prompts/get", {"name": "no-such", "arguments": said}),
        ("no/such", said),
    ):
        assert "error" in await agent.ask(method, params)
    await agent.line(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":"%s' % said["text"].encode()
    )
    await agent.line(b"\xff" + hidden[f"garbage by {way}"].encode())


def over_http(one: Daemon, hidden: Secrets) -> None:
    """With the right token, with a wrong one, and with secrets where a door might write them down."""
    url, _ = door(one)
    token = {"Authorization": f"Bearer {hidden['token']}"}
    found = session(url, **token)
    said = {"text": hidden["argument over HTTP"]}
    call = request(2, "tools/call", name="good__echo", arguments=said)
    assert ask(url, "POST", body=call, Mcp_Session_Id=found, **token).status == 200
    hidden.by_place["session of HTTP"] = found
    wrong = {"Authorization": f"Bearer {hidden['wrong token']}"}
    assert ask(url, "POST", body=call, **wrong).status == 401
    assert ask(url, "POST", f"?key={hidden['query']}", call, X_Key=hidden["header"], **token).status == 400
    ask(url, "GET", f"/{hidden['path']}", **token)
    ask(url, "POST", body=[hidden["body"]], **token)
    ask(url, "POST", body=call, Host=f"{hidden['host']}.example", **token)
    ask(url, "POST", body=call, Origin=f"https://{hidden['origin']}.example", **token)


@behaviour("private:no-secret-is-told")
async def test_no_secret_of_anybody_is_in_a_file_an_output_or_a_process_of_ours(daemon: Make) -> None:
    hidden = Secrets()
    one = daemon(up=False)
    one.environ["OF_STARTER"] = hidden["environment of the starter"]
    tokens = {"ann": hash_of(hidden["token"])}
    one.configure(servers(hidden), env_file="secrets.env", http={"port": 0, "tokens": tokens})
    (one.base / "secrets.env").write_text(f"OF_FILE={hidden['env_file']}\n")
    of_agent = {"OF_AGENT": hidden["environment of the agent"], "UNUSED": hidden["environment nobody wants"]}
    with trio.fail_after(2 * LIMIT_S):
        await trio.to_thread.run_sync(one.up)
        async with one.shim(environ=of_agent) as agent:
            await misfortunes(agent, hidden, "a shim")
            async with one.agent() as other:
                await misfortunes(other, hidden, "a socket")
            await trio.to_thread.run_sync(over_http, one, hidden)
            said = json.dumps({"text": hidden["argument of `carpool call`"]})
            for tool in ("good__echo", "dies__echo", "no__such"):
                await one.carpool("call", tool, "--args", "-", stdin=said.encode())
            held = await agent.start("good__wait", {"gate": hidden["gate at a death"]})
            await agent.inside("good", 3)
            os.kill((await one.status())["supervisors"][0]["pid"], signal.SIGKILL)
            await agent.answer(held)
            assert await agent.text("good__environ", {"name": "OF_AGENT"}) == of_agent["OF_AGENT"]
            assert leaks(one, hidden, await reports(one)) == []
        runs = {"OF_RUN": hidden["environment of a run"]}
        echo = kit("echo")
        async with one.shim("run", "--", echo["command"], *echo["args"], environ=runs) as agent:
            who = await agent.text("whoami", {"env": "OF_RUN"})
            assert runs["OF_RUN"] in who
            assert leaks(one, hidden) == []
        os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
        await until(lambda: serves(one), "the next broker serves")
        assert leaks(one, hidden) == []
    assert len(hidden.by_place) > 20
    assert open_to_others(one) == []


def open_to_others(one: Daemon) -> list[str]:
    """Files, directories and sockets of carpool's that another user could use."""
    found = [one.directory, *one.directory.rglob("*")]
    return [f"{path} {mode:04o}" for path in found if (mode := path.stat().st_mode & 0o7777) & 0o077]


@behaviour("private:files")
async def test_all_that_is_made_is_private_whatever_the_umask(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False, http=open_door())
    old = os.umask(0)
    try:
        one.up()
        with trio.fail_after(LIMIT_S):
            async with one.shim() as agent:
                await agent.text("good__say", {"text": "a line on stderr"})
                door(one)
                names = {path.name for path in one.directory.rglob("*")}
                wanted = {"agents.sock", "link.sock", "lock", "http.json", "broker.log", "server-good.log"}
                assert names >= wanted
                assert open_to_others(one) == []
    finally:
        os.umask(old)
