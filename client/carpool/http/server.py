"""The door's shell: connections of clients, the line to the broker, and the core between them.

Owns which connection an HTTP request waits on, the listening socket, the seconds' beat, and the requests that
wait for a broker or for the next door. Carries out what the core decides, also which connections may stay
(`connection_places`) and which the next door gets (`leave_order`); decides nothing itself but when the
process must end.

Knows nothing of: MCP, what frames say.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from email.utils import formatdate
from typing import Any, Final, NamedTuple

import msgspec

from carpool.cluster.requests import stories_at_nodes
from carpool.http import left_connections, log, peer_owner
from carpool.http.broker_link import BrokerLink, keep_connected
from carpool.http.client_budget import ClientBudget
from carpool.http.connection import HttpConnection
from carpool.http.core.access import (
    ANY_PRINCIPAL,
    GENERATED_PRINCIPAL,
    NO_PRINCIPAL,
    AccessRules,
)
from carpool.http.core.body import INTERNAL_ERROR
from carpool.http.core.connection_places import ConnectionPlaces
from carpool.http.core.core import HEALTH, HttpCore
from carpool.http.core.effects import (
    AskNodes,
    BeginEvents,
    ClientEffect,
    ContinueAnswers,
    ContinueEvents,
    Effect,
    EndEvents,
    HoldRequest,
    HttpRequest,
    HttpRules,
    LogsFound,
    ReadLog,
    Refuse,
    RefusedWhy,
    RequestsHeld,
    Respond,
    SendToBroker,
    WriteEvents,
    refusal,
)
from carpool.http.core.leave_order import (
    ConnectionState,
    Ending,
    can_be_left,
    ending_of,
    is_settled,
    leave_order,
)
from carpool.http.core.limits import UNSENT_IN_SYSTEM_BYTES, HttpLimits
from carpool.http.core.operator_requests import OPERATOR_PATH
from carpool.http.core.pages import HEALTH_S
from carpool.http.core.pending import HOLD_S, PendingRequests
from carpool.http.core.refused_clients import (
    Penalty,
    RefusedAddress,
    RefusedClients,
)
from carpool.http.core.request_turns import RequestTurns
from carpool.http.left_connections import LeftConnection
from carpool.http.shares import ProcessShares
from carpool.logs.log_folder import last_records, log_files
from carpool.readings.call_steps import node_story
from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files
from carpool_protocol.runtime.pace import IDLE_S, until_due
from carpool_protocol.runtime.steady_clock import SteadyClock

BACKLOG: Final = 2048
NODE_S: Final = 5.0
"""The answer of another node is awaited this long."""
_BEAT_S: Final = 1.0
_MARGIN_S: Final = 0.01
"""Added to a time limit, because a timer of the loop can fire a little early."""
_TEXT: Final = "text/plain; charset=utf-8"
_NOT_YOURS: Final = (
    b"this door needs no token, so it serves the processes of its own user only; that user can make a token "
    b"with `carpool token add NAME`"
)
_TOO_MANY: Final = Respond(
    0,
    503,
    b"this process has three quarters of the connections that the door may have (http.max_connections): "
    b"close some, or use one for several requests",
    media=_TEXT,
)
_TOO_MUCH: Final = "too much of this token waits for carpool; this was not delivered, try again in a moment"
_TOO_MANY_OF_TOKEN: Final = b"too many connections of this token are open"
_FULL: Final = Respond(0, 503, b"too many connections are open (http.max_connections)", media=_TEXT)
_NODES_UNASKED: Final = "other nodes could not be asked; see `carpool logs --daemon`"
_LOOK_S: Final = 0.02
_LOOK_FIRST_S: Final = 0.5
_TOLD_ADDRESSES: Final = 5
"""So many addresses with wrong tokens stand in one line of the log."""
_GOODBYE_S: Final = 3.0
"""Open answers have this long when the door ends, and requests that are arriving when it is handed over."""
_CUT: Final = b"the HTTP door was started again before the request had arrived; try it again"


class HttpDoorServer:
    """The shell of one door."""

    def __init__(
        self,
        directory: str,
        core: HttpCore,
        limits: HttpLimits,
        max_connections: int,
        *,
        logs: str = "",
        on_held: Callable[[], None] = lambda: None,
        owners: peer_owner.PeerOwners | None = None,
    ) -> None:
        """`logs`: the directory of the logs that operators may read. `on_held` is called after `hold`, once
        all that was sent before has reached the broker. `owners` is closed at the end.
        """
        self.limits = limits
        self.date = b""
        self.body_budget = ClientBudget()
        self.unsent_budget = ClientBudget()
        self.turns = RequestTurns(
            lambda: asyncio.get_running_loop().call_soon(self.turns.run), cpu_s=time.thread_time
        )
        self._directory = directory
        self._logs = logs
        self._lookups: set[asyncio.Task[None]] = set()
        """Work for requests that waits for something beside the broker: files, other nodes."""
        self._core = core
        self._waiting: dict[int, HttpConnection] = {}
        """HTTP requests and the connections that wait for their answers."""
        self._places: ConnectionPlaces[HttpConnection] = ConnectionPlaces(max_connections)
        self._for_operators: set[HttpConnection] = set()
        """Connections beyond the bound: they serve only requests of operators and for `/health`."""
        self._shares = ProcessShares(_share(max_connections), self._refuse, log.warn)
        """Used where the file names no tokens."""
        self._owners = owners or peer_owner.PeerOwners()
        self.looks_first = False
        """The configuration is looked at before the first connection after a pause is served."""
        self.first_connected = asyncio.Event()
        """Set when it is to be looked at now, and then as often as while somebody is connected."""
        self._unlooked: list[HttpConnection] = []
        """Connections that wait until it was looked at."""
        self._refused_clients = RefusedClients()
        self._link: BrokerLink | None = None
        self._clock = SteadyClock()
        """A clock that does not count times in which this process stood still."""
        self._stopping = asyncio.Event()
        self._is_holding = False
        self._on_held = on_held
        self._settle_s: float | None = None
        """How long open calls may take before the handover; None: there is none."""
        self._is_settled = False
        """True once nothing is open any more before the handover: what comes now is for the next door."""
        self._pending = PendingRequests()
        self.linked = asyncio.Event()
        """Set once the broker was connected."""

    # --- the clients' side (see `connection.RequestHandler`) ---

    def client_connected(self, connection: HttpConnection) -> Respond | None:
        is_first = not self._places.open
        if is_first:
            self._set_date()  # nothing has beaten lately
        for each in self._places.opened(connection, needs_token=not self._core.gate.is_open):
            self._shares.connection_closed(each)
            each.abort()
        refused = self._why_refused(connection)
        if refused is not None:
            self._places.refused(connection)
            self.first_connected.set()  # those after it are not the first: let them find the file as it is
        elif (self._unlooked or (is_first and self.looks_first)) and not connection.is_paused:
            self._wait_for_look(connection)
        return refused

    # --- looks at the configuration ---

    @property
    def is_used(self) -> bool:
        """True while any client is connected. Without one the configuration is looked at less often."""
        return bool(self._places.open)

    def _wait_for_look(self, connection: HttpConnection) -> None:
        """Handle no request on this connection before the configuration was looked at: a token may have been
        revoked since. A disk that does not answer holds it up for `_LOOK_FIRST_S`.
        """
        connection.pause_requests()
        if not self._unlooked:
            self.first_connected.set()
            asyncio.get_running_loop().call_later(_LOOK_FIRST_S, self.configuration_read)
        self._unlooked.append(connection)

    def configuration_read(self) -> None:
        """The configuration was looked at: connections that have waited for that go on."""
        unlooked, self._unlooked = self._unlooked, []
        for connection in unlooked:
            connection.resume_requests()

    def _why_refused(self, connection: HttpConnection) -> Respond | None:
        if not self._is_let_in(connection):
            self._core.count_refusal("other_user")
            return Respond(0, 403, _NOT_YOURS, media=_TEXT)
        if self._places.is_full:
            self._places.refused(connection)
            self._for_operators.add(connection)
            return None
        self._shares.connection_opened(connection, len(self._places) - 1)
        return None

    def _refuse(self, connection: HttpConnection) -> None:
        self._places.refused(connection)
        connection.refuse(_TOO_MANY)

    def _shows_token(self, connection: HttpConnection, headers: dict[str, str]) -> bool:
        """Note the principal of a connection. Returns False if that principal has too many."""
        gate = self._core.gate
        principal = gate.principal(headers.get("authorization"))
        if principal is None or self._places.token_shown(connection, principal, gate.principals):
            return True
        return principal == GENERATED_PRINCIPAL  # it is everybody's, and shared out by process

    def _is_let_in(self, connection: HttpConnection) -> bool:
        """Return whether a connection is let in: with `"tokens": false` only processes of this user are."""
        if not self._core.gate.has_one_user:
            return True
        found = self._owners.find(connection.socket)
        if self._core.gate.is_open and not peer_owner.is_ours(found):
            return False
        if found is not None:
            self._shares.connection_noted(connection, found.inode)
        return True

    def principal_of(self, connection: HttpConnection, headers: dict[str, str]) -> str:
        gate = self._core.gate
        if gate.is_open:
            return ANY_PRINCIPAL
        return self._places.owner(connection) or gate.principal(headers.get("authorization")) or NO_PRINCIPAL

    def reader_of(self, headers: dict[str, str]) -> str:
        found = self._core.gate.principal(headers.get("authorization"))
        return NO_PRINCIPAL if found is None else found

    def body_bound(self, connection: HttpConnection, path: str, headers: dict[str, str]) -> int | Respond:
        if self._is_too_many(connection, path):
            return _FULL
        found = self._core.body_bound(path, headers, self.limits.body_bytes)
        if isinstance(found, int):  # a long upload is not cut in favour of connections without a token
            if self._places.is_unknown(connection) and not self._shows_token(connection, headers):
                return Respond(0, 503, _TOO_MANY_OF_TOKEN, media=_TEXT)
            return found
        assert found.answer is not None
        self._note_refused(connection, found.why)
        return found.answer

    def _is_too_many(self, connection: HttpConnection, path: str) -> bool:
        """Return True if this connection is for operators only, and the request is no operator's."""
        if connection not in self._for_operators:
            return False
        if self._places.has_room and not self._shares.has(connection):  # its process may have its share
            self._places.admitted(connection)
            self._for_operators.discard(connection)
            return False
        return path != HEALTH and not path.startswith(OPERATOR_PATH)

    def request_received(self, connection: HttpConnection, request: HttpRequest) -> int:
        x = self._core.next_number()
        self._waiting[x] = connection
        now = self._clock()
        if self._for_operators and self._is_too_many(connection, request.path):
            self._perform([Respond(x, 503, _FULL.body, media=_TEXT)])
            connection.close_after_write()
            return x
        if self._is_last:
            connection.close_after_answer()
        if self._places.is_unknown(connection) and not self._shows_token(connection, request.headers):
            self._perform([Respond(x, 503, _TOO_MANY_OF_TOKEN, media=_TEXT)])
            connection.close_after_write()
            return x
        if (self._link is None or self._is_settled) and not self._is_last:
            until = self._core.waits_until(request.path, request.headers, now)
            if until > now and self._is_holding:
                until = now + HOLD_S
            if until > now and self._may_wait(x, request, until):
                return x
        elif self._link is not None and self._link.is_congested:
            principal = self.principal_of(connection, request.headers)
            if self._link.is_blocked_for(principal):
                self._perform([refusal(x, 503, INTERNAL_ERROR, _TOO_MUCH, Retry_After="1")])
                return x
        if request.path != HEALTH:
            self._perform(self._core.request_received(x, request, now))
            return x
        self._core.set_full(is_full=not self._places.has_room)
        self._perform(self._core.request_received(x, request, now))
        if x in self._waiting:  # the beat may be too late for it
            asyncio.get_running_loop().call_later(HEALTH_S + _MARGIN_S, self._tick)
        return x

    def client_gone(self, x: int) -> None:
        if self._waiting.pop(x, None) is not None and self._pending.remove(x) is None:
            self._perform(self._core.client_gone(x, self._clock()))

    def client_blocked(self, x: int) -> None:
        self._perform(self._core.client_blocked(x, self._clock()))

    def client_has_room(self, x: int) -> None:
        self._perform(self._core.client_has_room(x))

    def connection_closed(self, connection: HttpConnection) -> None:
        self._places.closed(connection)
        self._for_operators.discard(connection)
        self._shares.connection_closed(connection)

    # --- the broker's side ---

    def _broker_connected(self, line: BrokerLink) -> None:
        self._link = line
        self._perform(self._core.broker_connected(self._clock()))
        self.linked.set()
        if not self._is_holding:
            self._release_pending()

    def _line_received(self, line: bytes) -> None:
        effects = self._core.line_received(line, self._clock())
        if effects is None:
            log.warn(
                "the broker sent a line that is no frame; is it another version? Run `carpool restart --all`"
            )
        else:
            self._perform(effects)

    def _broker_lost(self, why: str) -> None:
        if self._link is not None:
            log.warn(why)
        self._link = None
        self._perform(self._core.broker_lost(self._clock()))
        if self._is_last:
            self._stop_waiting_for_broker()

    def _release_pending(self, until: float = float("inf")) -> None:
        """Release requests whose wait for the broker is over, with or without success."""
        for x, request in self._pending.take_due(until):
            if self._is_holding:
                self._perform([self._core.held_refusal(x, request)])
            else:
                self._perform(self._core.request_received(x, request, self._clock()))

    def _stop_waiting_for_broker(self) -> None:
        """Answer requests that wait for the broker, because the door ends without one."""
        self._perform(self._core.broker_given_up(self._clock()))
        self._release_pending()

    # --- the next door ---

    def hold(self, *, sessions_end: bool = True) -> None:
        """Hold requests for the next door from now on. `sessions_end`: the broker ends, too."""
        self._is_holding = True
        self._pending.extend(self._clock() + HOLD_S)
        self._perform(self._core.hold_requests(self._clock(), sessions_end=sessions_end))

    def _hold_request(self, x: int, body: bytes) -> None:
        request = HttpRequest(*self._waiting[x].request_head, body)
        if self._is_last or not self._may_wait(x, request, self._clock() + HOLD_S):
            self._perform([self._core.held_refusal(x, request)])

    def _may_wait(self, x: int, request: HttpRequest, until: float) -> bool:
        # By its own token: a proxy sends requests of many on one connection.
        principal = self._core.gate.principal(request.headers.get("authorization"))
        return self._pending.add(x, request, principal or NO_PRINCIPAL, until)

    @property
    def _is_last(self) -> bool:
        """True if this door ends and no other one follows at its address."""
        return self._stopping.is_set() and self._settle_s is None

    def hand_over(self, settle_s: float, *, sessions_end: bool = True) -> None:
        """End for the next door, which gets the connections. Open calls are answered for so long."""
        self._settle_s = settle_s
        self.hold(sessions_end=sessions_end)
        self._stopping.set()

    async def _settle(self, settle_s: float) -> None:
        """Wait until open calls are answered, and end what listens."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settle_s
        while self._link is not None and self._core.has_open_calls and loop.time() < deadline:  # noqa: ASYNC110 - seldom: not worth an event
            await asyncio.sleep(_LOOK_S)
        self._is_settled = True
        self._perform(self._core.door_ends(self._clock()))

    async def _leave_connections(self) -> list[LeftConnection]:
        """Give up the connections, once no request is arriving and no answer is on its way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GOODBYE_S
        while loop.time() < deadline and not is_settled(self._states().values()):  # noqa: ASYNC110 - seldom and short
            await asyncio.sleep(_LOOK_S)
        requests, states = self._requests(), self._states()
        left: list[LeftConnection] = []
        for connection in leave_order(states.items()):
            x, state = requests.get(connection, 0), states[connection]
            waiting = self._pending.remove(x)
            has_room = len(left) < left_connections.MOST
            found = connection.leave(waiting) if has_room and can_be_left(state) else None
            if found is not None:
                left.append(found._replace(owner=self._places.owner(connection)))
                self._waiting.pop(x, None)
            else:
                self._end_connection(connection, ending_of(state), x, waiting)
        return left

    def _end_connection(
        self, connection: HttpConnection, ending: Ending, x: int, waiting: HttpRequest | None
    ) -> None:
        match ending:
            case "refuse held":
                assert waiting is not None
                connection.close_after_answer()
                self._perform([self._core.held_refusal(x, waiting)])
            case "refuse arriving":
                connection.refuse(Respond(0, 503, _CUT, (("Retry-After", "1"),), _TEXT))
            case "end after answer":
                connection.close_after_answer()
            case "end":
                pass  # as all that are open when the door ends

    def _requests(self) -> dict[HttpConnection, int]:
        return {connection: x for x, connection in self._waiting.items()}

    def _states(self) -> dict[HttpConnection, ConnectionState]:
        requests = self._requests()
        return {
            each: ConnectionState(
                may_be_left=each.may_be_left,
                is_failed=each.is_failed,
                is_arriving=each.is_arriving,
                has_request=each in requests,
                is_held=requests.get(each, 0) in self._pending,
                has_owner=bool(self._places.owner(each)),
            )
            for each in self._places.open
        }

    def _new_link(self) -> BrokerLink:
        line = BrokerLink(lambda: self._broker_connected(line), self._line_received, self._broker_lost)
        return line

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToBroker):
                if self._link is not None:
                    self._link.write(effect.line, effect.principal)
            elif isinstance(effect, RequestsHeld):
                self._on_held()
            elif isinstance(effect, ContinueAnswers):
                asyncio.get_running_loop().call_soon(self._continue_answers)
            elif (connection := self._waiting.get(effect.x)) is not None:
                self._perform_for(effect, connection)

    def _perform_for(self, effect: ClientEffect, connection: HttpConnection) -> None:
        """Do what concerns one client."""
        if isinstance(effect, Respond):
            del self._waiting[effect.x]
            connection.respond(effect.status, effect.body, effect.media, effect.headers)
        elif isinstance(effect, WriteEvents):
            connection.write(effect.data)
        elif isinstance(effect, Refuse):
            self._refuse_client(effect, connection)
        elif isinstance(effect, HoldRequest):
            self._hold_request(effect.x, effect.body)
        elif isinstance(effect, BeginEvents):
            if effect.is_watched:
                connection.watch_reading(effect.x, closely=effect.keeps_little)
            connection.begin_stream(effect.headers)
        elif isinstance(effect, ContinueEvents):
            asyncio.get_running_loop().call_soon(self._continue_events, effect.x)
        elif isinstance(effect, ReadLog):
            self._look_up(self._read_log(effect))
        elif isinstance(effect, AskNodes):
            self._look_up(self._ask_nodes(effect))
        elif isinstance(effect, EndEvents):
            del self._waiting[effect.x]
            connection.end()

    def _continue_events(self, x: int) -> None:
        self._perform(self._core.continue_events(x))

    def _continue_answers(self) -> None:
        self._perform(self._core.continue_answers())

    def _note_refused(self, connection: HttpConnection, why: RefusedWhy) -> Penalty:
        if why not in {"wrong_token", "wrong_code"}:
            return Penalty(0.0, ends=False)
        return self._refused_clients.refused(connection.address, why, self._clock())

    def _refuse_client(self, effect: Refuse, connection: HttpConnection) -> None:
        """Answer a client that may not come in, later if it has shown many wrong tokens."""
        penalty = self._note_refused(connection, effect.why)
        if effect.answer is None:
            return
        if penalty.ends:
            connection.close_after_answer()
        if penalty.delay_s:
            asyncio.get_running_loop().call_later(penalty.delay_s, self._answer_refused, effect.answer)
        else:
            self._perform_for(effect.answer, connection)

    def _answer_refused(self, answer: Respond) -> None:
        self._perform([answer])

    def _report_refused(self, now: float) -> None:
        refused = self._refused_clients.take_report(now)
        if refused:
            log.warn(_refused_text(refused))
            self._perform(self._core.tell_refused(refused, now))

    def _look_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _ask_nodes(self, asked: AskNodes) -> None:
        try:
            told = await asyncio.to_thread(stories_at_nodes, self._directory, asked.crossings, NODE_S)
        except Exception as error:  # noqa: BLE001 - its client waits for an answer, whatever is wrong
            log.warn(f"other nodes could not be asked about a call: {error!r}")
            told = [node_story(each, refused=_NODES_UNASKED) for each in asked.crossings]
        self._perform(self._core.nodes_told(asked, told))

    async def _read_log(self, wanted: ReadLog) -> None:
        try:
            found = await asyncio.to_thread(_read_logs, self._logs, wanted)
        except Exception as error:  # noqa: BLE001 - its client waits for an answer, whatever is wrong
            log.warn(f"a log could not be read: {error!r}")
            self._perform(self._core.log_read_failed(wanted.x))
        else:
            self._perform(self._core.log_read(wanted.x, found))

    # --- the process ---

    async def run(
        self,
        sock: socket.socket,
        on_listening: Callable[[], None],
        earlier: Iterable[LeftConnection] = (),
    ) -> list[LeftConnection]:
        """Serve `sock` until `stop`, and the connections that an earlier door has left. Returns those that
        are left to the next one.
        """
        loop = asyncio.get_running_loop()
        self._owners.open()
        self._beat_once()
        _limit_unsent(sock)
        server = await loop.create_server(
            lambda: HttpConnection(self, self._clock), sock=sock, backlog=BACKLOG
        )
        on_listening()
        for each in earlier:
            await self._continue_connection(each)
        tasks = [
            asyncio.create_task(self._beat()),
            asyncio.create_task(keep_connected(self._directory, self._new_link, log.warn)),
        ]
        await self._stopping.wait()
        left: list[LeftConnection] = []
        if self._is_last:
            for connection in self._waiting.values():
                connection.close_after_answer()
            self._perform(self._core.watchers_end())
        if self._settle_s is not None:
            await self._settle(self._settle_s)
        elif self._link is None:
            self._stop_waiting_for_broker()
        elif self._is_holding:
            self._release_pending()
        server.close()
        self._shares.close()
        await asyncio.sleep(_LOOK_S)  # for what the loop has accepted and not announced, and what has arrived
        if self._settle_s is not None:
            left = await self._leave_connections()
        deadline = loop.time() + _GOODBYE_S
        while self._waiting and loop.time() < deadline:  # noqa: ASYNC110 - seldom and short: not worth an event
            await asyncio.sleep(0.02)
        for connection in self._places.open:
            connection.close_after_write()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._owners.close()
        return left

    async def _continue_connection(self, left: LeftConnection) -> None:
        sock = socket.socket(fileno=left.fd)
        connection = HttpConnection(self, self._clock, left.data)
        gate = self._core.gate
        if left.owner and not gate.is_open and gate.access_key(left.owner) is not None:
            self._places.owner_known(connection, left.owner)  # the earlier door has let it in
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:  # it is closed
            self.connection_closed(connection)
            sock.close()

    def set_gate(self, gate: AccessRules) -> None:
        """Set who may come in from now on; sessions of others are ended, and their connections count for
        nobody. A connection is cut if its client has not read an answer to one of these principals, whichever
        token it has shown first.
        """
        before = self._core.gate
        unread = {each: each.unread_by for each in self._places.open}  # by the rules in force until now
        self._perform(self._core.set_gate(gate, self._clock()))

        def is_shut_out(principal: str) -> bool:
            return gate.access_key(principal) != before.access_key(principal)

        for connection in self._places.open:
            owner = self._places.owner(connection)
            if (owner or before.is_open) and is_shut_out(owner):
                self._places.owner_shut_out(connection)
            if any(map(is_shut_out, unread[connection])):
                connection.abort()
            if not gate.is_open:
                self._places.token_needed(connection)
            if not self._is_let_in(connection):  # it came while tokens were asked for
                connection.close_after_write()

    def set_rules(self, rules: HttpRules, limits: HttpLimits, max_connections: int) -> None:
        """Set new rules and limits while requests are open. What is open beyond a lower limit stays open."""
        self.limits, self._places.most = limits, max_connections
        self._shares.set_most(_share(max_connections))
        self._perform(self._core.set_rules(rules))

    def stop(self) -> None:
        """End, after a short time for open answers."""
        self._stopping.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(until_due(_BEAT_S if self._places.open else IDLE_S))
            self._beat_once()

    def _beat_once(self) -> None:
        now = self._clock()
        self._set_date()
        for connection in self._places.open:
            connection.check_timeout(now)
        self._release_pending(now)
        self._report_refused(now)
        self._perform(self._core.tick(now))

    def _set_date(self) -> None:
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()

    def _tick(self) -> None:
        self._perform(self._core.tick(self._clock()))


def _limit_unsent(listening: socket.socket) -> None:
    """Bound what the system keeps for a client that does not read, on every connection that comes here."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # not told on every system
    if option is not None:
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.IPPROTO_TCP, option, UNSENT_IN_SYSTEM_BYTES)


def _share(max_connections: int) -> int:
    """Return how many connections one process may have."""
    return max(1, max_connections * 3 // 4)


def _refused_text(refused: Sequence[RefusedAddress]) -> str:
    """Return the line of the log about wrong tokens since the last such line."""
    shown = ", ".join(f"{each.times} from {each.address}" for each in refused[:_TOLD_ADDRESSES])
    rest = sum(each.times for each in refused[_TOLD_ADDRESSES:])
    total = sum(each.times for each in refused)
    return f"requests with a wrong token or code: {total} ({shown}{f', {rest} from others' if rest else ''})"


def _read_logs(folder: str, wanted: ReadLog) -> LogsFound:
    """Return the names of all logs, and the records of the one that is wanted."""
    records = last_records(folder, wanted.log, wanted.count) if wanted.log else []
    return LogsFound([*log_files(folder)], None if records is None else [each.as_json() for each in records])


class DoorFile(NamedTuple):
    """The file in which a door tells of itself. Only this user reads it (`launcher.http_door` does)."""

    url: str
    pid: int
    key: str
    """The key of the web page, for `carpool web`."""
    tokens: dict[str, str]
    """The hashes of the tokens in force by name, for verbs that wait for a change. The generated one has no
    name.
    """
    token_file: str
    """The file with the generated token; empty: it lets nobody in."""


def write_url(directory: str, told: DoorFile) -> None:
    """Write down what verbs must know of this door."""
    private_files.replace(paths.door_file(directory), msgspec.json.encode(told._asdict()))
