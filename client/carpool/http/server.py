"""The door's shell: connections of clients, the line to the broker, and the core between them.

Owns which connection an HTTP request waits on, the listening socket, the seconds' beat and the lifeline to
the launcher. Carries out what the core decides; decides nothing itself but when the process must end.

Knows nothing of: MCP, what frames say.
"""

import asyncio
import contextlib
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

import msgspec

from carpool.http import peer_owner
from carpool.http.body_room import BodyRoom
from carpool.http.broker_link import Line, keep_connected
from carpool.http.connection import Connection
from carpool.http.core.access import EVERYBODY, STRANGER, Gate
from carpool.http.core.core import HEALTH, Core
from carpool.http.core.effects import Begin, Effect, End, Request, Respond, Tell, Write
from carpool.http.core.limits import Limits
from carpool.http.core.pages import HEALTH_S
from carpool.http.core.pending import Lobby
from carpool.http.shares import ProcessShares
from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files
from carpool_protocol.runtime.steady_clock import SteadyClock
from carpool_protocol.runtime.wallclock import wallclock

_BACKLOG: Final = 2048
_BEAT_S: Final = 1.0
_MARGIN_S: Final = 0.01
"""After a time limit: a timer of the loop may come a little early."""
_TEXT: Final = "text/plain; charset=utf-8"
_NOT_YOURS: Final = (
    b"this door has no tokens, so it serves the processes of its own user only; he can make a token with "
    b"`carpool token NAME`"
)
_TOO_MANY: Final = Respond(
    0,
    503,
    b"this process has three quarters of the connections that the door may have (http.max_connections): "
    b"close some, or use one for several requests",
    media=_TEXT,
)
_UNKNOWN_PART: Final = 4
"""One in so many connections may be of clients that have shown no token yet."""
_GOODBYE_S: Final = 3.0
"""How long answers may still take when the door is to end."""


class DoorServer:
    """One door. `announce` gets the port it listens on."""

    def __init__(self, directory: str, core: Core, limits: Limits, max_connections: int) -> None:
        self.limits = limits
        self.date = b""
        self.room = BodyRoom()
        self._directory = directory
        self._core = core
        self._max_connections = max_connections
        self._waiting: dict[int, Connection] = {}
        """HTTP requests and the connections they wait on."""
        self._connections: set[Connection] = set()
        self._parting: dict[Connection, None] = {}
        """Those of them that were refused when they came, the oldest first: they give way to new ones."""
        self._shares = ProcessShares(max(1, max_connections * 3 // 4), self._refuse, say)
        """Where no tokens are needed."""
        self._unknown: dict[Connection, None] = {}
        """Where tokens are needed: those that have not shown one, the oldest first."""
        self._owners: dict[Connection, str] = {}
        """The principals of those that have."""
        self._count_of: Counter[str] = Counter()
        self._line: Line | None = None
        self._clock = SteadyClock()
        """A standstill of ours is no waiting of a client's."""
        self._stopping = asyncio.Event()
        self._lobby = Lobby()
        self.linked = asyncio.Event()
        """The broker has been there once."""

    # --- the clients' side (see `connection.Taker`) ---

    def come(self, connection: Connection) -> Respond | None:
        self._connections.add(connection)
        if len(self._connections) > self._max_connections and self._parting:
            self._drop(next(iter(self._parting)))
        refused = self._why_refused(connection)
        if refused is not None:
            self._parting[connection] = None
        return refused

    def _why_refused(self, connection: Connection) -> Respond | None:
        if not self._core.gate.is_open:
            self._unknown[connection] = None
            if len(self._unknown) > max(1, self._max_connections // _UNKNOWN_PART):
                self._drop(next(iter(self._unknown)))  # whoever has a token shows it at once
        if len(self._connections) > self._max_connections:
            return Respond(0, 503, b"too many connections are open", media=_TEXT)
        if not self._is_let_in(connection):
            return Respond(0, 403, _NOT_YOURS, media=_TEXT)
        self._shares.come(connection, len(self._connections) - 1)
        return None

    def _drop(self, connection: Connection) -> None:
        self.left(connection)
        connection.cut()

    def _refuse(self, connection: Connection) -> None:
        self._parting[connection] = None
        connection.turn_away(_TOO_MANY)

    def _shows_token(self, connection: Connection, request: Request) -> bool:
        """Note whose connection it is. False: that principal has too many."""
        principal = self._core.gate.principal(request.headers.get("authorization"))
        if principal is None:
            return True
        del self._unknown[connection]
        self._owners[connection] = principal
        self._count_of[principal] += 1
        known = self._max_connections - self._max_connections // _UNKNOWN_PART
        return self._count_of[principal] <= max(1, known // self._core.gate.principals)

    def _is_let_in(self, connection: Connection) -> bool:
        """Without tokens, only the processes of this user are."""
        if not self._core.gate.is_open:
            return True
        found = peer_owner.owner(connection.socket)
        if not peer_owner.is_ours(found):
            return False
        if found is not None:
            self._shares.note(connection, found.inode)
        return True

    def principal_of(self, connection: Connection, headers: dict[str, str]) -> str:
        gate = self._core.gate
        if gate.is_open:
            return EVERYBODY
        owner = self._owners.get(connection)
        return owner or gate.principal(headers.get("authorization")) or STRANGER

    def turned_away(self, path: str, headers: dict[str, str]) -> Respond | None:
        return self._core.turned_away(path, headers)

    def asked(self, connection: Connection, request: Request) -> int:
        x = self._core.number()
        self._waiting[x] = connection
        now = self._clock()
        if connection in self._unknown and not self._shows_token(connection, request):
            self._carry_out([Respond(x, 503, b"too many connections of this token are open", media=_TEXT)])
            connection.finish()
            return x
        if self._line is None and not self._stopping.is_set():
            until = self._core.waits_until(request.path, now)
            if until > now and self._lobby.enter(x, request, until):
                return x
        elif self._line is not None and self._line.choked:
            self._carry_out([Respond(x, 503, b'{"error":"the broker is too slow; try again"}')])
            return x
        self._carry_out(self._core.asked(x, request, now))
        if request.path == HEALTH and x in self._waiting:  # the beat may be too late for it
            asyncio.get_running_loop().call_later(HEALTH_S + _MARGIN_S, self._tick)
        return x

    def gone(self, x: int) -> None:
        if self._waiting.pop(x, None) is not None and not self._lobby.leave(x):
            self._carry_out(self._core.gone(x, self._clock()))

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._unknown.pop(connection, None)
        self._parting.pop(connection, None)
        self._shares.left(connection)
        if (principal := self._owners.pop(connection, None)) is not None:
            self._count_of[principal] -= 1
            if not self._count_of[principal]:
                del self._count_of[principal]

    # --- the broker's side ---

    def _linked(self, line: Line) -> None:
        self._line = line
        self._carry_out(self._core.linked(self._clock()))
        self.linked.set()
        self._let_in()

    def _said(self, line: bytes) -> None:
        effects = self._core.said(line, self._clock())
        if effects is None:
            say("the broker sent a line that is no frame; is it another version? Run `carpool restart --all`")
        else:
            self._carry_out(effects)

    def _lost(self, why: str) -> None:
        if self._line is not None:
            say(why)
        self._line = None
        self._carry_out(self._core.lost(self._clock()))
        if self._stopping.is_set():
            self._await_nobody()

    def _let_in(self, until: float = float("inf")) -> None:
        """Requests that have waited for the broker, or have waited long enough."""
        for x, request in self._lobby.due(until):
            self._carry_out(self._core.asked(x, request, self._clock()))

    def _await_nobody(self) -> None:
        """We end, and no broker is there."""
        self._carry_out(self._core.gave_up(self._clock()))
        self._let_in()

    def _new_line(self) -> Line:
        line = Line(lambda: self._linked(line), self._said, self._lost)
        return line

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                if self._line is not None:
                    self._line.write(effect.line)
                continue
            connection = self._waiting.get(effect.x)
            if connection is None:
                continue
            if isinstance(effect, Respond):
                del self._waiting[effect.x]
                connection.respond(effect.status, effect.body, effect.media, effect.headers)
            elif isinstance(effect, Write):
                connection.write(effect.data)
            elif isinstance(effect, Begin):
                connection.begin(effect.headers)
            elif isinstance(effect, End):
                del self._waiting[effect.x]
                connection.end()

    # --- the process ---

    async def run(self, sock: socket.socket, on_listening: Callable[[], None]) -> None:
        """Serve `sock` until `stop`."""
        loop = asyncio.get_running_loop()
        self._beat_once()
        server = await loop.create_server(lambda: Connection(self, self._clock), sock=sock, backlog=_BACKLOG)
        on_listening()
        tasks = [
            asyncio.create_task(self._beat()),
            asyncio.create_task(keep_connected(self._directory, self._new_line, say)),
        ]
        await self._stopping.wait()
        if self._line is None:
            self._await_nobody()
        server.close()
        self._shares.close()
        deadline = loop.time() + _GOODBYE_S
        while self._waiting and loop.time() < deadline:  # noqa: ASYNC110 - seldom and short: not worth an event
            await asyncio.sleep(0.02)
        for connection in list(self._connections):
            connection.finish()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def let_in_by(self, gate: Gate) -> None:
        """From now on these may come in; the sessions of those who no longer may are ended."""
        self._carry_out(self._core.let_in_by(gate, self._clock()))
        for connection in list(self._connections):
            if not gate.is_open and connection not in self._owners:
                self._unknown[connection] = None
            if not self._is_let_in(connection):  # it came while tokens were asked for
                connection.finish()

    def stop(self) -> None:
        """End, after a moment for open answers."""
        self._stopping.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            self._beat_once()

    def _beat_once(self) -> None:
        now = self._clock()
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        for connection in list(self._connections):
            connection.look(now)
        self._let_in(now)
        self._carry_out(self._core.tick(now))

    def _tick(self) -> None:
        self._carry_out(self._core.tick(self._clock()))


def raise_descriptor_limit(wished: int) -> int:
    """Let this process have that many open descriptors, as far as it may; how many it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wished:
        wished = wished if hard == resource.RLIM_INFINITY else min(wished, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wished), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def tell_url(directory: str, url: str) -> None:
    """Write it down for `carpool status`."""
    private_files.replace(paths.door_file(directory), msgspec.json.encode({"url": url, "pid": os.getpid()}))


def say(text: str) -> None:
    """One line for the log, with the time."""
    sys.stderr.write(f"{wallclock()} http: {text}\n")
    sys.stderr.flush()
