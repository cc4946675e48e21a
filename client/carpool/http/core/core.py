"""What the door does with a request: the order of the checks, the routes, and the two eras.

Pure: requests, lines of the broker and the time come in, effects go out. The order of the checks is that of
MCP's transports (2025-11-25 and 2026-07-28) and of the conformance suite: where it comes from, who it is, how
it is written, which era, which session, what it says.

Which era a POST is of: that of its body where `params._meta` names a version, else that of its header
`MCP-Protocol-Version`; a header that no handshake-era version is, is taken for the stateless era.

It is long because the order of the checks is one decision: each check is here, and what follows from it
is not.

Knows nothing of: sockets, frames, how answers become streams (`routing`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from carpool.bridge_mark import HEADER
from carpool.http.core import own_requests
from carpool.http.core.access import NO_PRINCIPAL, AccessRules, is_page_visit
from carpool.http.core.body import (
    BATCH_VERSION,
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    SESSION_NOT_FOUND,
    STATELESS_VERSIONS,
    BadBody,
    ClientMessage,
    MetaEnvelope,
    meta_envelope_of,
    read_body,
    unsent_answer,
)
from carpool.http.core.effects import (
    SSE,
    AskNodes,
    Effect,
    HoldRequest,
    HttpRequest,
    HttpRules,
    LogsFound,
    Refuse,
    RefusedWhy,
    RequestsHeld,
    Respond,
    body_refusal,
    refusal,
)
from carpool.http.core.event_streams import EventStreams
from carpool.http.core.headers import (
    MAX_ACCEPT_CHARS,
    VERSION_HEADER,
    accepts,
    is_json,
    standard_mismatch,
)
from carpool.http.core.kept_messages import GREETING, MAX_KEPT_BYTES, READY, REPEATABLE
from carpool.http.core.limits import ASK_FIRST_BYTES, MAX_PARAMETERS
from carpool.http.core.live_streams import LIVE_PATH, LiveStreams
from carpool.http.core.operator_requests import OPERATOR_PATH, OperatorRequests
from carpool.http.core.page_codes import KEY_PATH, PageCodes
from carpool.http.core.pages import AWAY, Pages
from carpool.http.core.pending import PATIENCE_S, RETURN_S
from carpool.http.core.quotas import PrincipalQuotas
from carpool.http.core.refused_clients import RefusedAddress
from carpool.http.core.routing import UNKNOWN_SESSION, ExchangeTable
from carpool.http.core.shared_budgets import SharedBudget
from carpool.http.core.shared_questions import SharedQuestions
from carpool.http.core.sse_2024 import SseTransport
from carpool.http.core.streams import BrokerStream, Endpoint
from carpool.http.core.token_proofs import PROOF_PATH, answer_challenge
from carpool.http.core.tool_calls import HeaderCheckedCalls
from carpool.http.core.trace_header import TRACE_HEADER, with_trace_header
from carpool.http.core.web_page import WebFile, WebPage
from carpool.readings.call_steps import NodeStory
from carpool_protocol.wire.tool_name_resolver import (
    MAX_NAME_CHARS,
    MIN_NAME_CHARS,
    check_name_length,
    check_server_name,
)

HEALTH: Final = "/health"
METRICS: Final = "/metrics"
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""A proxy writes at least one of these (RFC 7239; RFC 9110, 7.6.3). Its own user is not its client's."""
_SHORT: Final = f", in an Accept of at most {MAX_ACCEPT_CHARS} characters"
_MAX_SESSION_ID: Final = 64
_NO_SESSION: Final = "Bad Request: Mcp-Session-Id is missing; initialize first, its answer has the id"
NOT_HELD: Final = "carpool is started again; this request was not delivered, so it is safe to try it again"
DOOR_ENDED: Final = "the HTTP door was started again while this was open; nothing is known of its outcome"
_NAME_IT: Final = "name one of them in the URL, `?workspace=NAME`"
_FOR_OPERATORS: Final = "this token is an operator's; agents need a token without `operator`"
_METRICS_NEED: Final = (
    "metrics are about all agents, so they need an operator's token; "
    "`carpool token add NAME --operator read` makes one"
)
_UNAUTHORIZED_STATUS: Final = 401
_UNAUTHORIZED: Final = (
    "a bearer token is needed that this door knows and that has not expired; `carpool token show` shows the "
    "one that carpool has made, `carpool token add NAME` makes another"
)
MAX_AUDITED: Final = 100
"""At most so many addresses with wrong tokens get a line in the audit each minute."""
_NO_META: Final = (
    "Invalid params: params._meta must have io.modelcontextprotocol/protocolVersion (text) and "
    "io.modelcontextprotocol/clientCapabilities (an object)"
)


class _Objection(NamedTuple):
    """Why a client may not come in, and the answer to it."""

    why: RefusedWhy
    status: int
    text: str


class HttpCore:
    """The door's decisions. Every method returns the effects, in order."""

    def __init__(
        self,
        rules: HttpRules,
        gate: AccessRules,
        first: int = 0,
        heir_s: float = 0.0,
        *,
        patience_s: float = PATIENCE_S,
        web_files: Mapping[str, WebFile] | None = None,
        cpu_s: Callable[[], float] = lambda: 0.0,
        page_codes: PageCodes | None = None,
    ) -> None:
        """`first`: no door before this one gave an HTTP request so high a number. `heir_s`: so long after the
        broker is there it may know sessions of such a door. `patience_s`: so long requests wait for the first
        broker. `web_files`: those of the web page. `cpu_s`: the time that the door has worked so far.
        `page_codes`: those for the key of the web page; None: there is no key.
        """
        self._patience_s = patience_s
        self._sessions_end = False
        """While requests are held: sessions end before the next door."""
        self.rules = rules
        self.gate = gate
        self._heir_s = heir_s
        self._heir_until = float("-inf")
        self._out: list[Effect] = []
        self._quotas = PrincipalQuotas(rules)
        self._quotas.share_sessions(gate.agent_principals)
        self._events = EventStreams(self._out)
        self._table = ExchangeTable(
            rules,
            self._quotas,
            self._events,
            budget=SharedBudget(MAX_KEPT_BYTES),
            out=self._out,
            first=first,
            workspaces_of=self._workspaces_of,
        )
        self._calls = HeaderCheckedCalls(self._table, self._quotas)
        self._questions = SharedQuestions(self._out)
        self._pages = Pages(self._table, self._questions)
        self._operator_requests = OperatorRequests(self._table, self._questions)
        self._live = LiveStreams(self._table, cpu_s)
        self._web_page = WebPage(web_files or {})
        self._page_codes = page_codes or PageCodes()
        self._sse_transport = SseTransport(self._table, self._events, self._quotas)
        self._linked = False
        self._return_by: float | None = None
        """The broker has died, and another one must come by this time."""

    def _workspaces_of(self, principal: str) -> Sequence[str]:
        return self.gate.workspaces_of(principal)  # of the gate that is there by then

    def next_number(self) -> int:
        """Return the number for the next HTTP request."""
        return self._table.next_number()

    @property
    def sessions(self) -> int:
        """The number of open sessions of the handshake era."""
        return self._quotas.session_count

    def broker_connected(self, now: float) -> list[Effect]:
        """The broker takes frames."""
        self._linked, self._return_by = True, None
        if self._heir_until == float("-inf"):
            self._heir_until = now + self._heir_s
        self._table.broker_connected()
        return self._take_effects()

    def broker_lost(self, now: float) -> list[Effect]:
        """The broker is gone. Open requests wait for the next one."""
        if self._linked:
            self._linked, self._return_by = False, now + RETURN_S
            self._heir_until = now  # what that broker knew of other doors, the next one does not
            self._table.broker_lost(now)
            self._live.broker_lost()
            self._pages.broker_lost()
        return self._take_effects()

    def broker_given_up(self, now: float) -> list[Effect]:
        """No other broker is awaited."""
        self._return_by = None
        self._patience_s = PATIENCE_S
        self._table.end_all(now)
        return self._take_effects()

    def hold_requests(self, now: float, *, sessions_end: bool = True) -> list[Effect]:
        """From now on, hold every request for the next door that no server has. `sessions_end`: those of a
        session are refused instead, because the broker ends, and the session with it. `RequestsHeld` says
        when all that was sent before has reached the broker, also to a second asker.
        """
        self._sessions_end |= sessions_end
        self._table.is_holding = True
        if not self._linked:
            return [RequestsHeld()]

        def reached(_: Any, _now: float) -> None:
            self._out.append(RequestsHeld())

        # The broker reads what the door sends in order, so its answer shows that it has read all before it.
        stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
        self._table.start_own_request(
            self.next_number(), stream, own_requests.ask_broker("ping", {}), reached, now, is_repeatable=False
        )
        return self._take_effects()

    def held_refusal(self, x: int, request: HttpRequest) -> Respond:
        """Return the answer to a request that cannot be held, or no longer."""
        body = read_body(request.body) if request.method == "POST" else []
        ident = b"null" if isinstance(body, list) else body.id or b"null"
        return refusal(x, 503, INTERNAL_ERROR, NOT_HELD, ident, Retry_After="1")

    @property
    def has_open_calls(self) -> bool:
        """True if clients wait for answers of the broker."""
        return self._table.has_open_calls()

    def door_ends(self, now: float) -> list[Effect]:
        """The door ends and another one follows: end what is still open."""
        self._live.end_all()
        self._table.end_all(now, DOOR_ENDED)
        return self._take_effects()

    def watchers_end(self) -> list[Effect]:
        """The door ends and no other one follows: nobody watches any more, while open calls are answered."""
        self._live.end_all()
        return self._take_effects()

    def waits_until(self, path: str, headers: dict[str, str], now: float) -> float:
        """Return how long an HTTP request may wait while the broker is not connected. A client that may not
        come in hears it at once, and takes no room from others.
        """
        if path in {HEALTH, PROOF_PATH} or self._page_codes.has(path):
            return now
        who = self._access_of(path, headers)
        if not isinstance(who, str) or who == NO_PRINCIPAL:
            return now
        if self._return_by is None:
            return now + self._patience_s
        return self._return_by

    def line_received(self, line: bytes, now: float) -> list[Effect] | None:
        """Handle a line of the broker, without its end. Returns None if it is no frame."""
        return self._take_effects() if self._table.line_received(line, now) else None

    def set_gate(self, gate: AccessRules, now: float) -> list[Effect]:
        """Set who may come in from now on. Requests and sessions of others are ended."""
        before, self.gate = self.gate, gate
        self._quotas.share_sessions(gate.agent_principals)

        def stays(who: str) -> bool:
            return gate.access_key(who) == before.access_key(who)

        self._table.end_principals(stays, now)
        self._live.end_principals(stays)
        return self._take_effects()

    def set_rules(self, rules: HttpRules) -> list[Effect]:
        """Set other bounds while requests are open. `path`, `stateless` and `json_response` must stay."""
        self.rules = rules
        self._quotas.set_rules(rules)
        self._table.set_rules(rules)
        return self._take_effects()

    def set_cluster(self, cluster: Mapping[str, Any] | None) -> None:
        """Set what is shown of the cluster: the section `cluster` of `carpool status --json`."""
        self._operator_requests.cluster = self._live.cluster = self._pages.cluster = cluster

    def set_full(self, *, is_full: bool) -> None:
        """Set if the door has all its connections, which `/health` says."""
        self._pages.is_full = is_full

    def body_bound(self, path: str, headers: dict[str, str], most: int) -> int | Refuse:
        """Return how long the body of a request may be, or the refusal of a client that may not send one.
        `most`: the bound where a token is asked for. At paths without a token the bound is `ASK_FIRST_BYTES`,
        also for clients that show one.
        """
        who = self._principal_or_refusal(0, path, headers)
        if isinstance(who, Refuse):
            return who
        return min(most, ASK_FIRST_BYTES) if self._is_free(path) else most

    def count_refusal(self, why: RefusedWhy) -> None:
        """Count a client that was refused."""
        self._pages.refused[why] += 1

    def tell_refused(self, refused: Sequence[RefusedAddress], now: float) -> list[Effect]:
        """Have the broker write into the audit from where wrong tokens came."""
        if self._linked:
            rows = [each._asdict() for each in refused[:MAX_AUDITED]]
            stream = self._table.shared_stream("control", ("", "", "", "", 0), now)
            dialogue = own_requests.ask_broker("carpool/refused_clients", {"refused": rows})
            x = self.next_number()
            self._table.start_own_request(x, stream, dialogue, lambda *_: None, now, is_repeatable=False)
        return self._take_effects()

    def client_gone(self, x: int, now: float) -> list[Effect]:
        """The client of a request disconnected before its answer was complete."""
        self._questions.client_gone(x)
        if not self._live.client_gone(x):
            self._table.client_gone(x, now)
        return self._take_effects()

    def client_blocked(self, x: int, now: float) -> list[Effect]:
        """The client of a watched stream leaves events unread."""
        self._live.client_blocked(x, now)
        self._events.client_blocked(x)
        return self._take_effects()

    def client_has_room(self, x: int) -> list[Effect]:
        """The client of a watched stream has read all events."""
        self._live.client_has_room(x)
        self._events.client_has_room(x)
        return self._take_effects()

    def continue_events(self, x: int) -> list[Effect]:
        """Others have had their turn since the last events of this stream."""
        self._events.continue_events(x)
        return self._take_effects()

    def continue_answers(self) -> list[Effect]:
        """Others have had their turn since the last shared answers were sent."""
        self._questions.continue_answers()
        return self._take_effects()

    def log_read(self, x: int, found: LogsFound) -> list[Effect]:
        """A log was read for a request."""
        self._operator_requests.log_read(x, found)
        return self._take_effects()

    def log_read_failed(self, x: int) -> list[Effect]:
        """A log could not be read for a request."""
        self._operator_requests.log_read_failed(x)
        return self._take_effects()

    def nodes_told(self, asked: AskNodes, stories: Sequence[NodeStory]) -> list[Effect]:
        """Other nodes have told what happened to a call there."""
        self._operator_requests.nodes_told(asked, stories)
        return self._take_effects()

    def tick(self, now: float) -> list[Effect]:
        """Handle the passing of time; to be called at each beat of the door: 1 s, longer without clients."""
        if self._return_by is not None and now >= self._return_by:
            return self.broker_given_up(now)
        self._table.tick(now)
        self._calls.tick(now)
        self._live.tick(now, linked=self._linked)
        return self._take_effects()

    def request_received(self, x: int, request: HttpRequest, now: float) -> list[Effect]:
        """Handle an HTTP request that is complete and within the limits."""
        answer = self._route(x, request, now)
        if answer is not None:
            self._out.append(answer)
        return self._take_effects()

    def check(self) -> None:
        """Assert every invariant."""
        self._table.check()
        self._live.check()
        self._questions.check()
        self._page_codes.check()

    def _take_effects(self) -> list[Effect]:
        out = self._out[:]
        self._out.clear()
        return out

    # --- routes ---

    def _principal_or_refusal(self, x: int, path: str, headers: dict[str, str]) -> str | Refuse:
        """Return the principal of this request, or its refusal, which is counted."""
        found = self._access_of(path, headers)
        if isinstance(found, str):
            return found
        self.count_refusal(found.why)
        if found.status == _UNAUTHORIZED_STATUS:
            return Refuse(x, found.why, _unauthorized(x))
        return Refuse(x, found.why, refusal(x, found.status, INVALID_REQUEST, found.text))

    def _access_of(self, path: str, headers: dict[str, str]) -> str | _Objection:
        """Return the principal of a request with these headers, or why it may not come in."""
        if not self.gate.host_allowed(headers.get("host")):
            text = "this door does not answer to that Host; see `http.hosts` in `carpool docs settings`"
            return _Objection("host", 421, text)
        is_from_here = self.gate.origin_allowed(headers.get("origin"), headers.get("sec-fetch-site"))
        if not is_from_here and not (self._is_web_file(path) and is_page_visit(headers)):
            text = "pages of that Origin may not ask here; see `http.origins` in `carpool docs settings`"
            return _Objection("origin", 403, text)
        if self.gate.is_own_bridge(headers.get(HEADER)):
            text = "this is carpool's own HTTP door, so none of its servers may lead here: mend their `url`"
            return _Objection("own_bridge", 508, text)
        if self.gate.is_open and not headers.keys().isdisjoint(_FORWARDED):
            text = (
                "this door needs no token, so it serves local processes only, and this request came through "
                "a proxy; make a token with `carpool token add NAME`"
            )
            return _Objection("proxied", 403, text)
        principal = self.gate.principal(headers.get("authorization"))
        if principal is not None:
            return principal
        if self._is_free(path):
            return NO_PRINCIPAL
        why: RefusedWhy = "wrong_token" if "authorization" in headers else "no_token"
        return _Objection(why, _UNAUTHORIZED_STATUS, _UNAUTHORIZED)

    def _is_free(self, path: str) -> bool:
        """True if no token is asked for there."""
        return path in {HEALTH, KEY_PATH, PROOF_PATH} or self._is_web_file(path)

    def _route(self, x: int, request: HttpRequest, now: float) -> Respond | Refuse | None:
        path = request.path
        principal = self._principal_or_refusal(x, path, request.headers)
        if isinstance(principal, Refuse):
            return principal
        if self._is_web_file(path):
            self._note_wrong_token(x, request, principal)
            return self._web_page.answer(x, request)
        if path in {HEALTH, METRICS}:
            self._note_wrong_token(x, request, principal)
            return self._page_about_all(x, request, principal, now)
        if self._page_codes.has(path) or path == PROOF_PATH:
            self._note_wrong_token(x, request, principal)
            return self._secret_answer(x, request, principal, now)
        right = self.gate.operator_right(principal)
        if path.startswith(OPERATOR_PATH):
            right = right or self.gate.browser_right(principal, request.headers)
            if path == LIVE_PATH and right:
                return self._live.watch(x, request, principal, right, now, linked=self._linked)
            return self._operator_requests.answer(x, request, principal, right, now, linked=self._linked)
        if right:
            return refusal(x, 403, INVALID_REQUEST, _FOR_OPERATORS)
        return self._route_of_agent(x, request, principal, now)

    def _secret_answer(self, x: int, request: HttpRequest, principal: str, now: float) -> Respond | Refuse:
        """Answer a request that shows a code, or asks for the proof of a token."""
        if request.path == PROOF_PATH:
            answer = answer_challenge(x, request, self.gate.token_hashes)
        else:
            answer = self._page_codes.answer(x, request, principal, now)
        if answer.status not in {401, 403} or request.path not in {KEY_PATH, PROOF_PATH}:
            return answer
        self.count_refusal("wrong_code")
        return Refuse(x, "wrong_code", answer)

    def _note_wrong_token(self, x: int, request: HttpRequest, principal: str) -> None:
        """Note a wrong token where none is needed: the answer tells whether it was right."""
        if principal == NO_PRINCIPAL and "authorization" in request.headers:
            self.count_refusal("wrong_token")
            self._out.append(Refuse(x, "wrong_token", None))

    def _is_web_file(self, path: str) -> bool:
        return path != self.rules.path and self._web_page.has(path)

    def _route_of_agent(self, x: int, request: HttpRequest, principal: str, now: float) -> Respond | None:
        path = request.path
        own = self.gate.profile_of(principal)
        try:
            query = parse_qs(request.query, max_num_fields=MAX_PARAMETERS) if request.query else {}
        except ValueError:
            return refusal(x, 400, INVALID_REQUEST, f"the URL has more than {MAX_PARAMETERS} parameters")
        workspace = query.get("workspace", [""])[0]
        length = _name_length(query.get("tool-name-length", ["0"])[0])
        if length is None:
            text = f"tool-name-length is a number from {MIN_NAME_CHARS} to {MAX_NAME_CHARS}"
            return refusal(x, 400, INVALID_REQUEST, text)
        bound_to = self.gate.workspaces_of(principal) if self.gate.binds_workspaces else ()
        if bound_to and path != "/messages":
            workspace = workspace or (bound_to[0] if len(bound_to) == 1 else "")
            if workspace not in bound_to:
                names = ", ".join(bound_to)
                text = f"the token of this request is for these workspaces only: {names}; {_NAME_IT}"
                return refusal(x, 403, INVALID_REQUEST, text)
        everything = (principal, "", own, workspace, length)
        if path == self.rules.path:
            return self._endpoint(x, request, everything, now)
        if path == f"{self.rules.path}/tools":
            return self._pages.tools(x, request, everything, now, linked=self._linked)
        if path == "/sse" and request.method == "GET":
            return self._sse_transport.stream(x, everything, now, linked=self._linked)
        if path == "/messages" and request.method == "POST":
            return self._sse_transport.post(x, request, query.get("session", [""])[0], principal, now)
        inner = path.removeprefix(self.rules.path + "/").split("/")
        if path.startswith(self.rules.path + "/") and len(inner) == 2 and inner[0] in {"s", "p"}:
            name = unquote(inner[1])
            if name and check_server_name(name) is None:
                server, profile = (name, own) if inner[0] == "s" else ("", name)
                if own and profile != own:
                    text = f"the token of this request has the profile {own}, and no other"
                    return refusal(x, 403, INVALID_REQUEST, text)
                return self._endpoint(x, request, (principal, server, profile, workspace, length), now)
        return refusal(x, 404, INVALID_REQUEST, f"nothing is here; MCP is at {self.rules.path}")

    def _page_about_all(self, x: int, request: HttpRequest, principal: str, now: float) -> Respond | None:
        """Answer a page that names every server: a client that may see only some servers may not read it."""
        if request.path == HEALTH:
            known = self.gate.sees_all(principal)
            return self._pages.health(x, request, now, known=known, linked=self._linked)
        if not self.gate.has_one_user and not self.gate.operator_right(principal):
            return refusal(x, 403, INVALID_REQUEST, _METRICS_NEED)
        return self._pages.metrics(x, request, now, linked=self._linked)

    def _endpoint(self, x: int, request: HttpRequest, endpoint: Endpoint, now: float) -> Respond | None:
        if request.method == "POST":
            return self._post(x, request, endpoint, now)
        if request.method not in {"GET", "DELETE"}:
            return refusal(x, 405, INVALID_REQUEST, "POST, GET and DELETE only", Allow="GET, POST, DELETE")
        version = request.headers.get(VERSION_HEADER)
        if version in STATELESS_VERSIONS or self.rules.stateless:
            return refusal(x, 405, INVALID_REQUEST, "POST only: there are no sessions here", Allow="POST")
        if version is not None and version not in HANDSHAKE_VERSIONS:
            return refusal(x, 400, INVALID_REQUEST, "Bad Request: unsupported MCP-Protocol-Version")
        if request.method == "GET" and not accepts(request.headers.get("accept"), (SSE,)):
            return refusal(x, 406, INVALID_REQUEST, f"Not Acceptable: GET is for text/event-stream{_SHORT}")
        found = self._session(x, request, endpoint, b"null", now)
        if found is None or isinstance(found, Respond):
            return found
        if request.method == "DELETE":
            self._table.close(found, 404, SESSION_NOT_FOUND, "the session was ended by its client", now)
            return Respond(x, 200)
        last = request.headers.get("last-event-id")
        if last is None:
            self._events.listen(x, found)
            return None
        exchange, dash, number = last.partition("-")
        known = dash and exchange.isdecimal() and number.isdecimal() and len(last) <= 40
        if not known or not self._events.resume(x, found, int(exchange), int(number)):
            text = "Bad Request: that event is not kept here (any more); ask again without Last-Event-ID"
            return refusal(x, 400, INVALID_REQUEST, text)
        return None

    def _session(
        self, x: int, request: HttpRequest, endpoint: Endpoint, ident: bytes, now: float
    ) -> BrokerStream | Respond | None:
        """Return the session of a request. None: the request waits until the broker has told whether an
        earlier door had it.
        """
        told = request.headers.get("mcp-session-id")
        if not told:
            return refusal(x, 400, INVALID_REQUEST, _NO_SESSION, ident)
        stream = self._table.sessions.get(told)
        if stream is None and self._may_be_known(told, endpoint, now):
            return self._table.seek_session(
                x,
                told,
                endpoint,
                lambda now: self._session_found(x, request, endpoint, now),
                now,
                ident=ident,
                size=len(request.body),
            )
        if stream is None or stream.endpoint != endpoint or stream.sort != "session":
            return refusal(x, 404, SESSION_NOT_FOUND, UNKNOWN_SESSION, ident)
        return stream

    def _may_be_known(self, told: str, endpoint: Endpoint, now: float) -> bool:
        if not self._linked or now >= self._heir_until or len(told) > _MAX_SESSION_ID:
            return False
        return not self._quotas.has_no_room(endpoint[0]) and not self._quotas.is_at_limit(endpoint[0])

    def _session_found(self, x: int, request: HttpRequest, endpoint: Endpoint, now: float) -> None:
        answer = self._endpoint(x, request, endpoint, now)
        if answer is not None:
            self._out.append(answer)

    # --- POST ---

    def _post(self, x: int, request: HttpRequest, endpoint: Endpoint, now: float) -> Respond | None:
        headers = request.headers
        if not is_json(headers.get("content-type")):
            return refusal(x, 415, INVALID_REQUEST, "Unsupported Media Type: POST application/json")
        needed = ("application/json",) if self.rules.json_response else ("application/json", SSE)
        if not accepts(headers.get("accept"), needed):
            text = f"Not Acceptable: Accept must have application/json and text/event-stream{_SHORT}"
            return refusal(x, 406, INVALID_REQUEST, text)
        body = read_body(request.body)
        if isinstance(body, BadBody):
            return body_refusal(x, body)
        if not self._linked:
            ident = b"null" if isinstance(body, list) else body.id
            return refusal(x, 503, INTERNAL_ERROR, AWAY, ident, Retry_After="1")
        told = headers.get(VERSION_HEADER)
        stateless = told is not None and told not in HANDSHAKE_VERSIONS
        if isinstance(body, list):
            if stateless:
                return refusal(x, 400, INVALID_REQUEST, "Invalid Request: one message in each POST")
            return self._batch(x, request, body, endpoint, now)
        body = with_trace_header(body, headers.get(TRACE_HEADER))
        envelope = meta_envelope_of(body)
        if stateless or envelope.version is not None:
            return self._stateless(x, request, body, endpoint, now, envelope=envelope)
        return self._handshake(x, request, body, endpoint, now)

    def _handshake(
        self, x: int, request: HttpRequest, message: ClientMessage, endpoint: Endpoint, now: float
    ) -> Respond | None:
        begins = message.sort == "request" and message.method == "initialize"
        if self.rules.stateless:
            return self._sessionless_post(x, request, message, endpoint, now, begins=begins)
        if begins and "mcp-session-id" not in request.headers:
            crowded = self._limit_refusal(x, message, endpoint)
            if crowded is not None:
                return crowded
            if not self._table.make_room(endpoint[0], now):
                return self._table.no_room(x, message.id or b"null")
            if self._table.is_holding:
                self._hold(x, request)
                return None
            found: BrokerStream | Respond | None = self._table.open_stream("session", endpoint, now)
        else:
            found = self._session(x, request, endpoint, message.id or b"null", now)
        if found is None or isinstance(found, Respond):
            return found
        if message.sort == "request":
            if self._table.is_holding and not self._sessions_end:
                self._hold(x, request)
                return None
            if self._table.is_holding and message.method not in REPEATABLE:
                return Respond(x, 200, unsent_answer(message))
            crowded = self._limit_refusal(x, message, endpoint)
            if crowded is None:
                self._open(x, found, message, now)
            return crowded
        self._table.forward_message(found, message, now)
        return Respond(x, 202)

    def _batch(
        self, x: int, request: HttpRequest, messages: list[ClientMessage], endpoint: Endpoint, now: float
    ) -> Respond | None:
        if self.rules.stateless:
            return refusal(x, 400, INVALID_REQUEST, "Invalid Request: one message in each POST")
        found = self._session(x, request, endpoint, b"null", now)
        if found is None or isinstance(found, Respond):
            return found
        if found.version != BATCH_VERSION:
            text = f"Invalid Request: arrays of messages are for version {BATCH_VERSION} only"
            return refusal(x, 400, INVALID_REQUEST, text)
        if any(each.method == "initialize" for each in messages):
            return refusal(x, 400, INVALID_REQUEST, "Invalid Request: initialize goes alone")
        requests = [each for each in messages if each.sort == "request"]
        if requests and not self._quotas.has_room_for(endpoint[0], len(requests)):
            return self._too_many_open(x, requests[0])
        for each in messages:
            if each.sort != "request":
                self._table.forward_message(found, each, now)
        if not requests:
            return Respond(x, 202)
        if self._table.is_holding and not self._sessions_end:
            self._out.append(HoldRequest(x, _array(each.line for each in requests)))
            return None
        if self._table.is_holding and any(each.method not in REPEATABLE for each in requests):
            return Respond(x, 200, _array(map(unsent_answer, requests)))
        self._table.open_exchange(x, found, requests, now, array=True)
        return None

    def _sessionless_post(
        self,
        x: int,
        request: HttpRequest,
        message: ClientMessage,
        endpoint: Endpoint,
        now: float,
        *,
        begins: bool,
    ) -> Respond | None:
        """Handle a POST of the handshake era without a session: it gets one of its own, as long
        as it takes.
        """
        if message.sort != "request":
            return Respond(x, 202)
        crowded = self._limit_refusal(x, message, endpoint)
        if crowded is not None:
            return crowded
        if self._table.is_holding:
            self._hold(x, request)
            return None
        if begins:
            self._open(x, self._table.open_stream("once", endpoint, now), message, now)
            return None
        size = len(message.line) + len(message.params)
        refused = self._table.hold_request(x, endpoint[0], size, ident=message.id)
        if refused is not None:
            return refused
        stream = self._table.open_stream("once", endpoint, now)
        version = request.headers.get(VERSION_HEADER, BATCH_VERSION)

        def greeted(good: Any, now: float) -> None:
            self._quotas.release_request(x)
            if good:
                stream.kept.set_slot(GREETING, own_requests.initialize_request(version).line(1))
                stream.kept.set_slot(READY, own_requests.INITIALIZED)
                self._table.send_to_broker(stream, own_requests.INITIALIZED)
                self._open(x, stream, message, now)
            elif stream.refused:
                self._out.append(refusal(x, 404, INVALID_REQUEST, stream.refused, message.id))
            else:
                self._out.append(refusal(x, 502, INTERNAL_ERROR, AWAY, message.id))
                self._table.close(stream, 502, INTERNAL_ERROR, AWAY, now)

        self._table.start_own_request(x, stream, own_requests.greet(version), greeted, now)
        return None

    def _stateless(
        self,
        x: int,
        request: HttpRequest,
        message: ClientMessage,
        endpoint: Endpoint,
        now: float,
        *,
        envelope: MetaEnvelope,
    ) -> Respond | None:
        ident = message.id or b"null"
        if message.sort == "answer":
            text = "Invalid Request: clients of this version send no answers"
            return refusal(x, 400, INVALID_REQUEST, text, ident)
        if envelope.version is None or not envelope.complete:
            return refusal(x, 400, INVALID_PARAMS, _NO_META, ident)
        wrong = standard_mismatch(request.headers, envelope.version, message)
        if wrong:
            return refusal(x, 400, HEADER_MISMATCH, wrong, ident)
        if message.sort == "notification":
            return Respond(x, 202)  # the only one there is, `notifications/cancelled`, is for stdio
        if message.method != "subscriptions/listen":
            crowded = self._limit_refusal(x, message, endpoint)
            if crowded is not None:
                return crowded
        if self._table.is_holding:
            self._hold(x, request)
            return None
        stream = self._table.stateless_stream(endpoint, now)
        if stream is None:
            return self._table.no_room(x, message.id or b"null")
        if message.method == "tools/call":
            return self._calls.handle_call(x, request, message, stream, now)
        self._open(x, stream, message, now)
        return None

    def _hold(self, x: int, request: HttpRequest) -> None:
        """Keep a request for the next door."""
        self._out.append(HoldRequest(x, request.body))

    def _open(self, x: int, stream: BrokerStream, message: ClientMessage, now: float) -> None:
        self._table.open_exchange(x, stream, [message], now)

    def _limit_refusal(self, x: int, message: ClientMessage, endpoint: Endpoint) -> Respond | None:
        if not self._quotas.is_at_limit(endpoint[0]):
            return None
        return self._too_many_open(x, message)

    def _too_many_open(self, x: int, message: ClientMessage) -> Respond:
        text, ident = self._table.limit_text(), message.id or b"null"
        return refusal(x, 429, INTERNAL_ERROR, text, ident, Retry_After="1")


def _unauthorized(x: int) -> Respond:
    return refusal(x, 401, INVALID_REQUEST, _UNAUTHORIZED, WWW_Authenticate='Bearer realm="carpool"')


def _array(lines: Iterable[bytes]) -> bytes:
    """Return these messages as one JSON array."""
    return b"[%b]" % b",".join(lines)


def _name_length(said: str) -> int | None:
    """Return the bound on the length of names in the URL; 0 if it has none, None if it is invalid."""
    length = int(said) if said.isascii() and said.isdecimal() and len(said) <= 3 else -1
    return length if not length or check_name_length(length) is None else None
