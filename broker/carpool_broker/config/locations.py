"""Where a session is: in which workspace that the user's file names, and in which directory.

Owns how what a session brings (its agent's directory, the workspace that it was attached to, where it has
moved since) comes to one place. What is named counts before any directory; a name that the file no longer has
counts as if it had not been named, until it is back. Only `locate` asks the file system, which may take for
ever (`scan`).

Owns also the facts of one session from which that follows; `configuration` changes them.

Knows nothing of: project files, what runs there.
"""

from collections.abc import Collection, Mapping
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from carpool_broker.core.model.events import SourceId
from carpool_protocol.carrier.attach import Attach, WorkspaceChanged
from carpool_protocol.config.reading.project import workspace_name_at
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.problems import did_you_mean
from carpool_protocol.link.messages import Root

MAX_NAMES_LISTED = 20
"""So many known names are listed to whoever names a workspace that is not there."""


class WorkspaceRequest(Struct, frozen=True):
    """Where a session wants to be, in its own words."""

    workspace: str = ""
    """The name of one, or a directory."""
    cwd: str = ""
    """Its agent's directory."""


class Location(Struct, frozen=True):
    """One place."""

    name: str = ""
    """Of the named workspace; empty: it is in none."""
    root: str = ""
    """The directory of that; empty where it has none."""
    cwd: str = ""
    """`${cwd}`; empty where nobody said a directory."""
    lost: str = ""
    """The directory that could not be looked at: nothing else is known, not even what is named there."""

    @property
    def base(self) -> str:
        """From where its project is looked for; empty: nowhere."""
        return self.cwd if self.root or not self.name else ""


def workspace_request(attach: Attach, change: WorkspaceChanged | None) -> WorkspaceRequest:
    """Where a session wants to be that came with `attach` and has moved since, if `workspace_change` says
    so.
    """
    return WorkspaceRequest(attach.workspace if change is None else change.workspace, attach.cwd)


def locate(config: Config, home: str, workspace_request: WorkspaceRequest) -> Location:
    """Where that is. Waits for the file system."""
    wanted, roots = workspace_request.workspace, roots_of(config, home)
    if wanted in config.workspaces:
        root = roots.get(wanted, "")
        outside = root and workspace_name_at(workspace_request.cwd, {wanted: root}) != wanted
        return Location(wanted, root, root if outside else workspace_request.cwd)
    cwd = wanted if wanted.startswith("/") else workspace_request.cwd
    name = workspace_name_at(cwd, roots)
    return Location(name, roots.get(name, ""), cwd)


def profile_objection(config: Config, profile: str) -> str:
    """Why a session cannot have this profile, as a sentence."""
    return _unknown("profile", profile, config.profiles)


def workspace_objection(config: Config, workspace: str, *, by_name_only: bool) -> str:
    """Why a session cannot be in this workspace, as a sentence; empty: it can, if a directory is there.
    `by_name_only`: whoever asks is not to make us read directories of their choice.
    """
    if workspace in config.workspaces:
        return ""
    if not workspace.startswith("/"):
        return _unknown("workspace", workspace, config.workspaces)
    if by_name_only:
        return "over HTTP a workspace is named as the configuration names it; a directory is not taken"
    return ""


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    meant = did_you_mean(name, known)
    names = list(known)
    listed = ", ".join(names[:MAX_NAMES_LISTED]) + (" …" if len(names) > MAX_NAMES_LISTED else "")
    hint = f"; did you mean {meant}?" if meant else ""
    there = f" (there are: {listed})" if names else ": it names none"
    return f"the configuration has no {what} of that name{there}{hint}"


def file_uri_path(uri: str) -> str:
    """What a `file://` URI names on this machine, a directory or not; empty: nothing."""
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
    """One session."""

    def __init__(self, attach: Attach, environment: dict[str, str], source: SourceId) -> None:
        self.attach = attach
        self.environment = environment
        self.requested_variables = set(environment)
        """Variables that its carrier was asked for."""
        self.roots: tuple[Root, ...] | None = None
        """What its agent names; None where it names none."""
        self.workspace_change: WorkspaceChanged | None = (
            None if attach.resume is None else attach.resume.moved
        )
        """Where it has gone since it came."""
        self.location = Location()
        """Where it is, as of when its source was found."""
        self.source = source

    @property
    def workspace_request(self) -> WorkspaceRequest:
        """Where it wants to be."""
        return (
            WorkspaceRequest()
            if self.attach.run is not None
            else workspace_request(self.attach, self.workspace_change)
        )

    @property
    def follows_roots(self) -> bool:
        """Whether roots may take it to another workspace: nobody has put it somewhere in words. Nobody over
        HTTP has us read directories of their choice.
        """
        attach = self.attach
        if attach.workspace or attach.streams or attach.control or attach.run is not None:
            return False
        return self.workspace_change is None or self.workspace_change.by_roots
