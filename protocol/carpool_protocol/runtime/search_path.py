"""The PATH in which the programs of servers are looked up: that of the login shell, then the daemon's own.

Owns the order of entries and which are left out. Example: the login shell says `/home/ann/bin:/usr/bin`, the
daemon has `/usr/bin:/opt/x:tools`; servers get `/home/ann/bin:/usr/bin:/opt/x`. The login shell's entries
come first, so it does not matter which agent has started the daemon.

Invariants: every entry is absolute and stands once; one that lies in a project which the user does not trust
is there only if the login shell names it. Version managers and package managers are often git clones
(`~/.nvm`, `~/.pyenv`, `/opt/homebrew`), and files of a project do not decide what the login shell says.

Also owns the sentence about a program that is in no entry, so that code can recognise this failure.

Pure except for `is_own`. Refuses to know: how the login shell is asked (`login_path`), servers.
"""

import os
import re
from collections.abc import Callable, Mapping

from carpool_protocol.bootstrap.trusted_places import is_own_place
from carpool_protocol.runtime.programs import command_line_text, install_hint


def merged_path(login: str | None, own: str, is_own: Callable[[str], bool]) -> list[str]:
    """The directories, in order. `login`: None if the login shell is not asked or did not answer.

    `is_own`: returns False for a directory that a project may have named; such entries of `own` are left out.
    """
    merged = dict.fromkeys(_usable(login or ""))
    merged.update(dict.fromkeys(each for each in _usable(own) if each in merged or is_own(each)))
    return list(merged)


def server_directories(login: str | None, environ: Mapping[str, str], own: str = "") -> list[str]:
    """The directories for a process with this environment: `merged_path` of its own PATH, or of `own`."""
    own = own or environ.get("PATH", os.defpath)
    return merged_path(login, own, lambda each: is_own_place(environ, each))


def _usable(path: str) -> list[str]:
    return [each for each in path.split(os.pathsep) if os.path.isabs(each) and _is_transportable(each)]


def not_found_text(program: str) -> str:
    """The error about a program that is in none of the directories. `missing_program` reads the program back.

    A command line in place of a program has an error of its own.
    """
    if text := command_line_text(program):
        return text
    hint = install_hint(program)
    more = f"; {hint}" if hint else ""
    return (
        f"the command {program} was not found in the PATH of the server's environment{more}; "
        "`carpool doctor` compares it with the PATH of your terminal"
    )


def missing_program(text: str) -> str:
    """The program named in a `not_found_text` within `text`; empty if there is no such sentence."""
    found = re.search(r"the command (\S+) was not found in the PATH of the server's environment", text)
    return found[1] if found is not None else ""


def _is_transportable(entry: str) -> bool:
    """True for UTF-8 without NUL, which the link requires of every text."""
    try:
        entry.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in entry
