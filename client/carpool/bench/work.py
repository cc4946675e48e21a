"""The requests of a bench's agents, and the judgement of the answers.

Owns the bytes of a request and the judgement of its answer. A request is cut from ready pieces around
its id. An answer is judged twice at most: cheaply on its bytes, and only where that is not plainly
good, by a full parse that says what is wrong.
Pure: no clock, no I/O. Knows nothing of: agents' sockets, arms, carpool.
"""

import json
import re
from typing import Any, Protocol

_ID = re.compile(rb'"id" ?: ?(\d+)[,}]')
_COMMON_HEAD = b'{"jsonrpc":"2.0","id":'
_HEAD = len(_COMMON_HEAD)


def answer_id(line: bytes) -> int:
    """The integer id of a line as our own requests carry it; -1 when none is found cheaply.

    Looked for where servers write it: first, within the first 64 bytes, or last. A wrong find does no
    harm: the answer is judged against the request of that id and then parsed.
    """
    if line.startswith(_COMMON_HEAD):
        digits = line[_HEAD : line.find(b",", _HEAD, _HEAD + 20)]
        if digits.isdigit():
            return int(digits)
    found = _ID.search(line, 0, 64) or _ID.search(line, max(0, len(line) - 64))
    return int(found[1]) if found else -1


class Workload(Protocol):
    """Interface of the call that every agent repeats."""

    def request(self, agent: int, number: int) -> bytes:
        """The line of the call with id `number`, with its newline."""
        ...

    def is_right(self, agent: int, number: int, line: bytes) -> bool:
        """The line is plainly the right answer. False means: look closer with `fault`."""
        ...

    def fault(self, agent: int, number: int, line: bytes) -> str:
        """Return the fault of an answer, as a short kind to count by; empty if there is none."""
        ...


def _request(tool: str, arguments: bytes) -> tuple[bytes, bytes]:
    tail = b',"method":"tools/call","params":{"name":%b,"arguments":%b}}\n'
    return _COMMON_HEAD, tail % (json.dumps(tool).encode(), arguments)


def error_kind(message: dict[str, Any]) -> str:
    """Return the kind of failure of a parsed answer, to count by; empty if it is a good result.

    Of an error only codes are told, never its text: a tool's text may hold anything.
    """
    error = message.get("error")
    if isinstance(error, dict):
        return f"JSON-RPC error {error.get('code')}"
    result = message.get("result")
    if not isinstance(result, dict):
        return "no result"
    if result.get("isError") is not True:
        return ""
    meta = result.get("_meta")
    ours = meta.get("carpool/error") if isinstance(meta, dict) else None
    if isinstance(ours, dict):
        return f"carpool: {ours.get('code')} (delivered: {ours.get('delivered')})"
    return "isError from the tool"


def _first_text(message: dict[str, Any]) -> str | None:
    try:
        text = message["result"]["content"][0]["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if isinstance(text, str) else None


class EchoWorkload:
    """Calls of the echo tool. Each carries its agent and its id, so a swapped answer is seen."""

    def __init__(self, tool: str) -> None:
        self._head, tail = _request(tool, b'{"text":"a%d-%d"}')
        # `%` in a tool's name would be taken for a place; only ours are.
        name, places = tail.split(b',"arguments":')
        self._tail = name.replace(b"%", b"%%") + b',"arguments":' + places

    def request(self, agent: int, number: int) -> bytes:
        return self._head + b"%d" % number + self._tail % (agent, number)

    def is_right(self, agent: int, number: int, line: bytes) -> bool:
        return (
            b'"a%d-%d"' % (agent, number) in line
            and b'"result"' in line
            and b":true" not in line
            and b": true" not in line
        )

    def fault(self, agent: int, number: int, line: bytes) -> str:
        message = json.loads(line)
        kind = error_kind(message)
        if not kind and _first_text(message) != f"a{agent}-{number}":
            return "the text of another call"
        return kind


class PayloadWorkload:
    """Calls for answers with `size_bytes` bytes of text."""

    def __init__(self, tool: str, size_bytes: int) -> None:
        self._size = size_bytes
        self._head, self._tail = _request(tool, b'{"bytes":%d}' % size_bytes)

    def request(self, agent: int, number: int) -> bytes:
        return self._head + b"%d" % number + self._tail

    def is_right(self, agent: int, number: int, line: bytes) -> bool:
        # An answer is the text plus an envelope; the marks of an error would stand in the envelope.
        edges = line[:200] + line[-200:]
        return self._size < len(line) < self._size + 1000 and b'"result"' in edges and b"true" not in edges

    def fault(self, agent: int, number: int, line: bytes) -> str:
        message = json.loads(line)
        kind = error_kind(message)
        if not kind and len(_first_text(message) or "") != self._size:
            return "a text of another size"
        return kind


class ToolWorkload:
    """Calls of any tool, always with the same arguments (one JSON object)."""

    def __init__(self, tool: str, arguments: bytes) -> None:
        self.tool = tool
        self.arguments = arguments
        self._head, self._tail = _request(tool, arguments)

    def request(self, agent: int, number: int) -> bytes:
        return self._head + b"%d" % number + self._tail

    def is_right(self, agent: int, number: int, line: bytes) -> bool:
        start = _HEAD + len(b"%d" % number)
        return (
            line.startswith(b',"result":', start)
            and b'"isError":true' not in line
            and b'"isError": true' not in line
        )

    def fault(self, agent: int, number: int, line: bytes) -> str:
        return error_kind(json.loads(line))
