"""The names that a shell completes: servers, tools, profiles, workspaces, sessions and calls.

Owns where they come from: the carpool that runs, else the configuration; nothing is started for them. Owns
the bound: what is not known in time is not offered. Only names are offered that no shell takes for anything
else, since what a server or an agent is called ends up on the command line.

Refuses to know: which parameter takes which names, the protocol with the shell.
"""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Literal, NoReturn

import msgspec

from carpool import named_places
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool_protocol.bootstrap import paths, trusted_places

Kind = Literal["server", "tool", "profile", "workspace", "session", "call", "past call"]
Named = tuple[str, str]
"""A name, and a few words about it."""

LIMIT_S: Final = 1.0
"""Seconds after which nothing is offered: somebody waits with a finger on the key."""
SUPERVISOR_S: Final = 0.3
PAST_BYTES: Final = 64 * 1024
"""Bytes at the end of the audit in which past calls are looked for."""
MOST: Final = 2000
"""The most names that are offered."""
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_@/.:+][A-Za-z0-9_@/.:+-]{0,255}")
_STRANGE: Final = re.compile(r"[^A-Za-z0-9_@/.:+() -]")
_TEXT_CHARACTERS: Final = 60


class _TooLateError(Exception):
    """The time is over."""


def known_names(kind: Kind, *, profile: str = "", workspace: str = "") -> list[Named]:
    """Return the names of this kind with a few words each; empty if they cannot be known in time.

    `profile`, `workspace`: as the command line already says, for tools.
    """
    try:
        with _time_limit(LIMIT_S):
            named_places.refuse_untrusted(os.environ)
            directory, _ = paths.find_runtime_dir(os.environ, os.getuid())
            return _harmless(_read(kind, directory, profile, workspace))
    except (
        *(_TooLateError, OSError, ValueError, LookupError, TypeError),
        *(ControlClientError, AnsweredError, msgspec.MsgspecError),
        *(trusted_places.UntrustedPlaceError, paths.NotPrivateError),
    ):
        return []


def _read(kind: Kind, directory: str, profile: str, workspace: str) -> Iterable[Named]:
    def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        with ControlClient(
            directory, control=True, profile=profile, workspace=workspace, attach_s=LIMIT_S
        ) as client:
            answer: dict[str, Any] = msgspec.json.decode(client.request(method, params, LIMIT_S))
            return answer

    match kind:
        case "tool":
            return [
                (each["name"], each["server"]) for each in ask("carpool/tools", {"offline": True})["tools"]
            ]
        case "session":
            return _sessions(ask("carpool/status", {"within_s": SUPERVISOR_S}))
        case "call":
            return _calls(ask)
        case "past call":
            status = ask("carpool/status", {"within_s": SUPERVISOR_S})
            return [*_calls(ask), *past_calls(status["audit"]["file"])]
        case "server":
            return _servers(ask, directory)
        case "profile" | "workspace":
            return _configured(directory, kind)


Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


def _servers(ask: Ask, directory: str) -> Iterable[Named]:
    try:
        status = ask("carpool/status", {"within_s": SUPERVISOR_S})
    except ControlClientError:
        return _configured(directory, "server")
    return [(name, each["state"]) for name, each in status["servers"].items()]


def _sessions(status: dict[str, Any]) -> Iterator[Named]:
    for each in status["sessions"]:
        token = f" ({each['principal']})" if each.get("principal") else ""
        yield each["id"], f"{each['agent']}{token}"


def _calls(ask: Ask) -> Iterator[Named]:
    for each in ask("carpool/calls", {})["calls"]:
        yield each["call"], f"{each['server']} {each['tool']} {each['state']}"


def past_calls(file: str) -> Iterator[Named]:
    """Yield the calls at the end of the audit, the newest first. Other lines are acts, or count lost ones."""
    if not file or not os.path.exists(file):
        return
    with open(file, "rb") as audit:
        start = max(0, os.path.getsize(file) - PAST_BYTES)
        audit.seek(start)
        lines = audit.read(PAST_BYTES).split(b"\n")[1 if start else 0 :]
    for line in reversed(lines):
        if line:
            call: dict[str, Any] = msgspec.json.decode(line)
            if "id" not in call:
                continue
            yield call["id"], f"{call['server']} {call['name']} {call['outcome']}"


def _configured(directory: str, kind: Kind) -> Iterable[Named]:
    """Return names in the configuration that is in force in this directory."""
    from carpool.check.layers import read_layers, working_directory
    from carpool.launcher.up import environment_in_force

    store = paths.trust_file(paths.state_dir(os.environ, directory))
    config = read_layers(environment_in_force(directory), None, working_directory(), store).config
    if config is None:
        return []
    if kind == "profile":
        return [(name, "") for name in config.profiles]
    if kind == "workspace":
        return [(name, each.root or "") for name, each in config.workspaces.items()]
    return [(name, "") for name in (*config.servers, *config.unusable)]


def _harmless(names: Iterable[Named]) -> list[Named]:
    found: dict[str, str] = {}
    for name, text in names:
        if _HARMLESS.fullmatch(name) and len(found) < MOST:
            found.setdefault(name, _STRANGE.sub("?", text)[:_TEXT_CHARACTERS])
    return list(found.items())


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TooLateError` in this block after so many seconds, whatever it waits for."""
    before = signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _TooLateError
