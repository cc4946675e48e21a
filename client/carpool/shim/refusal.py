"""Refusals to an agent that cannot be attached: every request is answered with the reason, until stdin ends.

Owns the lines that such an agent hears. One input, one output:
`{"jsonrpc":"2.0","id":1,"method":"initialize"}` becomes
`{"jsonrpc":"2.0","id":1,"error":{"code":4111,"message":"carpool: …","data":{…}}}`. Invariants:

- each request of a line is answered, those of a batch too, with its id as it was written; the eras of MCP
  need no difference here, as `initialize`, `server/discover` and every other method are requests;
- notifications, answers and what is not JSON are passed over;
- memory is bounded by the longest line that is kept.

Refuses to know the reason, and how carpool is found. Imported only when an agent is refused: it knows JSON.
The standard library only.
"""

import json
import os
from select import POLLIN, POLLOUT, poll

ATTACH_REFUSED, NOT_RUNNING = ("attach_refused", 4111), ("not_running", 5317)
"""Code and number of the two faults (docs/errors.md). The whole table would cost more memory than this
module.
"""
LINE_BYTES = 32 * 1024 * 1024
"""A longer line is skipped."""
_READ_BYTES = 65536


class _Number(str):
    """A number as it was written: `1` and `1.0` are two ids, and Python reads no integer of 5000 digits."""

    __slots__ = ()


_read = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def refuse(text: str, fault: tuple[str, int], said: bytes = b"", stdin: int = 0, stdout: int = 1) -> None:
    """Answer each request with `text` until stdin ends or nobody reads. `said` is what the agent has sent so
    far. A person at a terminal is not waited for.
    """
    if os.isatty(stdin):
        return
    error = _error(text, fault)
    half: list[bytes] = []
    size = 0
    data = said
    while True:
        *lines, rest = data.split(b"\n")
        if lines:
            first = b"".join([*half, lines[0]]) if size <= LINE_BYTES else b""
            half.clear()
            size = 0
            if not _write(stdout, b"".join(_answers(line, error) for line in [first, *lines[1:]])):
                return
        size += len(rest)
        if size <= LINE_BYTES:
            half.append(rest)
        else:
            half.clear()
        data = _read_some(stdin)
        if not data:
            if half and size <= LINE_BYTES:  # a last line without a line end
                _write(stdout, _answers(b"".join(half), error))
            return


def _error(text: str, fault: tuple[str, int]) -> bytes:
    slug, number = fault
    data = {"code": slug, "delivered": "no", "retry_after_s": None, "server": "", "tool": "", "call": ""}
    return json.dumps({"code": number, "message": text, "data": data}).encode()


def _answers(line: bytes, error: bytes) -> bytes:
    """Return the answers to the requests of one line, a line each."""
    try:
        message = _read.decode(line.decode())
    except (ValueError, RecursionError):
        return b""
    parts = message if isinstance(message, list) else [message]
    idents = [_ident(part) for part in parts]
    return b"".join(b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (ident, error) for ident in idents if ident)


def _ident(message: object) -> bytes:
    """Return the id of a request, as JSON; empty for everything else."""
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return b""
    ident = message.get("id")
    if isinstance(ident, _Number):
        return ident.encode()
    return json.dumps(ident).encode() if isinstance(ident, str) else b""


def _read_some(fd: int) -> bytes:
    """Return what comes next, also from a non-blocking pipe; empty at the end."""
    ready = poll()
    ready.register(fd, POLLIN)
    while True:
        ready.poll()
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            return b""


def _write(fd: int, data: bytes) -> bool:
    """Write all of it, also to a non-blocking pipe. Returns False if nobody reads any more."""
    ready = poll()
    ready.register(fd, POLLOUT)
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            ready.poll()
        except OSError:
            return False
    return True
