"""Places of carpool on this machine: runtime directory, sockets, lock, state and logs (docs/files.md).

Also the path of the user's configuration file.

Invariants: every process of one carpool finds the same places from the same environment; the runtime
directory belongs to this user alone (mode 0700); a socket path fits into what the kernel takes.

A general variable (`XDG_…`) that names a place inside a project is ignored, because a file of the project may
have set it. Therefore this module also owns the files that make a directory a project (`PROJECT_FILES`,
`REPOSITORIES`, `ENVIRONMENTS`) and the upward search for them (`project_around`).

The shim imports this file: `os` and nothing else at the top, no pathlib. Refuses to know the content of a
project's files and of all these places, and which places of carpool's own variables are trusted
(`trusted_places`).
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc are more than the shim may import
    from collections.abc import Mapping

SOCKET_PATH_BYTES = 103
"""The longest path a Unix socket can have: 104 with its final zero on macOS (108 on Linux). Rule 20."""

CONFIG_VARIABLE = "CARPOOL_CONFIG"
RUNTIME_VARIABLE = "CARPOOL_RUNTIME_DIR"
STATE_VARIABLE = "CARPOOL_STATE_DIR"

INSTANCE_MARK = "CARPOOL_INSTANCE"
"""In the environment of every instance: `<runtime id>:<generation>` (rule 2)."""

DAEMON_MARK = "CARPOOL_DAEMON"
"""In the environment of broker, supervisors and their spawners: `<runtime id>`."""

SHARED_DIR = "/tmp"  # noqa: S108 - a directory of another user there is not used
"""The directory in which all users may make directories."""

RUNTIME_STATE_PREFIX = "runtime-"
"""The beginning of the name of each state directory in the state home that belongs to a runtime directory of
its own.
"""

_LONGEST_NAME = "/agents.sock"

PROJECT_FILES = (
    ".carpool/mcp.json",
    ".mcp.json",
    "opencode.json",
    "opencode.jsonc",
    "mcp_servers.json",
    "mcp/servers.json",
    ".dispatch/mcp.json",
)
"""Project files in order: each hides those after it."""

REPOSITORIES = (".git", ".hg", ".svn", ".jj")

ENVIRONMENTS = (
    *(".env", ".env.local", ".envrc", "mise.toml", ".mise.toml"),
    *(".gemini/.env", ".gemini/settings.json", ".claude/settings.json", ".claude/settings.local.json"),
    *(".vscode/settings.json", ".vscode/mcp.json", ".cursor/mcp.json", ".codex/config.toml"),
)
"""Files from which a shell or an agent's program sets variables for every process that it starts."""

_BY_FIRST: "dict[str, list[str]]" = {}
for _name in (*PROJECT_FILES, *REPOSITORIES, *ENVIRONMENTS):
    _BY_FIRST.setdefault(_name.split("/")[0], []).append(_name)


class NotPrivateError(Exception):
    """A directory that other users can read or replace. The text says whose fault it is and what to do."""


def runtime_dir(environ: "Mapping[str, str]", uid: int) -> str:
    """The runtime directory, absolute. `find_runtime_dir` also says if a path that was too long is
    replaced.
    """
    return find_runtime_dir(environ, uid)[0]


def find_runtime_dir(environ: "Mapping[str, str]", uid: int) -> tuple[str, str]:
    """The runtime directory, and a sentence if it replaces a path that is too long for sockets (else empty).

    The first of these: `$CARPOOL_RUNTIME_DIR`; `carpool` in the user's runtime directory (`$XDG_RUNTIME_DIR`,
    else `/run/user/UID`) if that exists; `/tmp/carpool-UID`; and if another user owns that path, `run-HOST`
    in the state home. Creates nothing.
    """
    asked = environ.get(RUNTIME_VARIABLE, "")
    asked = os.path.abspath(os.path.expanduser(asked)) if asked else usual_runtime_dir(environ, uid)
    size = len(os.fsencode(asked + _LONGEST_NAME))
    if size <= SOCKET_PATH_BYTES:
        return asked, ""
    short = f"/tmp/carpool-{uid}-{_digest(asked)}"  # noqa: S108 - as above
    return short, (
        f"the runtime directory {asked} is too long for a socket "
        f"({size} bytes, at most {SOCKET_PATH_BYTES}); using {short}"
    )


def usual_runtime_dir(environ: "Mapping[str, str]", uid: int) -> str:
    """The runtime directory when `$CARPOOL_RUNTIME_DIR` is not set."""
    # Programs that start servers with MCP's SDKs pass on neither XDG_RUNTIME_DIR nor TMPDIR. Their shims must
    # find the same directory as the user's terminal.
    for base in (environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}"):
        # A variable that names a missing directory is common under su and in containers; only root could make
        # it.
        if os.path.isabs(base) and os.path.isdir(base) and not project_around(base, home_dir(environ)):
            return os.path.join(os.path.normpath(base), "carpool")
    shared = os.path.join(SHARED_DIR, f"carpool-{uid}")
    own = f"{state_home(environ)}/run-{os.uname().nodename}"
    # A directory that exists is used from then on. If its owner could change the choice by removing the
    # shared one, shims and verbs would use two places.
    if os.path.isdir(own) or not _may_be_ours(shared, uid):
        return own
    return shared


def _may_be_ours(directory: str, uid: int) -> bool:
    """True if the directory belongs to this user, or does not exist and can be made."""
    try:
        return os.lstat(directory).st_uid == uid
    except OSError:
        return os.access(os.path.dirname(directory), os.W_OK)


def home_dir(environ: "Mapping[str, str]") -> str:
    """The user's home directory: `$HOME`, else the one of the system's user database."""
    return environ.get("HOME") or os.path.expanduser("~")


def ensure_private(directory: str, variable: str = RUNTIME_VARIABLE) -> None:
    """Make `directory` with mode 0700, or accept one that is ours and closed to others.

    Raises `NotPrivateError` otherwise: a user who can write there could put a socket of their own in place of
    ours. `variable` is the environment variable that names the directory, for the error text.
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
    """Make missing parents with mode 0700, whatever the umask is (XDG base directories ask for 0700)."""
    if not os.path.isdir(directory):
        _make_parents(os.path.dirname(directory))
        try:  # noqa: SIM105 - contextlib is more than the shim may import
            os.mkdir(directory, 0o700)
        except FileExistsError:  # another process was quicker, or it is no directory: `mkdir` in it will say
            pass


def _refuse_open_parents(directory: str, variable: str) -> None:
    """Raise `NotPrivateError` if another user could replace an entry of a parent directory.

    Every user can if the parent is writable for all and not sticky (`/tmp` is sticky). A parent that a group
    may write is accepted: with private groups (umask 002) that is common and harmless.
    """
    parent = os.path.realpath(directory)
    while True:
        mode = os.stat(parent).st_mode
        if mode & 0o002 and not mode & 0o1000:
            raise NotPrivateError(
                f"all users may replace files in {parent} (mode {mode & 0o7777:04o}), where carpool would "
                f"put its files; run `chmod o-w {parent}` or set {variable} to a directory elsewhere"
            )
        if parent == os.path.dirname(parent):
            return
        parent = os.path.dirname(parent)


def project_around(path: str, home: str) -> str:
    """The nearest project directory at or above `path` (absolute); empty if there is none.

    A project holds one of the files above. The search ends before the home directory and before `/`, which
    are no projects.
    """
    end = _identity(home)
    at = os.path.normpath(path)
    while at != os.path.dirname(at) and (end is None or _identity(at) != end):
        # By first path part: each start of a shim does this, and most directories hold none of them.
        for first, names in _BY_FIRST.items():
            if os.path.lexists(f"{at}/{first}") and any(_is_mark(at, name) for name in names):
                return at
        at = os.path.dirname(at)
    return ""


def _is_mark(directory: str, name: str) -> bool:
    path = os.path.join(directory, name)
    return os.path.lexists(path) and is_trusted_location(directory, path)


def is_trusted_location(directory: str, path: str) -> bool:
    """True if `path` belongs to this user or root, or `directory` is not writable for all (as `/tmp` is)."""
    first = os.path.relpath(path, directory).split("/")[0]
    try:
        writable_for_all = os.stat(directory).st_mode & 0o002
        return not writable_for_all or os.lstat(os.path.join(directory, first)).st_uid in our_users()
    except OSError:
        return False


def our_users() -> "tuple[int, ...]":
    """User ids that own trusted files in a directory that is writable for all: root and this user."""
    return 0, os.getuid()


def _identity(directory: str) -> "tuple[int, int] | None":
    """Device and inode of a directory, equal for every path to it. None if it does not exist."""
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def agents_socket(directory: str) -> str:
    """The socket to which agents and carriers connect."""
    return directory + "/agents.sock"


def link_socket(directory: str) -> str:
    """The socket file behind `link_endpoint`, for code that removes it."""
    return directory + "/link.sock"


def link_endpoint(directory: str) -> str:
    """The address of the link between broker and supervisors, in ZeroMQ's spelling."""
    return "ipc://" + link_socket(directory)


def down_file(directory: str) -> str:
    """The file that says carpool was stopped on purpose. It exists until the next start.

    It is for carriers that no broker could tell.
    """
    return directory + "/down"


def restart_file(directory: str) -> str:
    """The file that `carpool restart --all` holds locked until the next carpool runs."""
    return directory + "/restart"


def node_socket(directory: str) -> str:
    """The socket on which the node's process opens sessions at other nodes for supervisors."""
    return directory + "/node.sock"


def node_servers_file(directory: str) -> str:
    """The servers of other nodes, written by the node's process and read by the broker."""
    return directory + "/node-servers.json"


def node_file(directory: str) -> str:
    """What the node's process says of itself and of the cluster, for `carpool cluster`."""
    return directory + "/node.json"


def node_join_file(directory: str) -> str:
    """The cluster that `carpool up --cluster` has joined, until carpool is stopped."""
    return directory + "/node-join"


def door_file(directory: str) -> str:
    """The file in which the HTTP door writes its URL and the key of its web page while it listens."""
    return directory + "/http.json"


def door_tokens_file(directory: str) -> str:
    """The tokens that the HTTP door has admitted last, kept until carpool stops."""
    return directory + "/http-tokens.json"


def handover_socket(directory: str) -> str:
    """The socket at which a launcher that ends gives the HTTP door's handover to the next one."""
    return directory + "/http.sock"


def switches_file(directory: str) -> str:
    """The overrides (`carpool enable` and `disable`), kept until carpool stops."""
    return directory + "/switches.json"


def last_good_file(directory: str) -> str:
    """The last good reading of the user's configuration, kept until carpool stops."""
    return directory + "/last-good.json"


def projects_last_good_file(directory: str) -> str:
    """The last good readings of the files of trusted projects, kept until carpool stops."""
    return directory + "/last-good-projects.json"


def held_until_down(directory: str) -> tuple[str, ...]:
    """The files that outlive the death of any process of carpool and are removed when carpool stops."""
    return (
        switches_file(directory),
        last_good_file(directory),
        projects_last_good_file(directory),
        door_tokens_file(directory),
        node_join_file(directory),
        node_file(directory),
    )


def lock_file(directory: str) -> str:
    """The file that a running launcher holds locked. Its text names the launcher."""
    return directory + "/lock"


def state_dir(environ: "Mapping[str, str]", directory: str) -> str:
    """The directory of files that outlive a restart of the machine: trust, pins, audit, logins, logs.

    `$CARPOOL_STATE_DIR`, else `carpool` in the XDG state directory. `directory` is the runtime directory. A
    second carpool, with its runtime directory named by `$CARPOOL_RUNTIME_DIR`, has a directory of its own
    there: two carpools must not write one log.
    """
    asked = environ.get(STATE_VARIABLE, "")
    if asked:
        return os.path.abspath(os.path.expanduser(asked))
    if environ.get(RUNTIME_VARIABLE) and directory != usual_runtime_dir(environ, os.getuid()):
        return f"{state_home(environ)}/{RUNTIME_STATE_PREFIX}{runtime_id(directory)}"
    return state_home(environ)


def state_home(environ: "Mapping[str, str]") -> str:
    """The state directory when `$CARPOOL_STATE_DIR` is not set."""
    base, home = environ.get("XDG_STATE_HOME", ""), home_dir(environ)
    if os.path.isabs(base) and not project_around(base, home):
        return os.path.join(base, "carpool")
    return os.path.join(home, ".local", "state", "carpool")


def log_dir(environ: "Mapping[str, str]", directory: str) -> str:
    """The directory of all logs. `directory` is the runtime directory."""
    return state_dir(environ, directory) + "/log"


def config_file(environ: "Mapping[str, str]") -> str:
    """The user's configuration file, absolute: `$CARPOOL_CONFIG`, else `carpool.json` in the XDG config
    directory.
    """
    named, home = environ.get(CONFIG_VARIABLE, ""), home_dir(environ)
    if named:
        if named == "~" or named.startswith("~/"):
            named = os.path.join(home, named[2:])
        return os.path.abspath(named)
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore relative paths. A path inside a project is ignored too.
    if not os.path.isabs(base) or project_around(base, home):
        base = os.path.join(home, ".config")
    return os.path.join(base, "carpool", "carpool.json")


def expected_config_file(environ: "Mapping[str, str]") -> str:
    """The configuration file that somebody with this environment expects to be in force.

    Empty if no variable names one and the usual one does not exist: then nobody misses it.
    """
    path = config_file(environ)
    return path if environ.get(CONFIG_VARIABLE) or os.path.lexists(path) else ""


def is_same_file(one: str, other: str) -> bool:
    """True if two absolute paths lead to one file, which need not exist."""
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def trust_file(state: str) -> str:
    """The list of project files that the user has trusted. `state`: from `state_dir`."""
    return state + "/trust.json"


def generated_token_file(state: str) -> str:
    """The bearer token that the HTTP door makes where the configuration has none."""
    return state + "/http-token"


def logins_dir(state: str) -> str:
    """The logins of servers that are reached over a URL. `state`: from `state_dir`."""
    return state + "/logins"


def server_log(logs: str, server: str) -> str:
    """The stderr of a server's instances. `logs`: from `log_dir`."""
    return f"{logs}/server-{server}.log"


def daemon_log(logs: str, name: str) -> str:
    """The log of one of our own processes: `broker`, `launcher`, `supervisor-NAME`."""
    return f"{logs}/{name}.log"


def audit_file(logs: str) -> str:
    """The audit log: which agent called which tool. `logs`: from `log_dir`."""
    return logs + "/audit.jsonl"


def runtime_id(directory: str) -> str:
    """A short name of this runtime directory, the same in every process and after every restart.

    Instances and daemon processes carry it in their environment, so that the sweep finds those that survived.
    """
    return _digest(os.path.realpath(directory))


def _digest(text: str) -> str:
    import hashlib  # late: the shim asks for this only when a path is too long

    return hashlib.blake2s(os.fsencode(text), digest_size=6).hexdigest()
