"""Where a session comes from and what it says of itself first: the attach line.

Owns the runtime directory that is meant, the line (`carpool_protocol.carrier.attach`) and the variables that
it may tell. Refuses to know sockets.
"""

import os
from collections.abc import Mapping

import msgspec

from carpool.errors import BadCall, NotRunning
from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION


class Place:
    """One carpool and one way in. `environ` is what the daemon is found by, started with and told from."""

    def __init__(self, runtime_dir: str | os.PathLike[str] | None, environ: Mapping[str, str] | None) -> None:
        given = dict(os.environ if environ is None else environ)
        # A directory that the program itself names is its word.
        self._named = trusted_places.VARIABLES[: None if runtime_dir is None else -1]
        if runtime_dir is not None:
            given[paths.RUNTIME_VARIABLE] = os.fspath(runtime_dir)
        self.environ = given
        self.directory, self.note = paths.find_runtime_dir(given, os.getuid())

    def make(self) -> None:
        """Make the runtime directory, or accept it. Raises `NotRunning`."""
        try:
            trusted_places.refuse_untrusted(self.environ, self._named)
            paths.ensure_private(self.directory)
        except (trusted_places.UntrustedPlaceError, paths.NotPrivateError) as error:
            raise NotRunning(
                f"{str(error)[:1].upper()}{str(error)[1:]}.", kind="not_running", whose="user"
            ) from None

    def variables(self, names: list[str]) -> dict[str, str]:
        """The values of those that are there and that JSON can carry."""
        found = {name: self.environ[name] for name in names if name in self.environ}
        return {name: value for name, value in found.items() if _is_text(value)}


def hello(
    *, profile: str, workspace: str, cwd: str, agent: str, control: bool, tool_name_length: int = 0
) -> bytes:
    """The attach line. Raises `BadCall` for what it cannot say."""
    said = {
        "version": NAMING_VERSION if workspace else ATTACH_VERSION,
        "carrier": "cli" if control else "client",
        "pid": os.getpid(),
        "cwd": cwd,
        "agent": agent,
        "profile": profile,
        "control": control,
        # What is kept of an operator's session would be asked anew; it asks anew by itself.
        "keeps": not control,
        "tells": not control,
        "workspace": workspace,
        "tool_name_length": tool_name_length,
    }
    for name, value in said.items():
        if isinstance(value, str) and not _is_text(value):
            raise BadCall(f"`{name}` is not valid UTF-8, which JSON needs.", kind="bad_params")
    # Not as the struct: `resume` comes behind when the session comes back, and must be there once.
    return b'{"jsonrpc":"2.0","method":"carpool/attach","params":%s}\n' % msgspec.json.encode(said)


def workspace_of(value: str | os.PathLike[str]) -> str:
    """A name as it is, a directory absolute. Raises `BadCall`."""
    text = os.fspath(value)
    if isinstance(value, str) and "/" not in text and text not in {".", "..", "~"}:
        return text
    path = os.path.realpath(os.path.expanduser(text))
    if not os.path.isdir(path):
        raise BadCall("`workspace` names no directory that is there.", kind="bad_params")
    return path


def directory_of(value: str | os.PathLike[str] | None) -> str:
    """`cwd`, absolute; that of this process where none is given. Empty where that is gone."""
    try:
        path = os.path.abspath(value) if value is not None else os.getcwd()
    except OSError:
        return ""
    return path if _is_text(path) else ""


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
