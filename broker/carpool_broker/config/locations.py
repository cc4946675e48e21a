"""The location of a session: a named workspace of the user's file, and a directory.

Owns how the facts about a session (its agent's directory, the workspace of its attach line, its later move)
lead to one location. A named workspace counts before any directory; a name that is no longer in the file is
ignored until it is back. Only `locate` asks the file system, which may block for ever (`scan`).

Also owns the facts about one session; `configuration` changes them.

Knows nothing of: project files, servers.
"""

from collections.abc import Collection, Mapping
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from carpool_broker.core.model.events import SourceId
from carpool_protocol.carrier.attach_line import Attach, WorkspaceChanged
from carpool_protocol.config.reading.project import workspace_name_at
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.problems import MAX_NAMES_LISTED, did_you_mean
from carpool_protocol.link.messages import Root

_MAX_NAME_CHARS = 80


class WorkspaceRequest(Struct, frozen=True):
    """The workspace that a session asks for."""

    workspace: str = ""
    """The name of a workspace, or a directory."""
    cwd: str = ""
    """The directory of its agent."""


class Location(Struct, frozen=True):
    """A location: a named workspace (or none) and a directory."""

    name: str = ""
    """The named workspace; empty: none."""
    root: str = ""
    """The directory of that workspace; empty if it has none."""
    cwd: str = ""
    """`${cwd}`; empty if no directory is known."""
    lost: str = ""
    """A directory that did not answer: nothing else about the location is known, not even its named
    workspace.
    """

    @property
    def base(self) -> str:
        """The directory in which the search for a project begins; empty: there is no search."""
        return self.cwd if self.root or not self.name else ""


def workspace_request(attach: Attach, change: WorkspaceChanged | None) -> WorkspaceRequest:
    """The request of a session with this attach line, or its later move."""
    return WorkspaceRequest(attach.workspace if change is None else change.workspace, attach.cwd)


def locate(config: Config, home: str, workspace_request: WorkspaceRequest) -> Location:
    """The location for a request. Waits for the file system."""
    wanted, roots = workspace_request.workspace, roots_of(config, home)
    if wanted in config.workspaces:
        root = roots.get(wanted, "")
        outside = root and workspace_name_at(workspace_request.cwd, {wanted: root}) != wanted
        return Location(wanted, root, root if outside else workspace_request.cwd)
    cwd = wanted if wanted.startswith("/") else workspace_request.cwd
    name = workspace_name_at(cwd, roots)
    return Location(name, roots.get(name, ""), cwd)


def profile_objection(config: Config, profile: str) -> str:
    """Why a session cannot have this profile, as a clause."""
    return _unknown("profile", profile, config.profiles)


def workspace_objection(config: Config, workspace: str, *, by_name_only: bool) -> str:
    """Why a session cannot be in this workspace, as a clause; empty: it can, if the directory exists.

    `by_name_only`: the client must not make the broker read directories of its choice.
    """
    if workspace in config.workspaces:
        return ""
    if not workspace.startswith("/"):
        return _unknown("workspace", workspace, config.workspaces)
    if by_name_only:
        return "over HTTP only a name of a workspace from the configuration is accepted, not a directory"
    return ""


def _unknown(kind: str, name: str, known: Collection[str]) -> str:
    meant = did_you_mean(name, known)
    names = list(known)
    listed = ", ".join(names[:MAX_NAMES_LISTED]) + (" …" if len(names) > MAX_NAMES_LISTED else "")
    hint = f"; did you mean {meant}?" if meant else ""
    choices = f" (there are: {listed})" if names else ": it names none"
    return f"the configuration has no {kind} {name[:_MAX_NAME_CHARS]!r}{choices}{hint}"


def file_uri_path(uri: str) -> str:
    """The path that a `file://` URI names on this machine, existing or not; empty: none."""
    try:
        split = urlsplit(uri)
        path = unquote(split.path, errors="strict")
    except ValueError:
        return ""
    if split.scheme != "file" or split.netloc not in {"", "localhost"} or "\0" in path:
        return ""
    return path if path.startswith("/") else ""


def workspace_label(whereabouts: Mapping[str, str]) -> str:
    """A workspace in one word: its name, else its directory."""
    return whereabouts["name"] or whereabouts["root"]


class SessionContext:
    """The facts about one session that decide its configuration."""

    def __init__(self, attach: Attach, environment: dict[str, str], source: SourceId) -> None:
        self.attach = attach
        self.environment = environment
        self.requested_variables = set(environment)
        """Variables that its carrier was asked for."""
        self.roots: tuple[Root, ...] | None = None
        """The roots of its agent; None if the agent names none."""
        self.workspace_change: WorkspaceChanged | None = (
            None if attach.resume is None else attach.resume.moved
        )
        """Its last move to another workspace, or None."""
        self.location = Location()
        """Its location when its source was found."""
        self.source = source

    @property
    def workspace_request(self) -> WorkspaceRequest:
        """The workspace that it asks for."""
        return (
            WorkspaceRequest()
            if self.attach.run is not None
            else workspace_request(self.attach, self.workspace_change)
        )

    @property
    def follows_roots(self) -> bool:
        """True if roots may move it to another workspace: no request has named one.

        Over HTTP roots never do, because a client must not make the broker read directories of its choice.
        """
        attach = self.attach
        if attach.workspace or attach.streams or attach.control or attach.run is not None:
            return False
        return self.workspace_change is None or self.workspace_change.by_roots
