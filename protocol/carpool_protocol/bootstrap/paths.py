"""Places of carpool on this machine: runtime directory, sockets, lock, state and logs (docs/files.md).

Invariants: every process of one carpool finds the same places from the same
environment; the runtime directory is ours alone (mode 0700); a socket path fits
into what the kernel takes. General variables (`XDG_…`) that name a place inside a
project are passed over: a project's own files may have set them. So the files that make a
directory a project stand here as well (`PROJECT_FILES`, `REPOSITORIES`, `ENVIRONMENTS`), and the
search upward for them (`project_around`): programs load variables from such files, and the
project can hold what a variable names.

The shim imports this file: `os` and nothing else at the top, no pathlib.
Refuses to know what is in a project's files, what is written into any of these places, and which places of
carpool's own variables are trusted (`trusted_places`).
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc are more than the shim may import
    from collections.abc import Mapping

SOCKET_PATH_BYTES = 103
"""The longest path a Unix socket can have: 104 with its final zero on macOS (108 on Linux). Rule 20."""

RUNTIME_VARIABLE = "CARPOOL_RUNTIME_DIR"
STATE_VARIABLE = "CARPOOL_STATE_DIR"

INSTANCE_MARK = "CARPOOL_INSTANCE"
"""In the environment of every instance: `<runtime id>:<generation>` (rule 2)."""

DAEMON_MARK = "CARPOOL_DAEMON"
"""In the environment of the broker, the supervisors and their spawners: `<runtime id>`."""

SHARED_DIR = "/tmp"  # noqa: S108 - a directory of another user there is not used
"""Where all users may make directories."""

_LONGEST_NAME = "/agents.sock"

PROJECT_FILES = (
    ".carpool/mcp.json",
    ".mcp.json",
    "opencode.json",
    "opencode.jsonc",
    "mcp_servers.json",
    "mcp/servers.json",
)
"""In order: each shadows those after it."""

REPOSITORIES = (".git", ".hg", ".svn", ".jj")

ENVIRONMENTS = (
    *(".env", ".env.local", ".envrc", "mise.toml", ".mise.toml"),
    *(".gemini/.env", ".gemini/settings.json", ".claude/settings.json", ".claude/settings.local.json"),
    *(".vscode/settings.json", ".vscode/mcp.json", ".cursor/mcp.json", ".codex/config.toml"),
)
"""Files from which a shell or an agent's program sets variables for all that it starts."""

_BY_FIRST: "dict[str, list[str]]" = {}
for _name in (*PROJECT_FILES, *REPOSITORIES, *ENVIRONMENTS):
    _BY_FIRST.setdefault(_name.split("/")[0], []).append(_name)


class NotPrivateError(Exception):
    """A directory we cannot keep to ourselves. The text says whose fault it is and what to do."""


def runtime_dir(environ: "Mapping[str, str]", uid: int) -> str:
    """The runtime directory, absolute. `find_runtime_dir` also says when it is not the one asked for."""
    return find_runtime_dir(environ, uid)[0]


def find_runtime_dir(environ: "Mapping[str, str]", uid: int) -> tuple[str, str]:
    """The runtime directory and, where a path too long for sockets was replaced, a sentence that says so.

    `$CARPOOL_RUNTIME_DIR`; else `carpool` in the user's runtime directory (`$XDG_RUNTIME_DIR`, else
    `/run/user/UID`) where that exists; else `/tmp/carpool-UID`; else, where another user has taken that
    name, `run-HOST` in the state home. Creates nothing.
    """
    wished = environ.get(RUNTIME_VARIABLE, "")
    wished = os.path.abspath(os.path.expanduser(wished)) if wished else _own_runtime_dir(environ, uid)
    size = len(os.fsencode(wished + _LONGEST_NAME))
    if size <= SOCKET_PATH_BYTES:
        return wished, ""
    short = f"/tmp/carpool-{uid}-{_digest(wished)}"  # noqa: S108 - as above
    return short, (
        f"the runtime directory {wished} is too long for a socket "
        f"({size} bytes, at most {SOCKET_PATH_BYTES}); using {short}"
    )


def _own_runtime_dir(environ: "Mapping[str, str]", uid: int) -> str:
    """The runtime directory where no variable of ours names one."""
    # Programs that start servers by MCP's SDKs hand on neither XDG_RUNTIME_DIR nor TMPDIR: their shims must
    # find the same directory as the user's terminal.
    for base in (environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}"):
        # Set but missing is common under su and in containers, and only root could make it.
        if os.path.isabs(base) and os.path.isdir(base) and not project_around(base, home_dir(environ)):
            return os.path.join(os.path.normpath(base), "carpool")
    shared = os.path.join(SHARED_DIR, f"carpool-{uid}")
    own = f"{state_home(environ)}/run-{os.uname().nodename}"
    # Once made it is used for good: else whoever removes his directory sends shims and verbs to two places.
    if os.path.isdir(own) or not _may_be_ours(shared, uid):
        return own
    return shared


def _may_be_ours(directory: str, uid: int) -> bool:
    """It is this user's, or free to be made."""
    try:
        return os.lstat(directory).st_uid == uid
    except OSError:
        return os.access(os.path.dirname(directory), os.W_OK)


def home_dir(environ: "Mapping[str, str]") -> str:
    """The user's home directory, as the environment says, else as the system does."""
    return environ.get("HOME") or os.path.expanduser("~")


def ensure_private(directory: str, variable: str = RUNTIME_VARIABLE) -> None:
    """Make `directory` with mode 0700, or accept one that is ours and closed to others.

    Raises `NotPrivateError` otherwise: who can write there could put a socket of his own in our place.
    `variable` names the environment variable that says where it is.
    """
    try:
        parent = os.path.dirname(directory)
        _make_parents(parent)
        _refuse_open_parents(parent, variable)
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise NotPrivateError(
            f"cannot make the directory {directory} ({error.strerror}); "
            f"set {variable} to one that you can write"
        ) from None
    found = os.lstat(directory)
    if found.st_mode & 0o170000 != 0o040000:
        raise NotPrivateError(f"{directory} is not a directory; remove it or set {variable} to another one")
    if found.st_uid != os.getuid():
        raise NotPrivateError(
            f"{directory} belongs to user {found.st_uid}, not to you; set {variable} to one of yours"
        )
    if found.st_mode & 0o077:
        raise NotPrivateError(
            f"{directory} is open to others (mode {found.st_mode & 0o777:04o}); run `chmod 700 {directory}`"
        )


def _make_parents(directory: str) -> None:
    """Missing ones are made for us alone too, whatever the umask (XDG base directories: mode 0700)."""
    if not os.path.isdir(directory):
        _make_parents(os.path.dirname(directory))
        try:  # noqa: SIM105 - contextlib is more than the shim may import
            os.mkdir(directory, 0o700)
        except FileExistsError:  # another starter was quicker, or it is no directory: `mkdir` in it will say
            pass


def _refuse_open_parents(directory: str, variable: str) -> None:
    """Who may rename entries of a parent can put a directory of his own in our place at any time.

    Anybody may where it is open to all and not sticky (`/tmp` is sticky). A parent that a group may write
    is left to its owner: with private groups (umask 002) that is common, and harmless.
    """
    parent = os.path.realpath(directory)
    while True:
        mode = os.stat(parent).st_mode
        if mode & 0o002 and not mode & 0o1000:
            raise NotPrivateError(
                f"anybody may replace what lies in {parent} (mode {mode & 0o7777:04o}), where carpool's "
                f"files are to be; run `chmod o-w {parent}` or set {variable} to a directory elsewhere"
            )
        if parent == os.path.dirname(parent):
            return
        parent = os.path.dirname(parent)


def project_around(path: str, home: str) -> str:
    """The nearest directory at or above `path` with one of these files; empty: there is none.

    The search ends before the home directory and before `/`: these are nobody's project. `path`: absolute.
    """
    end = _identity(home)
    at = os.path.normpath(path)
    while at != os.path.dirname(at) and (end is None or _identity(at) != end):
        # By first parts: shims do this at each start, and of most directories none is there.
        for first, names in _BY_FIRST.items():
            if os.path.lexists(f"{at}/{first}") and any(_is_mark(at, name) for name in names):
                return at
        at = os.path.dirname(at)
    return ""


def _is_mark(directory: str, name: str) -> bool:
    path = os.path.join(directory, name)
    return os.path.lexists(path) and is_trusted_location(directory, path)


def is_trusted_location(directory: str, path: str) -> bool:
    """Whether it is ours or root's, or stands where not everybody may put files, as into /tmp."""
    first = os.path.relpath(path, directory).split("/")[0]
    try:
        anybody = os.stat(directory).st_mode & 0o002
        return not anybody or os.lstat(os.path.join(directory, first)).st_uid in our_users()
    except OSError:
        return False


def our_users() -> "tuple[int, ...]":
    """Whose files count where everybody may put some."""
    return 0, os.getuid()


def _identity(directory: str) -> "tuple[int, int] | None":
    """The same for every path to a directory; None where there is none."""
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def agents_socket(directory: str) -> str:
    """Where agents and carriers connect."""
    return directory + "/agents.sock"


def link_socket(directory: str) -> str:
    """The file behind `link_endpoint`, for those who remove it."""
    return directory + "/link.sock"


def link_endpoint(directory: str) -> str:
    """Where supervisors find the broker, in ZeroMQ's spelling."""
    return "ipc://" + link_socket(directory)


def down_file(directory: str) -> str:
    """There from an end that was meant, and that no broker could tell to carriers, until the next start."""
    return directory + "/down"


def door_file(directory: str) -> str:
    """Where the HTTP door tells its URL while it listens."""
    return directory + "/http.json"


def switches_file(directory: str) -> str:
    """Which servers are switched on or off until carpool stops."""
    return directory + "/switches.json"


def last_good_file(directory: str) -> str:
    """The last good reading of the user's configuration, until carpool stops."""
    return directory + "/last-good.json"


def projects_last_good_file(directory: str) -> str:
    """The last good readings of the files of trusted projects, until carpool stops."""
    return directory + "/last-good-projects.json"


def held_until_down(directory: str) -> tuple[str, ...]:
    """The files that go when carpool stops, and outlive the death of any of its processes."""
    return switches_file(directory), last_good_file(directory), projects_last_good_file(directory)


def lock_file(directory: str) -> str:
    """What a running launcher holds locked; its text says who it is."""
    return directory + "/lock"


def state_dir(environ: "Mapping[str, str]", directory: str) -> str:
    """Files that outlive a restart of the machine: trust, pins, audit, logins, logs.

    `$CARPOOL_STATE_DIR`, else `carpool` in the XDG state directory. A second carpool, whose runtime directory
    `$CARPOOL_RUNTIME_DIR` names, has a directory of its own there: two must not write one log. `directory` is
    the runtime directory.
    """
    wished = environ.get(STATE_VARIABLE, "")
    if wished:
        return os.path.abspath(os.path.expanduser(wished))
    if environ.get(RUNTIME_VARIABLE) and directory != _own_runtime_dir(environ, os.getuid()):
        return f"{state_home(environ)}/runtime-{runtime_id(directory)}"
    return state_home(environ)


def state_home(environ: "Mapping[str, str]") -> str:
    """The state directory where no variable of ours names one."""
    base, home = environ.get("XDG_STATE_HOME", ""), home_dir(environ)
    if os.path.isabs(base) and not project_around(base, home):
        return os.path.join(base, "carpool")
    return os.path.join(home, ".local", "state", "carpool")


def log_dir(environ: "Mapping[str, str]", directory: str) -> str:
    """Where all logs lie. `directory` is the runtime directory."""
    return state_dir(environ, directory) + "/log"


def trust_file(state: str) -> str:
    """Which project files the user has trusted. `state` is what `state_dir` said."""
    return state + "/trust.json"


def logins_dir(state: str) -> str:
    """The logins of servers that are reached over a URL. `state` is what `state_dir` said."""
    return state + "/logins"


def server_log(logs: str, server: str) -> str:
    """The stderr of a server's instances. `logs` is what `log_dir` said."""
    return f"{logs}/server-{server}.log"


def daemon_log(logs: str, name: str) -> str:
    """The log of one of our own processes: `broker`, `launcher`, `supervisor-NAME`."""
    return f"{logs}/{name}.log"


def audit_file(logs: str) -> str:
    """Who called what. `logs` is what `log_dir` said."""
    return logs + "/audit.jsonl"


def runtime_id(directory: str) -> str:
    """A short name of this runtime directory, the same in every process and after every restart.

    Marks instances and daemon processes in their environment, so that survivors are found by it.
    """
    return _digest(os.path.realpath(directory))


def _digest(text: str) -> str:
    import hashlib  # late: the shim asks for this only when a path is too long

    return hashlib.blake2s(os.fsencode(text), digest_size=6).hexdigest()
