"""What `carpool check` says of servers whose program is not installed, without running any.

Owns the look for a command's program. What is no plain name (a path, one with a variable in it) is left to
the start, which says the same.

Knows nothing of: terminals, what a program needs itself.
"""

import os
import shutil
from collections.abc import Callable, Mapping

from carpool_protocol.config.model import Config, ServerConfig
from carpool_protocol.config.problems import ConfigProblem, render_path

Expand = Callable[[ServerConfig, str], str | None]
"""A text of a server with its variables filled in; None where one is missing."""


def command_warnings(config: Config, expand: Expand, variables: Mapping[str, str]) -> list[str]:
    """What is to be said of all enabled servers that are programs. `variables`: of an agent here."""
    found: list[str] = []
    for server in config.servers.values():
        program = server.command
        if program is None or server.disabled or not is_plain(program):
            continue
        own = server.env.get("PATH")
        search = variables.get("PATH", os.defpath) if own is None else expand(server, own)
        if search is not None and shutil.which(program, path=search) is None:
            line = server.lines.get(("command",), server.lines[()])
            where = render_path((*server.under, "command"))
            text = absent_text(program, server.name)
            found.append(ConfigProblem(server.file, line, where, text).render())
    return found


def is_plain(program: str) -> bool:
    """It is a name to be looked for in PATH as it stands."""
    return bool(program) and not set(program) & {"/", "$", "~"}


def absent_text(program: str, server: str) -> str:
    """Of a program that is nowhere in PATH."""
    return f"{program} is not in PATH here: {server} cannot start before it is installed"
