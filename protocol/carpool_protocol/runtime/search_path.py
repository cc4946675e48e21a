"""The PATH in which the programs of servers are looked up: that of the login shell, then the daemon's own.

Owns the order of entries and which are left out. Example: the login shell says `/home/ann/bin:/usr/bin`, the
daemon has `/usr/bin:/opt/x:tools`; servers get `/home/ann/bin:/usr/bin:/opt/x`. The login shell's entries
come first, so it does not matter which agent has started the daemon.

Invariants: every entry is absolute and stands once; none lies in a project that the user does not trust.

Also owns the sentence about a program that is in no entry, so that code can recognise this failure.

Pure except for `is_own`. Refuses to know: how the login shell is asked (`login_path`), servers.
"""

import os
import re
from collections.abc import Callable

from carpool_protocol.runtime.programs import command_line_text, install_hint


def merged_path(login: str | None, own: str, is_own: Callable[[str], bool]) -> list[str]:
    """The directories, in order. `login`: None if the login shell is not asked or did not answer.

    `is_own`: returns False for a directory that a project may have named; such entries are left out.
    """
    entries = [*(login or "").split(os.pathsep), *own.split(os.pathsep)]
    usable = dict.fromkeys(each for each in entries if os.path.isabs(each) and _is_transportable(each))
    return [each for each in usable if is_own(each)]


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
