"""Describes the PATH of servers to people, and compares it with that of the caller.

Owns the words about a program that is in only one of the two, and the PATH that servers would get from a
carpool that was started here. Refuses to know: the order of the directories (`search_path`), the start of
servers.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from carpool_protocol.bootstrap.trusted_places import is_own_place
from carpool_protocol.runtime.search_path import missing_program, server_directories


def path_from_here(environ: Mapping[str, str], *, login_shell: bool) -> list[str]:
    """Return the PATH directories of servers if carpool were started here now. May wait for the shell."""
    # Late: `status` needs none of it.
    from carpool_protocol.config.schema.environment import scrub
    from carpool_protocol.runtime.login_path import login_path

    own = scrub(environ).get("PATH", os.defpath)
    return server_directories(login_path(environ) if login_shell else None, environ, own)


def path_of_servers(status: Mapping[str, Any] | None, *, login_shell: bool) -> list[str]:
    """Return the PATH directories of servers in the carpool with this status. Without one, and while its
    login shell is being asked: those in a carpool that is started here.
    """
    path = (status or {}).get("path")
    if not path or path["login_shell"] == "asking":
        return path_from_here(os.environ, login_shell=login_shell)
    return list(path["directories"])


def is_found(program: str, environ: Mapping[str, str], *, login_shell: bool) -> bool:
    """Return True if servers of a carpool that is started here find this program. The login shell is asked
    only if need be, and never without `login_shell`.
    """
    import shutil  # late: `status` needs none of it

    return any(
        shutil.which(program, path=os.pathsep.join(path_from_here(environ, login_shell=asks))) is not None
        for asks in ((False, True) if login_shell else (False,))
    )


def path_lines(path: Mapping[str, Any], servers: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the lines of `carpool status`: the directories, their origin, and programs that only the caller
    finds.

    `path`: `{directories, login_shell}`; `servers`: as `carpool/status` gives them.
    """
    directories: list[str] = path["directories"]
    match path["login_shell"]:
        case "asked":
            origin = "the login shell's, then that of carpool's start"
        case "off":
            origin = "that of carpool's start; `login_shell` is off"
        case "asking":
            origin = "that of carpool's start; the login shell is just being asked"
        case why:
            origin = f"that of carpool's start; {why}"
    lines = [f"PATH of servers ({origin}): {os.pathsep.join(directories) or 'empty'}"]
    errors = [str(server.get("last_error") or "") for server in servers.values()]
    return "\n".join([*lines, *comparisons(errors, directories, environ)])


def comparisons(
    texts: Iterable[str], directories: Sequence[str], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for each program that `texts` report as not found and that the caller's PATH has."""
    for program in dict.fromkeys(filter(None, map(missing_program, texts))):
        if text := comparison(program, directories, environ):
            yield text


def comparison(program: str, directories: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the advice about a program that the caller finds and servers do not; empty if there is none."""
    import shutil  # late: only where a program is missing

    here = shutil.which(program, path=environ.get("PATH", os.defpath))
    if here is None or "/" in program:
        return ""
    if shutil.which(program, path=os.pathsep.join(directories)) is not None:
        return f"{program} is there now: `carpool start SERVER` starts the server"
    here = os.path.abspath(here)
    if not is_own_place(environ, here):
        place = os.path.dirname(here)
        return (
            f"{program} is in the PATH of this terminal ({here}), but inside a project, and servers get "
            "directories of projects only from the PATH of your login shell: have your login shell set it, "
            f'or write the absolute path as "command", or run `carpool trust --place {place}` and '
            "`carpool restart --all`"
        )
    return (
        f"{program} is in the PATH of this terminal ({here}) and not in that of servers: "
        "run `carpool restart --all` here, or have your login shell set it, or write the absolute path "
        'as "command", or give the server an "env" with a "PATH"'
    )
