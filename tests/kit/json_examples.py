"""Runs each verb with `--json` on a small carpool, for the examples of docs/json.md.

Owns the list of verbs, the carpool that they run on, and the form of an example: paths, process ids, times
and keys of this run are replaced, so that an example reads like one from a user's machine. As a program it
prints the section *Examples* of the page. Refuses to know: what a verb should print.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.kit.live import Daemon, kit, observer

HEADING: Final = "## Examples"


class Verb(NamedTuple):
    """One example: the words after `carpool`, and the exit code."""

    words: str
    code: int = 0


VERBS: Final = (
    Verb("tools --json"),
    Verb('call git__echo --args {"text":"hi"} --json'),
    Verb('call git__echo --args {"text":"hi"} --flat --json'),
    Verb("call git__echo --args {} --dry-run --json", 0),
    Verb("resources --json"),
    Verb("read docs://own --json"),
    Verb("prompts --json"),
    Verb("prompt docs__tell --json"),
    Verb("status --json"),
    Verb("stats --json"),
    Verb("ps --json"),
    Verb("why git --json"),
    Verb("audit --json"),
    Verb("logs git --json"),
    Verb("pin status --json"),
    Verb("check --json"),
    Verb("doctor --json"),
    Verb("calls --json"),
    Verb("pause git --json"),
    Verb("resume git --json"),
    Verb("stop git --json"),
    Verb("start git --json"),
    Verb("restart git --json"),
    Verb("reload --json"),
    Verb("disable git --json"),
    Verb("enable git --json"),
    Verb("add late --json -- late-server"),
    Verb("remove late --json"),
    Verb("token add ci --json"),
    Verb("token list --json"),
    Verb("token revoke ci --last --json"),
    Verb("trust --list --json"),
    Verb("setup --dry-run --json"),
    Verb("down --json"),
)
ELSEWHERE: Final = {
    "bench": "its keys may change, and it takes a minute",
    "cluster": "it needs a cluster; `tests/live/test_live_cluster.py` reads its output",
    "cancel": "it needs an open call; `tests/live/test_live_open_calls.py` reads its output",
    "demo": "its keys may change, and it downloads servers",
    "disconnect": "as `cancel`, an agent",
    "login": "it needs a server that asks for a login; `tests/live/test_live_login.py` reads its output",
    "logout": "as `login`",
    "schema": "it is `docs/carpool.schema.json`",
    "service": "its file and its states are those of the system",
    "story": "the shapes of the journals in it are internal and change",
    "use": "it needs an agent that stays; `tests/live/test_live_named.py` reads its output",
    "web": "it needs an HTTP door; `tests/live/test_live_web.py` reads its output",
}
"""Verbs with `--json` that have no example, and why."""


def daemon() -> Daemon:
    """Return a carpool that does not run yet, with two servers and an audit."""
    servers = {"git": observer(pin=True), "docs": kit("full", "docs")}
    one = Daemon(servers, audit={"on": True})
    one.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return one


def outputs(one: Daemon) -> Iterator[tuple[Verb, Any]]:
    """Run each verb, and yield what it prints, with two elements of each list at most."""
    for verb in VERBS:
        done = one.run(*verb.words.split(" "))
        said = (verb.words, done.returncode, done.stdout, done.stderr)
        assert done.returncode == verb.code, said
        try:
            yield verb, shortened(json.loads(done.stdout))
        except json.JSONDecodeError as error:
            raise AssertionError(said) from error


def shortened(value: Any) -> Any:
    """Return the value with two elements of each list at most, for the page."""
    if isinstance(value, list):
        return [shortened(each) for each in value[:2]]
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    return value


def keys(value: Any) -> Any:
    """Return the keys of a value at any depth: an object as a dict, a list as what its elements share.

    `{"a": [{"b": 1}, {"c": "x"}]}` gives `{"a": [{"b": None, "c": None}]}`. Objects whose keys are data, such
    as `servers` of `status`, count as lists of their values.
    """
    if isinstance(value, list):
        merged: Any = None
        for each in value:
            merged = _merged(merged, keys(each))
        return [] if merged is None else [merged]
    if isinstance(value, dict):
        return {
            name: keys(list(each.values()) if name in BY_NAME and isinstance(each, dict) else each)
            for name, each in value.items()
        }
    return None


BY_NAME: Final = frozenset(
    {"servers", "errors", "refusals", "switched", "arguments", "properties", "_meta", "definition"}
)
"""Keys of objects whose own keys are names, not part of the contract."""


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])] if one and other else one or other
    return other if one is None else one


def plain(text: str, one: Daemon) -> str:
    """Return the text without what belongs to this run and this machine."""
    text = text.replace(str(one.base), "/home/me").replace(sys.executable, "python3")
    text = text.replace(str(Path(sys.executable).parent), "/usr/local/bin")
    text = re.sub(r"[^\s\"]*/tests/(?:kit/servers|live)/", "/opt/servers/", text)
    text = text.replace(str(Path.cwd()), "/home/me/project")
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)?", "2026-01-02T03:04:05Z", text)
    text = re.sub(r"\b[0-9a-f]{16,64}\b", lambda found: "0123456789abcdef" * (len(found[0]) // 16), text)
    return re.sub(r'("(?:pid|holder_pid)": )[1-9]\d*', r"\g<1>4711", text)


def section(one: Daemon) -> str:
    """Return the section of the page, as Markdown."""
    parts = [
        HEADING,
        "The output of each verb on a carpool with two servers, `git` and `docs`; of each list two elements."
        "\nPaths, process ids, times and hashes are replaced. A test runs the verbs and compares the keys.",
    ]
    for verb, output in outputs(one):
        shown = plain(json.dumps(output, indent=2, ensure_ascii=False), one)
        parts.append(f"`carpool {verb.words}`:\n\n```json\n{shown}\n```")
    left_out = "\n".join(f"- `{verb}`: {why}." for verb, why in ELSEWHERE.items())
    parts.append(f"Verbs without an example:\n\n{left_out}")
    return "\n\n".join(parts) + "\n"


def examples(page: str) -> dict[str, Any]:
    """Return the examples on a page: the words of a verb, and the parsed output."""
    found = re.findall(r"^`carpool ([^`\n]*)`:\n\n```json\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    return {words: json.loads(text) for words, text in found}


if __name__ == "__main__":
    private = daemon()
    try:
        private.up()
        sys.stdout.write(section(private))
    finally:
        private.close()
