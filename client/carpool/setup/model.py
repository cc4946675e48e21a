"""The values of `carpool setup`: the files that it has read, and the plan that it makes.

Owns their shapes. A value that holds a secret does not show it in its `repr`.
"""

from typing import Literal

from msgspec import Struct

from carpool.setup.client_files import ClientFilePath
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.ids import ServerName

Role = Literal["secrets", "own", "project", "client"]
"""The role of a file. `secrets`: the `env_file`; `own`: the user's carpool.json; `project`:
`.carpool/mcp.json`.

This is also the order of writing: no file refers to one that is not written yet.
"""

KeyPath = tuple[str, ...]


class ClientFile(Struct, frozen=True):
    """A file of another program that was read."""

    candidate: ClientFilePath
    path: str
    """The real path of the file."""
    text: str
    existed: bool = True

    def __repr__(self) -> str:
        return f"Source({self.path!r})"


class CarpoolFile(Struct, frozen=True):
    """One of carpool's own files, as it is now."""

    path: str
    text: str | None
    """The content of the file; None if it is to be made."""
    taken: frozenset[ServerName] = frozenset()
    """Names of servers in the files that it includes."""
    login_shell: bool = True
    """The setting of this name, which counts for all servers."""

    def __repr__(self) -> str:
        return f"Own({self.path!r})"


class SecretsFile(Struct, frozen=True):
    """The `env_file`."""

    path: str
    text: str | None
    values: dict[str, str]
    said: str = ""
    """The value that carpool.json must name to use this file; empty if it names it already."""

    def __repr__(self) -> str:
        return f"Secrets({self.path!r})"


class FileChange(Struct, frozen=True):
    """One file and its change."""

    path: str
    role: Role
    before: bytes | None
    after: bytes
    regions: tuple[KeyPath, ...] = ()
    """The members that differ, for a later undo beside changes by others."""
    client: str = ""
    """The program that owns the file, as for `--client`; empty if the file is carpool's."""

    def __repr__(self) -> str:
        return f"Change({self.path!r})"


class MovedServer(Struct, frozen=True):
    """A server that carpool runs from now on."""

    name: str
    client: str
    path: str
    """The program's file."""
    to: str
    under: str = ""
    """The project or workspace that the server is for; empty if it is for all."""
    known: bool = False
    """True if carpool has this very server already, from before or from another program in this run."""
    same_as: str = ""
    """The program that brings this very server in the same run. Empty with `known`: carpool had it before."""
    notes: tuple[str, ...] = ()
    client_id: str = ""
    """The program, as for `--client`."""
    was: str = ""
    """The name of the server in the program's file."""
    login: bool = False
    """True if the server has a URL and no headers: it may need a login."""
    server: dict[str, JsonValue] = {}
    """The server in carpool's keys, with references in place of its secrets."""

    def __repr__(self) -> str:
        return f"Moved({self.name!r}, {self.path!r})"


class KeptInPlace(Struct, frozen=True):
    """A server, or with no name a file, that stays where it is, and the reason."""

    path: str
    why: str
    name: str = ""


class GitStatus(Struct, frozen=True):
    """Git's answer about some files of a project."""

    tracked: frozenset[str] = frozenset()
    """Paths that git tracks: everybody who has the project gets their changes."""
    new: frozenset[str] = frozenset()
    """Paths that git would show as untracked files."""
    why: str = ""
    """The reason why git could not be asked, a clause; empty if it could, or if there is no repository."""


class ProgramProfile(Struct, frozen=True):
    """The profile of a program."""

    client: str
    """The program, as for `--client`."""
    title: str
    profile: str
    had: int
    """The number of servers that the program sees with the profile."""
    of: int
    """The number of all servers."""
    path: KeyPath
    """The place in carpool.json where `value` is written."""
    value: JsonValue


class SetupPlan(Struct, frozen=True):
    """The whole plan, before any change."""

    changes: tuple[FileChange, ...] = ()
    moved: tuple[MovedServer, ...] = ()
    left: tuple[KeptInPlace, ...] = ()
    secrets: tuple[str, ...] = ()
    """Names of the variables that are new in the `env_file`."""
    hidden: frozenset[str] = frozenset()
    """Secrets: they are shown to nobody."""
    values: frozenset[str] = frozenset()
    """Values of environments and headers, which are not shown either."""
    given: tuple[ProgramProfile, ...] = ()
    """Profiles by which programs keep the servers that they had."""
    notes: tuple[str, ...] = ()
    """Further notes, sentences without a full stop."""

    def __repr__(self) -> str:
        return f"Plan({self.changes!r})"
