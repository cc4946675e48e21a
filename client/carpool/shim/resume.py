"""The return of a shim after its broker has died: the search for the next broker, and what is said to it.

Owns the search for the next broker (`BrokerSearch`): how long it lasts, when this shim starts carpool, and
that a carpool that was stopped on purpose stays down. Owns what is said to that broker
(docs/decisions/0019): which lines make the session what it is, which requests have no answer, which
questions the agent has not answered. Invariants: each line goes as the bytes that it came in (of a batch,
its parts); a request that the agent has an answer to is not sent again.

A `subscriptions/listen` that the agent has had acknowledged is one of the first, and behind the line that
acknowledged it: what was granted nobody else remembers.

Imported when that happens and not before: it knows JSON. Of MCP it knows those two lines.
"""

import json
import os
import time
from select import poll

from carpool import launcher_lock
from carpool.open_requests import OpenRequests
from carpool.shim.kept_lines import KeptLines
from carpool_protocol.bootstrap import paths, peer_credentials
from carpool_protocol.bootstrap.carrier_contract import name_of

try:
    from _socket import AF_UNIX, SOCK_STREAM, socket
except ImportError:
    from socket import AF_UNIX, SOCK_STREAM, socket  # type: ignore[assignment]  # the same class, by its long way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

EXIT_NO_BROKER = 69
RETURN_S = 25.0
"""The wait for another process to start a broker. A broker waits 30 s for sessions to come back."""
ALONE_S = 1.0
"""If no process holds the lock of the runtime directory for this long, the shim starts carpool."""
_FIRST_PAUSE_S, _PAUSE_S = 0.02, 0.2
STOPPED = "carpool was stopped; connect the agent again to start it"
_MOST_ASKS = 1000
_LISTEN = "subscriptions/listen"
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LISTEN_ID = "io.modelcontextprotocol/subscriptionId"

# Numbers stay as they were written: 1 and 1.0 are two ids, and Python reads no integer of 5000 digits.
_read = json.JSONDecoder(
    parse_int=lambda text: ("number", text),
    parse_float=lambda text: ("number", text),
    parse_constant=lambda text: ("number", text),
)


def read_farewell(line: bytes) -> tuple[str, bool]:
    """Return the reason in `carpool/ended`, and whether to come back; nothing if the broker has said
    nothing.
    """
    if not line:
        return "", False
    said = json.loads(line)["params"]
    return str(said["text"]), bool(said.get("again"))


def resume(kept_lines: KeptLines, hello: bytes, *, again: bool, untaken_bytes: int = 0) -> bytes:
    """Return the bytes to write to the next broker; `kept_lines` begins with them.

    `hello` is the attach line. `again`: requests without an answer were never sent to a server.
    `untaken_bytes`: bytes at the end of the last write that no broker has read.
    """
    if not kept_lines.attached:  # it took nothing
        return hello + kept_lines.fresh
    attached = json.loads(kept_lines.attached)["params"]
    *fresh, half = bytes(kept_lines.fresh).split(b"\n")
    heard = [*(line for _, line in kept_lines.held), *bytes(kept_lines.heard).split(b"\n")]
    answers, failed, asked = _sort_broker_lines(heard)
    granted = _granted(heard, ended := {name for name, _ in answers} - failed)
    unanswered = OpenRequests()
    given: set[str] = set()
    old = [
        (number, line, ack, [] if ack or number not in kept_lines.open else _enter(line, unanswered, given))
        for number, line in sorted((kept_lines.made | kept_lines.open).items())
        for ack in (_granted_to(line, granted),)
    ]
    more = [
        (line, ack, [] if ack else _enter(line, unanswered, given))
        for line in fresh
        for ack in (_granted_to(line, granted),)
    ]
    for name, answer in answers:
        kept_lines.is_done_with(name_of(unanswered.request_answered(name, answer)))

    def left(parts: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return [(request, part) for request, part in parts if not request or request in unanswered]

    made: list[bytes] = []
    unsettled: list[tuple[int, bytes]] = []
    for number, line, ack, parts in old:
        unsettled += left(parts)
        if ack:
            made += [ack, line]
        elif not left(parts) and number in kept_lines.made and not _is_over(line, ended, failed):
            made.append(line)
    taken = _taken(fresh, kept_lines.fresh.count(b"\n", 0, max(len(kept_lines.fresh) - untaken_bytes, 0)))
    for line, ack, parts in more[:taken]:
        unsettled += left(parts)
        if ack:
            made += [ack, line]
    new = [each for _, _, parts in more[taken:] for each in left(parts)]
    if again:
        unsettled, new = [], unsettled + new
    used_again = unanswered.reused_ids()
    asks = [ask for ask in dict.fromkeys([*kept_lines.asks, *asked]) if ask not in given][-_MOST_ASKS:]
    epoch = attached.get("supervisor", "") if kept_lines.epoch is None else kept_lines.epoch.decode()
    said = [*made, *(line for _, line in unsettled)]
    told = {
        "session": attached["session"],
        "secret": attached["secret"],
        "supervisor": "" if kept_lines.in_doubt else epoch,
        "kept": len(made),
        "open": len(unsettled),
        "last": f"{name_of(said[-1]):x}" if said else "",
        "again": [
            place
            for place, (request, line) in enumerate(unsettled)
            if request in used_again or name_of(line) in kept_lines.done
        ],
        "asks": asks,
        "stateful": kept_lines.stateful.decode().split(),
    }
    if kept_lines.moved:
        told["moved"] = json.loads(kept_lines.moved)["params"]
    rest = [*(line for _, line in new), half]
    kept_lines.begin_next_broker(made, said[len(made) :], b"\n".join(rest), asks)
    first = hello.removesuffix(b"}}\n") + b',"resume":' + json.dumps(told).encode() + b"}}\n"
    return b"\n".join([first[:-1], *said, *rest])


def awaits_answers(kept_lines: KeptLines) -> bool:
    """Return True if the next broker gets a line that may need an answer. Asked after `resume`."""
    lines = [*kept_lines.open.values(), *bytes(kept_lines.fresh).split(b"\n")]
    return any(_asks(line) for line in lines if _message(line) is not None)


def _enter(line: bytes, unanswered: OpenRequests, given: set[str]) -> list[tuple[int, bytes]]:
    """Return the parts of a line of the agent to send: those of a batch each with its number if it is a
    request, else with 0. Answers to asks are entered in `given`.
    """
    if not line.strip():
        return []
    message = _message(line)
    parts = _parts(line) if isinstance(message, list) else [line]
    return [(_number(part, unanswered, given), part) for part in parts if part.strip()]


def _number(part: bytes, unanswered: OpenRequests, given: set[str]) -> int:
    message = _message(part)  # an array within a batch is none of JSON-RPC's, however deep
    if not isinstance(message, dict):
        return 0
    name = _id(message)
    if message.get("method") is not None:
        return 0 if name is None else unanswered.request_sent(name, part)
    if isinstance(name, str):
        given.add(name)
    return 0


def _sort_broker_lines(lines: "Iterable[bytes]") -> tuple[list[tuple[object, bytes]], set[object], list[str]]:
    """Return from the broker's lines the answers with their ids, the ids that failed, and the ids of asks."""
    answers: list[tuple[object, bytes]] = []
    failed: set[object] = set()
    asked: list[str] = []
    for line in lines:
        message = _message(line)
        if isinstance(message, dict) and (name := _id(message)) is not None:
            if "method" not in message:
                answers.append((name, line))
                if "error" in message:
                    failed.add(name)
            elif isinstance(name, str):
                asked.append(name)
    return answers, failed, asked


def _granted(lines: "Iterable[bytes]", ended: set[object]) -> "dict[object, bytes]":
    """Return the acknowledgements among the broker's lines, the last one of each listen that has not
    `ended`.
    """
    found: dict[object, bytes] = {}
    for line in lines:
        if _LISTEN_ID.encode() in line:
            message = _message(line)
            if isinstance(message, dict) and message.get("method") == _ACKNOWLEDGED:
                found[_id({"id": message["params"]["_meta"][_LISTEN_ID]})] = line
    return {name: line for name, line in found.items() if name not in ended}


def _granted_to(line: bytes, granted: "dict[object, bytes]") -> "bytes | None":
    """Take and return the acknowledgement of this line, if it is a listen that has one."""
    message = _message(line) if granted else None
    is_listen = isinstance(message, dict) and message.get("method") == _LISTEN
    return granted.pop(_id(message), None) if is_listen else None


def _is_over(line: bytes, ended: set[object], failed: set[object]) -> bool:
    """True if what this line has made is over: it was refused, or it is a listen, which ends with its
    answer. (An error with the id of a granted listen is about another request of that id.)
    """
    message = _message(line)
    is_listen = isinstance(message, dict) and message.get("method") == _LISTEN
    return _id(message) in (ended if is_listen else failed)


def _taken(lines: list[bytes], count: int) -> int:
    """Return how many lines count as read by the broker: all up to the first request that was not. (An
    unread cancel belongs to what it cancels.)
    """
    while count < len(lines) and not _asks(lines[count]):
        count += 1
    return count


def _asks(line: bytes) -> bool:
    """True if the line is a request, or may hold one."""
    message = _message(line)
    return not isinstance(message, dict) or ("method" in message and "id" in message)


def _message(line: bytes) -> object:
    try:
        return _read.decode(line.decode())
    except (ValueError, RecursionError):
        return None


def _id(message: object) -> "object | None":
    name = message.get("id") if isinstance(message, dict) else None
    return name if isinstance(name, str | tuple) else None


def _parts(batch: bytes) -> list[bytes]:
    """Return the elements of an array, each as it is written there."""
    text = batch.decode().strip()
    parts: list[bytes] = []
    at = 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return parts
        _, end = _read.raw_decode(text, at)
        # A part becomes a line: white space that would end one is a blank to every reader.
        parts.append(text[at:end].replace("\r", " ").encode())
        at = end


class BrokerSearch:
    """Decides how long to look for the next broker, and when to start carpool. `again`: another process is
    about to start it. The time is a parameter, in monotonic seconds.
    """

    def __init__(self, now: float, *, again: bool) -> None:
        self._begun = now
        self._alone_since: float | None = None
        # Not all at once: there may be hundreds of us.
        self._alone_s = RETURN_S if again else ALONE_S + os.getpid() % 16 / 16
        self._pause_s = _FIRST_PAUSE_S

    def attempt_failed(self, now: float, *, led: bool) -> float | None:
        """A try has failed. `led`: a process holds the lock of the runtime directory. Returns the wait
        before the next try; None: this shim must start carpool.
        """
        self._alone_since = None if led else (self._alone_since or now)
        alone = self._alone_since is not None and now - self._alone_since > self._alone_s
        if alone or now - self._begun > RETURN_S:
            self._alone_since = None
            return None
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 1.5, _PAUSE_S)
        return pause_s

    def is_over(self, now: float) -> bool:
        """True if carpool was started and still no broker listens."""
        return now - self._begun > 2 * RETURN_S


def connect_to_next_broker(
    directory: str,
    start: "Callable[[], tuple[int, str]]",
    *,
    again: bool,
    waits: bool = False,
    stdin: int = 0,
    stdout: int = 1,
) -> "tuple[socket | None, int, str]":
    """Return a connection to the next broker; or the exit code (0: the agent has gone) and the reason.
    `start` starts carpool if no other process is about to; `again`: one is. `waits`: the agent waits for
    answers, so the end of its input does not mean that it has gone.
    """
    path = paths.agents_socket(directory)
    watch = poll()
    for fd in (stdout,) if waits else (stdin, stdout):
        watch.register(fd, 0)  # a hang-up only: what the agent says stays where it is
    search = BrokerSearch(time.monotonic(), again=again)
    while True:
        sock = socket(AF_UNIX, SOCK_STREAM)
        try:
            sock.connect(path)
        except OSError as error:
            sock.close()
            problem = error.strerror
        else:
            if peer_credentials.is_ours(sock):
                return sock, 0, ""
            sock.close()
            return None, EXIT_NO_BROKER, f"nothing was said to {path}: {peer_credentials.NOT_OURS}"
        now = time.monotonic()
        pause_s = search.attempt_failed(now, led=launcher_lock.holder(directory) is not None)
        if pause_s is None:
            if os.path.exists(paths.down_file(directory)):
                return None, EXIT_NO_BROKER, STOPPED
            code, text = start()
            if code:
                return None, code, text
            if search.is_over(now):
                return None, EXIT_NO_BROKER, f"cannot connect to {path}: {problem}"
        elif watch.poll(pause_s * 1000):
            return None, 0, ""
