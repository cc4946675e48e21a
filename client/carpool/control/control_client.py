"""The command line's way in: one blocking connection to the broker's socket.

Owns the attach exchange, request ids and the waiting for an answer; every wait is
bounded. What the broker asks in the meantime (`ping`) is answered, what it tells
(progress) is handed on. The environment it asks for comes from this process.
Refuses to know what the methods mean, and to start the daemon (`up`).
"""

import os
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from carpool_protocol.bootstrap import paths, peer_credentials
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.carrier.attach_line import (
    Attach,
    AttachProblem,
    attach_line,
    environment_line,
    parse_attached,
)

NOT_RUNNING = "carpool is not running here; start it with `carpool up --detach`"
BROKER_SILENT = (
    "the broker does not answer; see `carpool logs --daemon`, and if it stays so run `carpool restart --all`"
)
ANSWER_S = 30.0
"""How long an answer may take when nobody says otherwise."""
ATTACH_S = _CONNECT_S = 10.0


class ControlClientError(Exception):
    """The broker cannot be used. The text says what to do; `no_broker`: because none is there."""

    def __init__(self, text: str, *, no_broker: bool = False) -> None:
        super().__init__(text)
        self.no_broker = no_broker


class AnsweredError(Exception):
    """The broker's JSON-RPC error: `error` is the whole object as it came."""

    def __init__(self, error: Raw, message: str) -> None:
        super().__init__(message)
        self.error = error

    def slug(self) -> str:
        """Which of carpool's faults it is; empty: none of them."""
        try:
            return _error.decode(self.error).data.code
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ""


def text_for_people(error: AnsweredError, name: str) -> str:
    """Return the sentence about a tool or a prompt that is not there; empty for other errors.

    What an agent is told, to list the tools again or what its user must do, is nothing for a person.
    """
    what = {"unknown_tool": "tool", "unknown_prompt": "prompt"}.get(error.slug())
    if what is None:
        return ""
    from carpool_protocol.faults.kinds import KINDS, USER_FILE_UNREAD

    kind = KINDS[error.slug()]
    detail = (
        str(error).removeprefix(kind.what).removesuffix(kind.advice).partition(USER_FILE_UNREAD)[0].strip()
    )
    if detail and not detail.startswith("Did you mean"):
        return f"{name!r}: {detail}"
    meant = f"{detail[:1].lower()}{detail[1:]} " if detail else ""
    return f"there is no {what} {name!r} here; {meant}`carpool {what}s` lists them"


class _Line(Struct):
    id: Any = None
    method: str = ""
    params: Raw = Raw(b"null")
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _Data(Struct, frozen=True):
    code: str = ""


class _Message(Struct):
    message: str = ""


class _Error(Struct):
    data: _Data = _Data()


_line = msgspec.json.Decoder(_Line)
_message = msgspec.json.Decoder(_Message)
_error = msgspec.json.Decoder(_Error)
_encode = msgspec.json.encode


class ControlClient:
    """One session. `control`: it may use the `carpool/…` methods. Raises `ControlClientError` without a
    broker.
    """

    def __init__(
        self,
        directory: str,
        *,
        control: bool = False,
        profile: str = "",
        workspace: str = "",
        attach_s: float = ATTACH_S,
    ) -> None:
        """`attach_s`: the broker answers the attach line within that time, or `ControlClientError`."""
        self._unread = bytearray()
        self._next = 1
        try:
            self._socket = socket.socket(socket.AF_UNIX)
        except OSError as error:  # no free descriptor
            raise ControlClientError(f"cannot connect to the broker: {error.strerror or error}") from None
        self._socket.settimeout(_CONNECT_S)
        try:
            self._socket.connect(paths.agents_socket(directory))
        except (FileNotFoundError, ConnectionRefusedError):
            self._socket.close()
            raise ControlClientError(NOT_RUNNING, no_broker=True) from None
        except OSError as error:
            why = error.strerror or error
            self._fail(f"cannot connect to the broker ({why}); `carpool doctor` looks for the cause")
        if not peer_credentials.is_ours(self._socket):
            self._fail(f"nothing was said to the socket in {directory}: {peer_credentials.NOT_OURS}")
        self._attach(control, profile, workspace, attach_s)

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave: the session ends, and what it has open is cancelled."""
        self._socket.close()

    def initialize(self) -> Raw:
        """Greet as an MCP agent: needed before `tools/…` methods. The broker's `InitializeResult`."""
        result = self.request(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "carpool", "version": RELEASE},
            },
        )
        self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return result

    def request(
        self,
        method: str,
        params: object,
        timeout_s: float = ANSWER_S,
        on_notice: Callable[[str, Raw], None] | None = None,
    ) -> Raw:
        """Ask, and wait at most `timeout_s` for the answer. `on_notice` gets notifications meanwhile.

        Raises `AnsweredError` for a JSON-RPC error and `ControlClientError` when no answer comes.
        """
        number = self._next
        self._next += 1
        self._write(_encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + b"\n")
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._read(deadline, f"{method} was not answered within {timeout_s:g} s")
            try:
                message = _line.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                message = self._decode_unusual(line)
            if message.method:
                self._other_message_received(message, on_notice)
            elif message.id == number:
                if message.error is not UNSET:
                    raise AnsweredError(message.error, _message_of(message.error))
                return message.result if message.result is not UNSET else Raw(b"null")

    def _decode_unusual(self, line: bytes) -> _Line:
        """A line that holds half a surrogate pair, as what servers say may (rule 16)."""
        from carpool_protocol.wire import jsonrpc  # late: hardly ever needed

        message = jsonrpc.decode(line)
        match message:
            case jsonrpc.ResultAnswer():
                return _Line(id=_number(message.id), result=Raw(message.result))
            case jsonrpc.ErrorAnswer():
                return _Line(id=_number(message.id), error=Raw(message.error))
            case jsonrpc.Request():
                params = Raw(message.params or b"null")
                return _Line(id=Raw(message.id), method=message.method, params=params)
            case jsonrpc.Notification():
                return _Line(method=message.method, params=Raw(message.params or b"null"))
            case jsonrpc.InvalidLine():
                self._socket.close()
                raise ControlClientError(
                    "the broker sent a line that is not JSON-RPC; run `carpool restart --all`"
                )

    def _attach(self, control: bool, profile: str, workspace: str, limit_s: float) -> None:
        try:
            cwd = os.getcwd()
        except OSError:  # the directory is gone
            cwd = ""
        cwd = os.fsencode(cwd).decode("utf-8", "replace")
        attach = Attach(
            version=NAMING_VERSION if workspace else ATTACH_VERSION,
            carrier="cli",
            pid=os.getpid(),
            cwd=cwd,
            agent="carpool",
            workspace=workspace,
            profile=profile,
            control=control,
        )
        self._write(attach_line(attach))
        deadline = time.monotonic() + limit_s
        attached = parse_attached(self._read(deadline, BROKER_SILENT))
        if isinstance(attached, AttachProblem):
            self._fail(attached.text)
        if attached.env:
            values = {name: os.environ[name] for name in attached.env if name in os.environ}
            # What is not UTF-8 cannot be said in JSON.
            self._write(environment_line({k: v for k, v in values.items() if _is_text(v)}))

    def _other_message_received(self, message: _Line, on_notice: Callable[[str, Raw], None] | None) -> None:
        """Somebody else's message while we wait: requests are answered, notifications handed on."""
        if message.id is None:
            if on_notice:
                on_notice(message.method, message.params)
            return
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id}
        if message.method == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": -32601, "message": "the command line answers no questions"}
        self._write(_encode(answer) + b"\n")

    def _write(self, line: bytes) -> None:
        try:
            self._socket.settimeout(_CONNECT_S)
            self._socket.sendall(line)
        except TimeoutError:
            self._fail("the broker does not read; see `carpool logs --daemon`")
        except OSError:
            # It may have said why before it closed: the next read finds out.
            pass

    def _read(self, deadline: float, late: str) -> bytes:
        searched = 0
        while (cut := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._fail(late)
            self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(1 << 18)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            if not data:
                self._fail("the broker closed the connection; see `carpool logs --daemon`")
            self._unread += data
        line = bytes(self._unread[:cut])
        del self._unread[: cut + 1]
        return line

    def _fail(self, text: str) -> NoReturn:
        self._socket.close()
        raise ControlClientError(text)


def _number(raw_id: bytes) -> int:
    """An id of ours; -1 for any other."""
    return int(raw_id) if raw_id.isdigit() and len(raw_id) < 10 else -1


def _message_of(error: Raw) -> str:
    try:
        return _message.decode(error).message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _is_text(value: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in value)
