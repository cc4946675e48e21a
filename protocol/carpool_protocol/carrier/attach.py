"""The attach line: what a carrier says of itself before the agent's first line.

Ours, not MCP's. Every line is a JSON-RPC notification, so that a stranger who sees
one may ignore it:

    carrier → broker   carpool/attach       the very first line; a connection that starts otherwise is plain
    broker → carrier   carpool/attached     the broker's first line, or
                       carpool/refused      a sentence, then the broker closes
    carrier → broker   carpool/environment  the asked variables it has, only where `attached` named any
    broker → carrier   carpool/settled      to a carrier that `keeps`: now and then, what is done with
    broker → carrier   carpool/moved        as well: the session is in another workspace, `WorkspaceChanged`
    broker → carrier   carpool/ended        as well: this end is meant. A sentence, and whether to come back
    broker → carrier   carpool/wanted       to one that `tells`: more variables, as in `attached`; it answers
                                            each of these with `carpool/environment`, in their order

Plain connections never see any of this. What a carrier says after its attach line stands among the lines of
its agent, who may write the same; so a carrier whose agent is another process gives a `mark` in its attach
line, which the agent never sees, and repeats it. The lines we write start with a fixed
prefix (`OURS_PREFIX` and the rest of the method): the shim tells them apart
without a JSON parser. Nothing of an environment ever appears in a problem's text.

Refuses to know sockets, sessions and what a profile means.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION
from carpool_protocol.wire.tool_names import check_name_length

Carrier = Literal["shim", "run", "cli", "client", "door"]
"""`door`: the HTTP door. Its connection is no session; it carries many (`streams`)."""

OURS_PREFIX = b'{"jsonrpc":"2.0","method":"carpool/'
ATTACHED_PREFIX = OURS_PREFIX + b'attached"'
REFUSED_PREFIX = OURS_PREFIX + b'refused"'
SETTLED_PREFIX = OURS_PREFIX + b'settled"'
ENDED_PREFIX = OURS_PREFIX + b'ended"'
WANTED_PREFIX = OURS_PREFIX + b'wanted"'
MOVED_PREFIX = OURS_PREFIX + b'moved"'


class RunCommand(Struct, frozen=True):
    """The server of a `carpool run`: the caller's command, directory and whole environment (rule 13)."""

    argv: Annotated[list[str], Meta(min_length=1)]
    env: dict[str, str]
    cwd: str
    name: str = ""
    """What the caller wants it called; empty: the broker finds a name."""


class WorkspaceChanged(Struct, frozen=True):
    """The session has left the workspace that it came to, without leaving (docs/workspaces.md)."""

    workspace: str
    """The name of one of the user's file, or an absolute directory."""
    by_roots: bool = False
    """It follows its agent's roots; nobody has said it in words."""


class ResumeSession(Struct, frozen=True, kw_only=True):
    """A session of a broker that died goes on (docs/decisions/0019)."""

    session: str
    secret: str
    """As `attached` gave it."""
    supervisor: str = ""
    """The supervisor's epoch, as the carrier heard it last: what was sent, was sent under that."""
    kept: int = 0
    """So many lines come first and are replayed in silence: the agent has their answers. One is the broker's:
    before each listen the acknowledgement that the agent has had of it.
    """
    open: int = 0
    """So many follow that are not done with."""
    last: str = ""
    """The name of the last of all these (`carrier_contract`), in hexadecimal. Where another line turns out to
    be the last, the two sides do not mean the same: what is in no record counts as lost. Empty: there are
    none.
    """
    again: list[int] = []
    """Places, from 0 and among the `open` lines, of requests whose id had another use that was answered not
    long ago: an answer in the record may be that one's.
    """
    asks: list[str] = []
    """Ids of questions that the agent has been asked and has not answered, as far as the carrier knows."""
    moved: WorkspaceChanged | None = None
    """Where it was last, if that is not where it began."""
    stateful: list[str] = []
    """Servers at which the session may have state, as it was told last (`Settled`)."""

    @property
    def taken(self) -> int:
        """So many lines were said to an earlier broker already."""
        return max(self.kept, 0) + max(self.open, 0)


class Attach(Struct, frozen=True, kw_only=True):
    """Who brings the agent, and from where."""

    version: int
    carrier: Carrier
    pid: int = 0
    cwd: str = ""
    """The agent's directory: its workspace is found from here."""
    agent: str = ""
    """A name for people, where the carrier knows one before `initialize`."""
    workspace: str = ""
    """Where the session belongs, whatever the directory: the name of a workspace of the user's file, or an
    absolute directory. Only with `NAMING_VERSION`: earlier brokers would pass over it.
    """
    profile: str = ""
    control: bool = False
    """The session may use the `carpool/…` methods of the command line."""
    run: RunCommand | None = None
    server: str = ""
    """Only this server, under its own names; empty: all of them."""
    streams: bool = False
    """Each line after the broker's `attached` is a frame (`streams`). With the carrier `door`, only there."""
    keeps: bool = False
    """It keeps what passes until it is settled, and comes back when the broker dies."""
    tells: bool = False
    """It says variables whenever they are `carpool/wanted`. Only with `keeps`."""
    resume: ResumeSession | None = None
    tool_name_length: int = 0
    """The bound on the length of names in its lists; 0: as the user's file says."""
    mark: str = ""
    """What tells `carpool/environment` of this carrier from the same line of its agent. Empty: nothing does,
    and nothing has to, where they are one process.
    """


class AttachProblem(Struct, frozen=True):
    """An attach line that cannot be honoured: refuse with this text and close."""

    text: str


class Attached(Struct, frozen=True):
    """The broker's yes."""

    version: int
    session: str
    env: list[str] = []
    """Names of the variables the configuration uses: answer with `carpool/environment`."""
    secret: str = ""
    """What resumes this session at a later broker; only for a carrier that keeps."""
    supervisor: str = ""
    """The supervisor's epoch; empty while there is none."""


class AttachmentEnded(Struct, frozen=True):
    """The broker ends, or this connection does, and that is meant."""

    text: str
    """Why, for people."""
    again: bool = False
    """Another broker takes its place. What came after the last settled line and has no answer was never
    taken: it is new there.
    """


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
    """Read a connection's first line. `None`: it is no attach line, the connection is plain."""
    params = _params_of(line, "carpool/attach")
    if params is None:
        return None
    # The version first: the rest of another version's line may be shaped differently.
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
    if attach.tool_name_length and (problem := check_name_length(attach.tool_name_length)) is not None:
        return AttachProblem(problem)
    return attach


def attach_line(attach: Attach) -> bytes:
    """The carrier's first line, with its line end. (The shim writes its own, without msgspec.)"""
    return _line("carpool/attach", attach)


def attached_line(session: str, env: list[str], secret: str = "", supervisor: str = "") -> bytes:
    """The broker's first line, with its line end. `env`: names of the variables it wants. The rest: see
    `Attached`.
    """
    attached = Attached(
        version=ATTACH_VERSION, session=session, env=env, secret=secret, supervisor=supervisor
    )
    return _line("carpool/attached", attached)


class Settled(NamedTuple):
    """How far things are (docs/decisions/0019, 0030). Lines go by their names (`carrier_contract`)."""

    epoch: str
    """The supervisor's."""
    read: int
    """The line of the agent that was read last: it and all before it are done with, but for those that
    follow. 0: none was read since this was told last.
    """
    times: int
    """So many lines of that name were read since then."""
    open: list[int]
    """Not answered yet."""
    kept: list[int]
    """What makes the session what it is."""
    both: list[int]
    """Both of that."""
    held: list[int]
    """Of the broker's lines that went before this one, all of which are done with but for these: questions
    that the agent has not answered, answers to a part of a batch, what acknowledged listens.
    """
    stateful: Sequence[str] = ()
    """Servers in mode `session` that the session has called: the next broker, if it knows nothing of the
    session, is to know that it has lost something there.
    """


def settled_line(settled: Settled) -> bytes:
    """The line that says it, with its line end."""
    epoch, read, times, open_, kept, both, held, stateful = settled
    # Names in blanks: whoever reads it cuts it apart without a JSON parser.
    last = f"{read:x} {times:x}" if read else ""
    told = (
        epoch,
        last,
        _line_names(open_),
        _line_names(kept),
        _line_names(both),
        _line_names(held),
        " ".join(stateful),
    )
    return _line("carpool/settled", told)


def wanted_line(names: list[str]) -> bytes:
    """The line that asks for more variables, with its line end."""
    return _line("carpool/wanted", {"env": names})


def moved_line(change: WorkspaceChanged) -> bytes:
    """The line that says where the session is now, with its line end."""
    return _line("carpool/moved", change)


def ended_line(text: str, *, again: bool = False) -> bytes:
    """The broker's last line where the end is meant, with its line end."""
    return _line("carpool/ended", AttachmentEnded(text, again))


def refused_line(text: str) -> bytes:
    """The broker's only line before it closes, with its line end."""
    return _line("carpool/refused", _Refused(text=text))


def environment_line(values: dict[str, str], mark: str = "") -> bytes:
    """The carrier's answer to a non-empty `env`, with its line end. `mark`: as in its attach line. (The shim
    writes its own.)
    """
    if not mark:
        return _line(_TELLS, values)
    told = (_encode(mark), _encode(values))
    return b'{"jsonrpc":"2.0","method":"carpool/environment","mark":%s,"params":%s}\n' % told


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
    """Read a `carpool/environment` line. `None`: it is another line, one that cannot be read, or one without
    the carrier's mark: the agent's.
    """
    try:
        told = _telling.decode(line)
        return _variables.decode(told.params) if (told.method, told.mark) == (_TELLS, mark) else None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def parse_wanted(line: bytes) -> list[str]:
    """Names of the variables that a `carpool/wanted` line asks for; none where it cannot be read."""
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
    """Where it is wrong, never what was there: an attach line of `run` holds an environment."""
    text = str(error)
    return text.rpartition(" - at ")[2].strip("`") if " - at " in text else "not valid JSON"
