"""What the server of a `carpool run` is called.

Owns the guess at a name: the wished one, else that of the package or the program. Names are shown
everywhere, so whatever may hold a secret is passed over.

Pure. Knows nothing of: what a session sees, pools.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from carpool_protocol.carrier.attach import RunCommand
from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_names import MAX_SERVER_NAME_CHARS, check_server_name

_RUNNERS = frozenset(
    {"npx", "bunx", "pnpx", "uvx", "uv", "pipx", "python", "python3", "node", "bun", "deno", "ruby", "java"}
)
"""Programs that say nothing about the server: their first plain argument does."""
_RUNNER_VERBS = frozenset({"run", "exec", "x", "tool", "dlx"})
_VALUE_FLAGS = frozenset(
    {
        "--directory",
        "--project",
        "--python",
        "--with",
        "--from",
        "--package",
        "-p",
        "--registry",
        "-r",
        "--require",
    }
)
"""Options of runners whose value is not the server."""
_PACKAGE = re.compile(r"[@\w./-]+", re.ASCII)
_PACKAGE_CHARS = 256


def run_name(run: RunCommand) -> ServerName:
    """A legal server name for a `carpool run`: the wished one, else the package's or the program's."""
    if run.name and check_server_name(run.name) is None:
        return ServerName(run.name)
    words = [run.name] if run.name else [*map(_last_part, run.argv[:1])]
    if words and words[0] in _RUNNERS:
        words = [_last_part(word) for word in _package_of(run.argv)] or words
    name = re.sub(r"[^A-Za-z0-9]+", "-", words[0][-_PACKAGE_CHARS:] if words else "").strip("-")
    return ServerName(name[:MAX_SERVER_NAME_CHARS].strip("-") or "run")


def _package_of(argv: Sequence[str]) -> list[str]:
    """What a runner runs: its first argument that is neither option nor verb.

    Anything odd is passed over: names are shown everywhere, and `KEY=value` or a URL may hold a secret.
    """
    for before, word in pairwise(argv):
        if word.startswith("-") or word in _RUNNER_VERBS or before in _VALUE_FLAGS:
            continue
        if len(word) <= _PACKAGE_CHARS and _PACKAGE.fullmatch(word) and not word[0].isdigit():
            return [word]
    return []


def _last_part(word: str) -> str:
    """`@scope/server-x@1.2` and `/opt/server-x.py` are both `server-x`."""
    last = word.rstrip("/").rpartition("/")[2]
    return re.sub(r"\.(py|js|mjs|cjs|ts|sh|jar|rb|exe)$", "", last.partition("@")[0] or last)
