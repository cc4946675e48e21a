"""The variables in which secrets are kept from now on, and their lines in the `env_file`.

Owns their names, and which secret cannot be kept there. Pure. Refuses to know: which text is a secret
(`secrets`), where the file is (`carpool_files`).
"""

import re
from collections.abc import Callable, Mapping

from carpool_protocol.config.schema.expand import is_usable

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")


class CannotKeepError(Exception):
    """A secret that no line of the file can hold."""


def variable_name(server: str, purpose: str, value: str) -> str:
    """Return the variable for a secret of a server, such as `CARPOOL_GITHUB_TOKEN`. Raises `CannotKeepError`.

    The prefix keeps the name free: no agent has a variable of this name, which would count before carpool's.
    """
    if not is_usable(value) or "\n" in value:
        raise CannotKeepError
    stem = _ILLEGAL.sub("_", server).replace("-", "_").strip("_").upper()
    plain = re.sub(r"\W+", "_", purpose).strip("_").upper() or "SECRET"
    whole = plain if plain == stem or plain.startswith(f"{stem}_") else f"{stem}_{plain}"
    return f"CARPOOL_{re.sub(r'[^A-Z0-9_]', '_', whole)}"


def free_name(wished: str, value: str, value_of: Callable[[str], str | None]) -> str:
    """Return the wished name, or it with a number if it holds another value. The same secret gets the same
    name. `value_of`: returns the value that a name has; None: none.
    """
    number = 1
    while True:
        name = wished if number == 1 else f"{wished}_{number}"
        if value_of(name) in (None, value):
            return name
        number += 1


def with_lines(text: str, variables: Mapping[str, str]) -> str:
    """Return the `env_file` with more lines. Values are quoted, so that their blanks and quotes stay."""
    if text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(f'{name}="{value}"\n' for name, value in variables.items())
