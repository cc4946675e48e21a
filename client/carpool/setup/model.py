"""What `carpool setup` knows and means to do, as values.

Owns their shapes. Whatever holds a secret shows none when it is printed.
"""

from typing import Literal

from msgspec import Struct

from carpool.setup.clients import ClientFilePath
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.ids import ServerName

Role = Literal["secrets", "own", "project", "client"]
"""`secrets`: the `env_file`; `own`: the user's carpool.json; `project`: `.carpool/mcp.json`. Also the order
in which they are written: nothing refers to what is not there yet."""

KeyPath = tuple[str, ...]


class ClientFile(Struct, frozen=True):
    """A file of another program that was read."""

    candidate: ClientFilePath
    path: str
    """Where it really is."""
    text: str
    existed: bool = True

    def __repr__(self) -> str:
        return f"Source({self.path!r})"


class CarpoolFile(Struct, frozen=True):
    """One of carpool's own files, as it is now."""

    path: str
    text: str | None
    """None: it is made."""
    taken: frozenset[ServerName] = frozenset()
    """Names that files it includes have."""

    def __repr__(self) -> str:
        return f"Own({self.path!r})"


class SecretsFile(Struct, frozen=True):
    """The `env_file`."""

    path: str
    text: str | None
    values: dict[str, str]
    said: str = ""
    """What carpool.json must say to use it; empty: it does already."""

    def __repr__(self) -> str:
        return f"Secrets({self.path!r})"


class FileChange(Struct, frozen=True):
    """One file and what becomes of it."""

    path: str
    role: Role
    before: bytes | None
    after: bytes
    regions: tuple[KeyPath, ...] = ()
    """Members that are different, for a later undo beside somebody else's changes."""
    client: str = ""
    """The program whose file it is, as `--client` says it; empty: the file is carpool's."""

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
    """The project or workspace it is for; empty: everybody's."""
    known: bool = False
    """It is in carpool already: carpool had this very server before, or another program brings it."""
    same_as: str = ""
    """The program that brings this very server in the same run; empty: carpool had it before, if `known`."""
    notes: tuple[str, ...] = ()
    client_id: str = ""
    """As `--client` says it."""
    was: str = ""
    """Its name in the program's file."""
    login: bool = False
    """It is reached over a URL without a header that says who asks: it may want a login."""


class KeptInPlace(Struct, frozen=True):
    """What stays where it is, and why: a server, or with no name a file."""

    path: str
    why: str
    name: str = ""


class GitStatus(Struct, frozen=True):
    """What git knows of some files of a project."""

    tracked: frozenset[str] = frozenset()
    """Paths whose changes everybody gets who has the project."""
    new: frozenset[str] = frozenset()
    """Paths that git would show as files it does not know."""
    why: str = ""
    """Why git could not be asked, a clause; empty: it could, or there is no repository."""


class ProgramProfile(Struct, frozen=True):
    """A program's profile."""

    client: str
    """As `--client` says it."""
    title: str
    profile: str
    had: int
    """How many servers it sees with the profile."""
    of: int
    """How many there are."""
    path: KeyPath
    """What is written in carpool.json, and where."""
    value: JsonValue


class SetupPlan(Struct, frozen=True):
    """Everything, before anything is done."""

    changes: tuple[FileChange, ...] = ()
    moved: tuple[MovedServer, ...] = ()
    left: tuple[KeptInPlace, ...] = ()
    secrets: tuple[str, ...] = ()
    """Names of variables that are new in the `env_file`."""
    hidden: frozenset[str] = frozenset()
    """Secrets: they are shown to nobody."""
    values: frozenset[str] = frozenset()
    """Values of environments and headers, which are not shown either."""
    given: tuple[ProgramProfile, ...] = ()
    """Profiles by which programs keep the servers they had."""
    notes: tuple[str, ...] = ()
    """What else is to be said, sentences without a full stop."""

    def __repr__(self) -> str:
        return f"Plan({self.changes!r})"
