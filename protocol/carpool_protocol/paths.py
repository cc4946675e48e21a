"""Where carpool keeps what on this machine: runtime directory, sockets, lock, state and logs.

Invariants: every process of one carpool finds the same places from the same
environment; the runtime directory is ours alone (mode 0700); a socket path fits
into what the kernel takes.

The shim imports this file: `os` and nothing else at the top, no pathlib.
Refuses to know what is written into any of these places.
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

_LONGEST_NAME = "/agents.sock"


class NotPrivateError(Exception):
    """A directory we cannot keep to ourselves. The text says whose fault it is and what to do."""


def runtime_dir(environ: "Mapping[str, str]", uid: int) -> str:
    """The runtime directory, absolute. `find_runtime_dir` also says when it is not the one asked for."""
    return find_runtime_dir(environ, uid)[0]


def find_runtime_dir(environ: "Mapping[str, str]", uid: int) -> tuple[str, str]:
    """The runtime directory and, where a path too long for sockets was replaced, a sentence that says so.

    `$CARPOOL_RUNTIME_DIR`; else `$XDG_RUNTIME_DIR/carpool` where that exists; else a
    directory of this user's own under the temporary one. Creates nothing.
    """
    wished = environ.get(RUNTIME_VARIABLE, "")
    if wished:
        wished = os.path.abspath(os.path.expanduser(wished))
    else:
        base = environ.get("XDG_RUNTIME_DIR", "")
        # Set but missing is common under su and in containers, and only root could make it.
        if base and os.path.isdir(base):
            wished = os.path.join(os.path.abspath(base), "carpool")
        else:
            wished = os.path.join(os.path.abspath(environ.get("TMPDIR") or "/tmp"), f"carpool-{uid}")  # noqa: S108 - ensure_private refuses a directory that somebody else made
    size = len(os.fsencode(wished + _LONGEST_NAME))
    if size <= SOCKET_PATH_BYTES:
        return wished, ""
    short = f"/tmp/carpool-{uid}-{_digest(wished)}"  # noqa: S108 - as above
    return short, (
        f"the runtime directory {wished} is too long for a socket "
        f"({size} bytes, at most {SOCKET_PATH_BYTES}); using {short}"
    )


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
    """What outlives a restart: logs, verdicts. `directory` is the runtime directory.

    `$CARPOOL_STATE_DIR`; beside the runtime directory's sockets where `$CARPOOL_RUNTIME_DIR`
    names one (a carpool of its own keeps its own logs); else the XDG state directory.
    """
    wished = environ.get(STATE_VARIABLE, "")
    if wished:
        return os.path.abspath(os.path.expanduser(wished))
    if environ.get(RUNTIME_VARIABLE):
        return directory + "/state"
    base = environ.get("XDG_STATE_HOME", "")
    if base and os.path.isabs(base):
        return os.path.join(base, "carpool")
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "state", "carpool")


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
