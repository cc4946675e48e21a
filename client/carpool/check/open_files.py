"""Finds files with secrets that every user of this machine can read.

Owns that judgement: a file counts if it holds a variable or header whose name is that of a secret, if all
users may read it, and if they may enter all directories above it. Knows nothing of: the values.
"""

import os
import stat
from collections.abc import Iterable, Mapping

from msgspec import Struct

from carpool_protocol.carrier.secret_texts import is_secret_name
from carpool_protocol.config.schema.model import Config, ServerConfig


class OpenFile(Struct, frozen=True):
    """A file with secrets that every user can read."""

    path: str
    names: tuple[str, ...]
    """The variables and headers in it whose values are secrets."""
    may_restrict: bool
    """True if it is this user's own file, and no project's, which others may share."""


def open_files(config: Config, env_files: Mapping[str, Iterable[str]]) -> list[OpenFile]:
    """Return the open files among those of a configuration.

    `env_files`: the names of all variables of each `env_file`, by its path.
    """
    secrets = {path: {name for name in names if is_secret_name(name)} for path, names in env_files.items()}
    of_projects = set()
    for server in config.servers.values():
        secrets.setdefault(server.file, set()).update(_written_out(server))
        if server.project:
            of_projects.add(server.file)
    return [
        OpenFile(path, tuple(sorted(names)), path not in of_projects and _is_own(path))
        for path, names in secrets.items()
        if names and is_readable_by_all(path)
    ]


def _written_out(server: ServerConfig) -> list[str]:
    """Return the secrets whose value stands in the file itself."""
    held = {**server.env, **server.headers}
    return [name for name, value in held.items() if value and "${" not in value and is_secret_name(name)]


def is_readable_by_all(path: str) -> bool:
    """True if every user of this machine can read the file."""
    try:
        at = os.path.realpath(path)
        if not os.stat(at).st_mode & stat.S_IROTH:
            return False
        while at != os.path.dirname(at):
            at = os.path.dirname(at)
            if not os.stat(at).st_mode & stat.S_IXOTH:
                return False
    except (OSError, ValueError):
        return False
    return True


def _is_own(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False
