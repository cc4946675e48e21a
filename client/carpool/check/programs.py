"""Warnings of `carpool check` about servers whose program cannot start here, without running any.

Owns the search for a server's program: a name in the PATH that servers get, a path that must exist and be
executable, and the packages that servers over a URL and Python modules need.

Knows nothing of: terminals, what a program needs itself.
"""

import os
import shutil
from collections.abc import Callable, Mapping

from msgspec import Struct

from carpool.check.server_path import comparison
from carpool_protocol.bootstrap.extras import Extra, install_command, is_installed
from carpool_protocol.config.schema.expand import PLACE_NAMES, from_home
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.text.problems import ConfigProblem, render_path
from carpool_protocol.ids import ServerName
from carpool_protocol.runtime.programs import command_line_text, install_hint, install_steps

Expand = Callable[[ServerConfig, str], str | None]
"""Returns a text of a server with its variables filled in; None if one is missing."""


class ProgramLookup(Struct, frozen=True):
    """The place where programs are looked up."""

    path: str
    """The PATH of servers that set none."""
    environ: Mapping[str, str]
    """The environment of the caller, to compare with."""


class MissingProgram(Struct, frozen=True):
    """A program or package without which a server cannot start here."""

    text: str
    """The warning."""
    repair: str
    """The steps that make the server start, a sentence without its full stop."""


def command_warnings(
    config: Config, expand: Expand, lookup: ProgramLookup, home: str, workspace: str
) -> dict[ServerName, MissingProgram]:
    """Return a warning for each enabled server that cannot start here."""
    found: dict[ServerName, MissingProgram] = {}
    for server in config.servers.values():
        if server.disabled or server.is_offline:
            continue
        if server.command is not None:
            base = workspace if server.project else home
            key, missing = "command", _program_problem(server, expand, lookup, base, home)
        else:
            key, missing = _missing_extra(server)
        if missing is not None:
            line = server.lines.get((key,), server.lines[()])
            where = render_path((*server.under, key))
            text = ConfigProblem(server.file, line, where, missing.text).render()
            found[server.name] = MissingProgram(text, missing.repair)
    return found


def is_plain(program: str) -> bool:
    """True for a name that is looked up in PATH as it stands."""
    return bool(program) and not set(program) & {"/", "$", "~"}


def absent_text(program: str, server: str, where: str = "PATH here") -> str:
    """Return the sentence about a program that is not in a PATH."""
    if text := command_line_text(program):
        return f"{server} cannot start: {text}"
    hint = install_hint(program)
    more = f" ({hint})" if hint else ""
    return f"{program} is not in {where}: {server} cannot start before it is installed{more}"


def _program_problem(
    server: ServerConfig, expand: Expand, lookup: ProgramLookup, base: str, home: str
) -> MissingProgram | None:
    """Return the reason why the server's command cannot be run; None if it can, or if only a start can
    tell.

    The sentences have the command as it is written: the value of a variable may be a secret.
    """
    command, cwd = expand(server, server.command or ""), expand(server, server.cwd)
    if not command or cwd is None:
        return None
    if is_plain(command):
        return _not_in_path(server, command, expand, lookup)
    directory = os.path.join(base, from_home(cwd, home))
    path = os.path.join(directory, from_home(command, home))
    if not os.path.exists(path):
        is_plain_place = not os.path.isabs(command) and _is_shown(server.cwd)
        seen_from = f" (looked for in {directory})" if is_plain_place else ""
        start = "; a relative path starts at the server's `cwd`" if is_plain_place else ""
        text = f"the program {server.command} does not exist{seen_from}"
        return MissingProgram(text, f"Correct the path in `command`{start}")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        what, name = f"{server.command} is not an executable file", "name the program that runs it"
        if _is_program(path):
            repair = f"Run `chmod +x {server.command}`, or {name} in `command`"
            return MissingProgram(f"{what}: `chmod +x` it, or {name}", repair)
        return MissingProgram(f"{what}: {name}", "Name the program that runs it in `command`, it in `args`")
    return None


def _is_program(path: str) -> bool:
    """True for a script that names its interpreter, and for a binary: `chmod +x` is no advice for others."""
    try:
        with open(path, "rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"))
    except OSError:
        return False


def _is_shown(cwd: str) -> bool:
    """True if messages may show this directory: nothing in it is the value of a variable."""
    for name in PLACE_NAMES:
        cwd = cwd.replace(f"${{{name}}}", "")
    return "$" not in cwd


def _not_in_path(
    server: ServerConfig, command: str, expand: Expand, lookup: ProgramLookup
) -> MissingProgram | None:
    """Return the reason why a program without a directory cannot be run; None if it is in the PATH."""
    own = server.env.get("PATH")
    search = lookup.path if own is None else expand(server, own)
    if search is None or shutil.which(command, path=search) is not None:
        return None
    where = "the PATH of servers" if own is None else "the PATH of its `env`"
    written = server.command or ""
    text = absent_text(written, server.name, where)
    if advice := command_line_text(written):
        return MissingProgram(text, f"Mend the entry: {advice}")
    if command != written:
        return MissingProgram(text, "Install the program, or correct the variable in `command`")
    more = comparison(command, search.split(os.pathsep), lookup.environ)
    if more and own is None:
        advice = more.partition(": ")[2]
        return MissingProgram(f"{text}. {more}", f"{advice[:1].upper()}{advice[1:]}")
    return MissingProgram(text, install_steps(command))


def _missing_extra(server: ServerConfig) -> tuple[str, MissingProgram | None]:
    """Return the key that needs missing packages, and what is missing; None if nothing is."""
    needs: Extra = "remote" if server.url is not None else "python"
    key = "url" if server.url is not None else "python"
    is_ours = server.url is not None or server.interpreter is None
    if not is_ours or is_installed(needs):
        return key, None
    command = install_command(needs)
    return key, MissingProgram(f"{server.name} needs more than is installed: {command}", f"Run `{command}`")
