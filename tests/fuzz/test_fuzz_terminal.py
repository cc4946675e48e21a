"""Whatever servers, agents, logs and files hold: what the command line prints moves no cursor, colours
nothing, breaks no line that is one, and can be written; and its JSON is JSON.

Level: every verb that shows what others said, in this process, with a door that tells it hostile facts.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

import click
import msgspec
import pytest
from click.testing import CliRunner

from carpool.cli import call, check, daemon, logs, resources_prompts, status, tools, why
from carpool.control.control_client import AnsweredError
from carpool.launcher.runtime_place import RuntimePlace
from carpool.probe.probe import conclusion
from carpool.terminal.verb_output import print_json
from tests.behaviours import behaviour
from tests.kit.fake_broker import POOLS, STATUS, TOOLS
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import NAMES, members, value
from tests.kit.hostile_servers import Hostile

TRICKS: Final = (
    *NAMES,
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q\x1b\\",
    "\x1b[8m hidden",
    "\u2066\u2069\u200f",
    "\x85next",
    "a\x08\x08b",
    "\x7f",
    "\x0e\x0f",
    "\u2029",
    "\x1c\x1d\x1e",
    "first\nsecond",
    "\x9d0;title\x9c",
)
OBEYED: Final = frozenset("\u200e\u200f\u061c\u2028\u2029") | {chr(at) for at in range(0x202A, 0x202F)}
ISOLATES: Final = frozenset(map(chr, range(0x2066, 0x206A)))


def hostile(rng: Random, facts: Any) -> Any:
    """The same shape, with tricks for texts: keys of servers, too."""
    match facts:
        case str() if facts not in {"ok", "servers_failing", "config_broken", "given_up"}:
            return rng.choice(TRICKS) if rng.random() < 0.7 else facts
        case list():
            return [hostile(rng, each) for each in facts]
        case dict():
            odd = all(isinstance(each, dict) for each in facts.values())
            return {
                (f"{rng.choice(TRICKS)}{at}" if odd and rng.random() < 0.5 else key): hostile(rng, each)
                for at, (key, each) in enumerate(facts.items())
            }
        case _:
            return facts


def is_harmless(shown: str) -> None:
    shown.encode()
    bad = [char for char in shown if char in OBEYED or char in ISOLATES or not _is_shown(char)]
    assert not bad, f"{bad!a} in {shown!a}"


def _is_shown(char: str) -> bool:
    return char in "\n\t" or (char >= " " and not "\x7f" <= char <= "\x9f")


def run(command: click.Command, *arguments: str) -> None:
    """A verb for people and for programs: harmless, and JSON where that is what was asked for."""
    for more in ((), ("--json",)):
        done = CliRunner().invoke(command, [*arguments, *more], catch_exceptions=False)
        is_harmless(done.output)
        if more and done.exit_code == 0:
            json.loads(done.stdout, parse_int=str)
            assert done.stdout.isascii()


class Fake:
    """A door that is open. `said`: the result of every request, or an error object."""

    def __init__(self, said: bytes, *, is_error: bool = False) -> None:
        self.said = msgspec.Raw(said)
        self.is_error = is_error

    def initialize(self) -> None:
        pass

    def request(
        self, _method: str, _params: object, _timeout_s: float = 0, notice: Any = None
    ) -> msgspec.Raw:
        if notice is not None:
            notice("notifications/progress", self.said)
        if self.is_error:
            raise AnsweredError(self.said, "\x1b[31m\ud83d")
        return self.said

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def facing(door: Fake) -> Iterator[None]:
    """Every verb finds this door."""
    with mock.patch.object(status, "reach_broker", return_value=door):
        modules = (status, tools, resources_prompts, call, daemon, why)
        patches = [mock.patch.object(module, "open_session", return_value=door) for module in modules]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuntimePlace:
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return RuntimePlace()


@behaviour("bad-input:terminal")
def test_what_reads_the_daemon_obeys_nothing() -> None:
    def play(rng: Random) -> None:
        facts = hostile(
            rng,
            {**copy.deepcopy(STATUS), "reason": rng.choice(("ok", "servers_failing", "config_broken", "x"))},
        )
        facts["config"] = {"problem": rng.choice(TRICKS)}
        with facing(Fake(_encoded(facts))):
            run(status.status)
            run(status.ps)
        with facing(
            Fake(_encoded({"tools": hostile(rng, TOOLS), "error": rng.choice((None, rng.choice(TRICKS)))}))
        ):
            run(tools.tools)
            run(tools.tools, "--tokens")
            run(tools.tools, "x")
        with facing(Fake(_encoded({"pools": hostile(rng, POOLS["time"])}))):
            run(why.why, "x")
        results = [{"server": rng.choice(TRICKS), "ok": rng.random() < 0.5, "text": rng.choice(TRICKS)}]
        with facing(Fake(_encoded({"results": results, "ok": False, "problems": [rng.choice(TRICKS)]}))):
            run(daemon.start, "x")
            run(daemon.reload)
        found = {
            "calls": [{"tool": rng.choice(TRICKS), "outcome": "agreed"}],
            "result": "agreed",
            "note": "n",
        }
        is_harmless(conclusion("x", found))

    fuzz(play, examples=5, seeds=25)


def _encoded(facts: Any) -> bytes:
    """The broker's own answers hold no half pairs."""
    return json.dumps(facts, ensure_ascii=False).encode(errors="replace")


OFFERS: dict[str, Any] = {
    "resources": [{"uri": "a:1", "name": "n", "mimeType": "text/plain", "description": "d"}],
    "templates": [{"uriTemplate": "a:{x}", "name": "n"}],
    "prompts": [{"name": "n", "description": "d", "arguments": [{"name": "a", "required": True}]}],
    "contents": [{"uri": "a:1", "mimeType": "text/plain", "text": "t"}, {"uri": "a:2", "blob": "AA=="}],
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "t"}},
        {"role": "user", "content": {"type": "resource", "resource": {"uri": "a:1"}}},
    ],
}


@behaviour("bad-input:terminal")
def test_what_servers_offer_and_say_is_shown_and_not_obeyed() -> None:
    def play(rng: Random) -> None:
        with facing(Fake(_encoded(hostile(rng, OFFERS)), is_error=rng.random() < 0.1)):
            run(resources_prompts.resources)
            run(resources_prompts.prompts)
            run(resources_prompts.prompt, "x", "--arg", "k=v")
            with mock.patch.object(resources_prompts, "is_shown", return_value=True):
                run(resources_prompts.read, "a:1")

    fuzz(play, examples=5, seeds=25)


@behaviour("bad-input:terminal")
def test_what_a_tool_answers_is_shown_and_not_obeyed() -> None:
    def play(rng: Random) -> None:
        said = (
            Hostile(rng, "handshake", badness=1)._result("tools/call")
            if rng.random() < 0.7
            else value(rng, 3)
        )
        if rng.random() < 0.3:
            block = members(rng, [("type", b'"text"'), ("text", json.dumps(rng.choice(TRICKS)).encode())])
            said = b'{"content":[%b],"isError":true}' % block
        try:
            said = bytes(msgspec.json.decode(b'{"a":%b}' % said, type=dict[str, msgspec.Raw])["a"])
            json.loads(said)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return  # the broker would not pass it on
        for is_error in (False, True):
            with (
                facing(Fake(said, is_error=is_error)),
                mock.patch("sys.stderr.isatty", return_value=True, create=True),
            ):
                run(call.call, "x")

    fuzz(play, examples=20, seeds=150)


@behaviour("bad-input:terminal")
def test_what_stands_in_a_log_is_shown_and_not_obeyed(place: RuntimePlace) -> None:
    folder = Path(place.logs)
    folder.mkdir(parents=True)

    def play(rng: Random) -> None:
        lines = [rng.choice(TRICKS).encode("utf-8", "surrogatepass") for _ in range(4)] + [b"\xff\xfe\x9b31m"]
        for name in ("server-git", "broker", "server-a\x1b[31m"):
            (folder / f"{name}.log").write_bytes(b"\n".join(lines) + b"\n")
        run(logs.logs)
        run(logs.logs, "git")

    fuzz(play, examples=5, seeds=30)


def test_what_a_configuration_says_is_shown_and_not_obeyed(place: RuntimePlace, tmp_path: Path) -> None:
    def play(rng: Random) -> None:
        file = tmp_path / "carpool.json"
        trick = json.dumps(rng.choice(TRICKS))
        texts = (
            f'{{"mcpServers": {{{trick}: {{"command": "x"}}}}}}',
            f'{{"mcpServers": {{"a": {{"command": {trick}, "args": [{trick}], "env": {{"A": {trick}}}}}}}}}',
            f"{{{trick}: 1}}",
            rng.choice(TRICKS),
            f'{{"mcpServers": {{"a": {{"command": "x", "cwd": {trick}}}}}}}',
        )
        file.write_bytes(rng.choice(texts).encode("utf-8", "surrogatepass"))
        run(check.check, "--config", str(file))
        run(check.check, "--config", str(file), "--all")

    fuzz(play, examples=5, seeds=60)


def test_json_is_ascii_even_where_a_delete_stands_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": "\x7f\u202e"})
    assert capsys.readouterr().out == '{\n  "a": "\\u007f\\u202e"\n}\n'
