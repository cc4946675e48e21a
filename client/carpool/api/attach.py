"""One connection to a broker, without its socket: the attach line, the bytes to write, the lines for us.

Owns the runtime directory that is meant, the attach line (`carpool_protocol.carrier.attach_line`) and the
variables that it may tell; the bytes that are to be written and the half line that has come. The broker's
words about itself are taken out and obeyed; whatever passes is noted in `KeptLines`, before it is written.
It is what `shim.pump` is for a shim, for an agent in the same process.

Refuses to know sockets, what the lines mean, and what becomes of the session after this connection.
"""

import os
from collections.abc import Callable, Mapping

import msgspec

from carpool import named_places
from carpool.errors import BadCall, NotRunning
from carpool.shim.kept_lines import ENDED, MOVED, OURS, SETTLED, WANTED, KeptLines
from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION
from carpool_protocol.carrier.attach_line import (
    ATTACHED_PREFIX,
    REFUSED_PREFIX,
    Attached,
    AttachProblem,
    environment_line,
    parse_attached,
    parse_wanted,
)


class AttachTarget:
    """One carpool and one way in. `environ` is the environment by which the daemon is found and started, and
    from which variables are sent.
    """

    def __init__(self, runtime_dir: str | os.PathLike[str] | None, environ: Mapping[str, str] | None) -> None:
        given = dict(os.environ if environ is None else environ)
        # A directory that the program itself names is its word.
        self._named = trusted_places.VARIABLES[: None if runtime_dir is None else -1]
        if runtime_dir is not None:
            given[paths.RUNTIME_VARIABLE] = os.fspath(runtime_dir)
        self.environ = given
        self.directory, self.note = paths.find_runtime_dir(given, os.getuid())

    def make(self) -> None:
        """Make the runtime directory, or accept an existing one. Raises `NotRunning`."""
        try:
            named_places.refuse_untrusted(self.environ, self._named)
            paths.ensure_private(self.directory)
        except (trusted_places.UntrustedPlaceError, paths.NotPrivateError) as error:
            raise NotRunning(
                f"{str(error)[:1].upper()}{str(error)[1:]}.", kind="not_running", whose="user"
            ) from None

    def variables(self, names: list[str]) -> dict[str, str]:
        """Return the values of the variables that are set and that JSON can carry."""
        found = {name: self.environ[name] for name in names if name in self.environ}
        return {name: value for name, value in found.items() if _is_text(value)}


def attach_line(
    *,
    profile: str,
    workspace: str,
    cwd: str,
    agent: str,
    control: bool,
    tool_name_length: int = 0,
    config: str = "",
) -> bytes:
    """Return the attach line. Raises `BadCall` for what it cannot carry."""
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
        "config": config if _is_text(config) and not control else "",
    }
    for name, value in said.items():
        if isinstance(value, str) and not _is_text(value):
            raise BadCall(f"`{name}` is not valid UTF-8, which JSON needs.", kind="bad_params")
    # Not as the struct: `resume` comes behind when the session comes back, and must be there once.
    return b'{"jsonrpc":"2.0","method":"carpool/attach","params":%s}\n' % msgspec.json.encode(said)


def workspace_of(value: str | os.PathLike[str]) -> str:
    """Return a workspace's name unchanged, a directory absolute. Raises `BadCall`."""
    text = os.fspath(value)
    if isinstance(value, str) and "/" not in text and text not in {".", "..", "~"}:
        return text
    path = os.path.realpath(os.path.expanduser(text))
    if not os.path.isdir(path):
        raise BadCall("`workspace` names no directory that is there.", kind="bad_params")
    return path


def directory_of(value: str | os.PathLike[str] | None) -> str:
    """Return `cwd`, absolute; the directory of this process if none is given. Empty if that is gone."""
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


class BrokerAttachment:
    """One attachment, from the attach line until the end of file."""

    def __init__(
        self, kept_lines: KeptLines, first: bytes, variables: Callable[[list[str]], dict[str, str]]
    ) -> None:
        """`first` is the attach line and what is sent again with it; all of it is in `kept_lines` already."""
        self.out = bytearray(first)
        """The bytes that are not written yet."""
        self.attached: Attached | None = None
        """The broker's answer to the attach line."""
        self.refusal = ""
        self.farewell = b""
        """The broker's line that it ends, if it sent one."""
        self._kept = kept_lines
        self._variables = variables
        self._half: list[bytes] = []
        self.half_bytes = 0
        """The size of the line that has begun to come."""
        self._own_bytes = 0
        """The number of bytes that are not the agent's."""
        self._greeted = False

    def send_line(self, line: bytes) -> None:
        """Queue a line of the agent, with its end."""
        self._kept.agent_lines_sent(line)
        self.out += line

    def bytes_written(self, count_bytes: int) -> None:
        """The socket has taken this many bytes of `out`."""
        del self.out[:count_bytes]

    def unread_by_broker_bytes(self) -> int:
        """Return how many of the agent's last bytes this broker has never had, at least."""
        if not self._greeted:  # it says its first line before it takes anything
            return len(self._kept.fresh)
        return max(len(self.out) - self._own_bytes, 0)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are for the agent, without their ends."""
        *whole, rest = data.split(b"\n")
        if whole and self._half:
            whole[0] = b"".join([*self._half, whole[0]])
            self._half.clear()
        self.half_bytes = len(rest) + (0 if whole else self.half_bytes)
        if rest:
            self._half.append(rest)
        if not self._greeted and whole:
            self._greeted = True
            if self._attached_received(whole[0]):
                del whole[0]
        if data.find(OURS) < 0 and not (whole and whole[0].startswith(OURS)):  # most often
            if whole:
                self._kept.broker_lines_passed(b"\n".join([*whole, b""]))
            return whole
        for_agent: list[bytes] = []
        for line in whole:
            if line.startswith(OURS):
                self._control_line_received(line)
            else:
                self._kept.broker_lines_passed(line + b"\n")
                for_agent.append(line)
        return for_agent

    def _attached_received(self, line: bytes) -> bool:
        if not line.startswith((ATTACHED_PREFIX, REFUSED_PREFIX)):
            return False
        found = parse_attached(line)
        if isinstance(found, AttachProblem):
            self.refusal = found.text
        else:
            self.attached = found
            self._kept.broker_attached(line)
            if found.env:
                self._send_environment(found.env)
        return True

    def _control_line_received(self, line: bytes) -> None:
        if line.startswith(SETTLED):
            self._kept.lines_settled(line)
        elif line.startswith(MOVED):
            self._kept.moved = line
        elif line.startswith(WANTED):
            self._send_environment(parse_wanted(line))
        elif line.startswith(ENDED):
            self.farewell = line

    def _send_environment(self, names: list[str]) -> None:
        line = environment_line(self._variables(names))
        self._own_bytes += len(line)
        self.out += line
