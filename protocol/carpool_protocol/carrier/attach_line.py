"""The attach dialogue: the lines about a connection itself that carrier and broker exchange.

It is carpool's own protocol, not MCP. Every line is a JSON-RPC notification, so that a peer that does not
know it may ignore it:

    carrier → broker   carpool/attach       the very first line; a connection that starts otherwise is plain
    broker → carrier   carpool/attached     the broker's first line, or
                       carpool/refused      a sentence, then the broker closes
    carrier → broker   carpool/environment  values of the variables that `attached` named, if it named any
    broker → carrier   carpool/settled      to a carrier that `keeps`, now and then: which lines are settled
    broker → carrier   carpool/moved        to the same: the session's new workspace (`WorkspaceChanged`)
    broker → carrier   carpool/ended        to the same: an end on purpose, why, and if it may attach again
    broker → carrier   carpool/wanted       to one that `tells`: names of more variables; the carrier answers
                                            each of these with `carpool/environment`, in their order

Plain connections never see any of this. After the attach line a carrier's lines stand among those of its
agent, and the agent could write the same text. So a carrier whose agent is another process gives a `mark` in
its attach line, which the agent never sees, and repeats it. The broker's lines start with a fixed prefix
(`OURS_PREFIX` and the rest of the method), so the shim recognises them without a JSON parser. No value of an
environment ever appears in an error text.

Refuses to know sockets, sessions and the meaning of a profile.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION

Carrier = Literal["shim", "run", "cli", "client", "door", "node"]
"""`door` is the HTTP door. Its connection is no session; it carries many (`streams`). `node`: an agent of
another node of the cluster.
"""

OURS_PREFIX = b'{"jsonrpc":"2.0","method":"carpool/'
ATTACHED_PREFIX = OURS_PREFIX + b'attached"'
REFUSED_PREFIX = OURS_PREFIX + b'refused"'


class RunCommand(Struct, frozen=True):
    """The server of a `carpool run`: the caller's command, directory and complete environment (rule 13)."""

    argv: Annotated[list[str], Meta(min_length=1)]
    env: dict[str, str]
    cwd: str
    name: str = ""
    """The name that the caller asks for; empty: the broker chooses one."""


class WorkspaceChanged(Struct, frozen=True):
    """The session has moved to another workspace without ending (docs/workspaces.md)."""

    workspace: str
    """The name of a workspace of the user's file, or an absolute directory."""
    by_roots: bool = False
    """The session moved because of its agent's roots; no request named the workspace."""


class ResumeSession(Struct, frozen=True, kw_only=True):
    """A request to continue a session of a broker that died (docs/decisions/0019)."""

    session: str
    secret: str
    """The secret of `attached`."""
    supervisor: str = ""
    """The last supervisor epoch that the carrier was told: its lines were sent under that epoch."""
    kept: int = 0
    """Number of lines that come first and are replayed without new answers, because the agent has them
    already.

    One line is the broker's own: before each listen, the acknowledgement that the agent has received for it.
    """
    open: int = 0
    """Number of lines after those that are not settled."""
    last: str = ""
    """The name of the last of all these lines (`carrier_contract`), in hexadecimal; empty: there are none.

    If another line turns out to be the last, the two sides disagree: calls that no record holds count as
    lost.
    """
    again: list[int] = []
    """Positions (from 0, among the `open` lines) of requests with an id that was answered recently under
    another use.

    An answer in the record may belong to the earlier use.
    """
    asks: list[str] = []
    """Ids of asks that the agent has received and, as far as the carrier knows, not answered."""
    moved: WorkspaceChanged | None = None
    """The session's last workspace, if it is not the first one."""
    stateful: list[str] = []
    """Servers at which the session may have state, from the last `Settled`."""

    @property
    def taken(self) -> int:
        """Number of lines that an earlier broker has received already."""
        return max(self.kept, 0) + max(self.open, 0)


class Attach(Struct, frozen=True, kw_only=True):
    """The attach line: which carrier brings the agent, and from which directory."""

    version: int
    carrier: Carrier
    pid: int = 0
    cwd: str = ""
    """The agent's directory, from which its workspace is found."""
    agent: str = ""
    """A name for people, if the carrier knows one before `initialize`."""
    config: str = ""
    """The configuration file that the carrier's environment names (`paths.expected_config_file`), without
    links.

    If the broker has another one, the session is told.
    """
    workspace: str = ""
    """The workspace that the session asks for, independent of its directory.

    The name of a workspace of the user's file, or an absolute directory. Only with `NAMING_VERSION`: earlier
    brokers would ignore it.
    """
    workspaces: list[str] = []
    """The only workspaces that the session may be in, by name; empty: any. For streams alone: their door asks
    for a token.
    """
    profile: str = ""
    control: bool = False
    """The session may use the `carpool/…` methods of the command line."""
    run: RunCommand | None = None
    server: str = ""
    """Offer only this server, under its own tool names; empty: all servers."""
    streams: bool = False
    """Each line after the broker's `attached` is a frame (`streams`). Only with the carrier `door`."""
    keeps: bool = False
    """The carrier keeps lines until they are settled, and resumes the session when the broker dies."""
    tells: bool = False
    """The carrier answers each `carpool/wanted` with values. Only with `keeps`."""
    resume: ResumeSession | None = None
    tool_name_length: int = 0
    """The longest tool name in its lists, in characters; 0: as the user's file says."""
    node: str = ""
    """With the carrier `node`: the name of this node, for errors that agents of other nodes read."""
    mark: str = ""
    """Text that distinguishes `carpool/environment` of this carrier from the same line of its agent.

    Empty: carrier and agent are one process, so no distinction is needed.
    """


class AttachProblem(Struct, frozen=True):
    """An attach line that the broker cannot accept: it refuses with this text and closes."""

    text: str


class Attached(Struct, frozen=True):
    """The broker accepts the carrier."""

    version: int
    session: str
    env: list[str] = []
    """Names of the variables that the configuration uses: answer with `carpool/environment`."""
    secret: str = ""
    """The secret that resumes this session at a later broker; only for a carrier that keeps lines."""
    supervisor: str = ""
    """The supervisor's epoch; empty while there is none."""
    note: str = ""
    """A sentence for whoever reads the carrier's stderr; empty: there is none."""


class AttachmentEnded(Struct, frozen=True):
    """The broker ends, or ends this connection, on purpose."""

    text: str
    """The reason, for people."""
    again: bool = False
    """Another broker follows. It takes lines after the last settled one that have no answer as new."""


class _MethodLine(Struct):
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _EnvironmentLine(_MethodLine):
    mark: str = ""


class _Version(Struct):
    version: int = 0


class _Refused(Struct):
    text: str = ""


class _Wanted(Struct):
    env: list[str] = []


_TELLS = "carpool/environment"
_probe = msgspec.json.Decoder(_MethodLine)
_telling = msgspec.json.Decoder(_EnvironmentLine)
_version = msgspec.json.Decoder(_Version)
_attach = msgspec.json.Decoder(Attach)
_attached = msgspec.json.Decoder(Attached)
_refused = msgspec.json.Decoder(_Refused)
_wanted = msgspec.json.Decoder(_Wanted)
_variables = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.encode


def parse_attach(line: bytes) -> Attach | AttachProblem | None:
    """Read a connection's first line. None: it is no attach line, and the connection is plain."""
    params = _params_of(line, "carpool/attach")
    if params is None:
        return None
    # The version first: the rest of another version's line may have another shape.
    try:
        version = _version.decode(params).version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return AttachProblem("the attach line has no readable version; is the carrier from another carpool?")
    if version not in {ATTACH_VERSION, NAMING_VERSION}:
        return AttachProblem(
            f"this daemon speaks attach versions {ATTACH_VERSION} and {NAMING_VERSION}, the carrier speaks "
            f"{version}: run `carpool restart --all`"
        )
    try:
        attach = _attach.decode(params)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return AttachProblem(
            f"cannot read the attach line ({_error_place(error)}): run `carpool restart --all`"
        )
    if (attach.carrier == "run") != (attach.run is not None):
        return AttachProblem("the attach line must say `run` with the carrier `run`, and only there")
    if (attach.carrier == "door") != attach.streams:
        return AttachProblem("the attach line must say `streams` with the carrier `door`, and only there")
    if attach.tool_name_length:
        from carpool_protocol.wire.tool_name_resolver import (
            check_name_length,  # late: carriers need none of it
        )

        if (problem := check_name_length(attach.tool_name_length)) is not None:
            return AttachProblem(problem)
    return attach


def attach_line(attach: Attach) -> bytes:
    """The carrier's first line, with its line end. (The shim writes its own, without msgspec.)"""
    return _line("carpool/attach", attach)


def attached_line(
    session: str, env: list[str], secret: str = "", supervisor: str = "", note: str = ""
) -> bytes:
    """The broker's first line, with its line end. `env`: names of the variables it wants. The rest: as in
    `Attached`.
    """
    attached = Attached(
        version=ATTACH_VERSION, session=session, env=env, secret=secret, supervisor=supervisor, note=note
    )
    return _line("carpool/attached", attached)


class Settled(NamedTuple):
    """How much of a connection is settled (docs/decisions/0019, 0030). Lines are given by name
    (`carrier_contract`).
    """

    epoch: str
    """The supervisor's epoch."""
    read: int
    """The last line of the agent that was read. It and all lines before it are settled, except the ones
    below.

    0: no line was read since the last `Settled`.
    """
    times: int
    """How many lines with the name `read` were read since the last `Settled`."""
    open: list[int]
    """Lines that have no answer yet."""
    kept: list[int]
    """Lines that a later broker needs to rebuild the session."""
    both: list[int]
    """Lines that are open and kept."""
    held: list[int]
    """The broker's earlier lines that are not settled; all others are.

    These are asks that the agent has not answered, answers to a part of a batch, and acknowledgements of
    listens.
    """
    stateful: Sequence[str] = ()
    """Servers in mode `session` that the session has called.

    A later broker without a record of the session must know that it lost state there.
    """


def settled_line(settled: Settled) -> bytes:
    """The line that reports which lines are settled, with its line end."""
    epoch, read, times, open_, kept, both, held, stateful = settled
    # Names separated by blanks: the reader splits them without a JSON parser.
    last = f"{read:x} {times:x}" if read else ""
    parts = (
        epoch,
        last,
        _line_names(open_),
        _line_names(kept),
        _line_names(both),
        _line_names(held),
        " ".join(stateful),
    )
    return _line("carpool/settled", parts)


def wanted_line(names: list[str]) -> bytes:
    """The line that asks for the values of more variables, with its line end."""
    return _line("carpool/wanted", {"env": names})


def moved_line(change: WorkspaceChanged) -> bytes:
    """The line that names the session's new workspace, with its line end."""
    return _line("carpool/moved", change)


def ended_line(text: str, *, again: bool = False) -> bytes:
    """The broker's last line of an end on purpose, with its line end. `again`: as in `AttachmentEnded`. Empty
    `text`: the agent sends nothing more, and every request that it sent is answered.
    """
    return _line("carpool/ended", AttachmentEnded(text, again))


def refused_line(text: str) -> bytes:
    """The broker's only line before it closes, with its line end."""
    return _line("carpool/refused", _Refused(text=text))


def environment_line(values: dict[str, str], mark: str = "") -> bytes:
    """The carrier's answer to a non-empty `env`, with its line end. `mark`: as in its attach line.

    The shim writes its own without this function.
    """
    if not mark:
        return _line(_TELLS, values)
    parts = (_encode(mark), _encode(values))
    return b'{"jsonrpc":"2.0","method":"carpool/environment","mark":%s,"params":%s}\n' % parts


def parse_attached(line: bytes) -> Attached | AttachProblem:
    """Read the broker's first line. A refusal becomes a problem with the broker's own text."""
    try:
        probe = _probe.decode(line)
        if probe.method == "carpool/attached":
            return _attached.decode(probe.params)
        if probe.method == "carpool/refused":
            return AttachProblem(_refused.decode(probe.params).text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    return AttachProblem("no carpool broker of this version answers there: run `carpool restart --all`")


def parse_environment(line: bytes, mark: str = "") -> dict[str, str] | None:
    """The variables of a `carpool/environment` line of the carrier.

    None: another line, an unreadable one, or one without the carrier's mark, which is the agent's.
    """
    try:
        line_read = _telling.decode(line)
        return (
            _variables.decode(line_read.params)
            if (line_read.method, line_read.mark) == (_TELLS, mark)
            else None
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def parse_wanted(line: bytes) -> list[str]:
    """Names of the variables that a `carpool/wanted` line asks for. Empty if it cannot be read."""
    try:
        return _wanted.decode(_params_of(line, "carpool/wanted") or b"{}").env
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []


def _params_of(line: bytes, method: str) -> msgspec.Raw | None:
    try:
        probe = _probe.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return probe.params if probe.method == method else None


def _line_names(lines: Iterable[int]) -> str:
    return " ".join([f"{name:x}" for name in lines])


def _line(method: str, params: object) -> bytes:
    return b'{"jsonrpc":"2.0","method":"%s","params":%s}\n' % (method.encode(), _encode(params))


def _error_place(error: Exception) -> str:
    """The place of the error without the value there: an attach line of `run` holds an environment."""
    text = str(error)
    return text.rpartition(" - at ")[2].strip("`") if " - at " in text else "not valid JSON"
