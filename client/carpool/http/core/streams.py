"""What is open between HTTP clients and the broker: streams (sessions) and exchanges (requests).

Plain records; `routing` changes them. A stream is the broker's session, an exchange is one POST that waits,
an own request is a question of the door itself.

Knows nothing of: HTTP, frames, when anything ends.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, Literal

from carpool.http.core.body import ClientMessage
from carpool.http.core.headers import Annotated
from carpool.http.core.kept_messages import KeptMessages
from carpool.http.core.own_requests import OwnQuestion
from carpool.open_requests import OpenRequests
from carpool_protocol.carrier.attach_line import WorkspaceChanged
from carpool_protocol.carrier.streams import Kind

StreamSort = Literal["session", "shared", "control", "once", "sse"]
"""`session`, `shared` and `control` are the broker's. `once`: a session for one POST (`http.stateless`).
`sse`: one of the transport of 2024-11-05, all of whose messages go to one GET.
"""

Dialogue = Generator[OwnQuestion, bytes, Any]
"""Questions of the door itself: yields one, is sent its answer, returns what was found."""

Endpoint = tuple[str, str, str, str, int]
"""Principal, server (empty: all), profile and workspace, as the URL names them (empty: none), and the bound
on the length of names that it says (0: none).
"""


OWN_QUESTION_S: Final = 10.0
"""For a request of the door itself where its asker names no other time."""
LISTEN: Final = "subscriptions/listen"


class _OpenRequest:
    """What is at the broker and not over, and what a later broker must hear of it."""

    __slots__ = ("lines", "listen_acknowledgement", "opened_at", "stream", "x")

    def __init__(self, x: int, stream: "BrokerStream", now: float) -> None:
        self.x = x
        self.stream = stream
        self.opened_at = now
        self.lines = OpenRequests(stream.answered)
        """Requests that are neither answered nor cancelled, for a later broker; empty where there was no
        room for one.
        """
        self.listen_acknowledgement: bytes | None = None
        """It is a listen, and this has acknowledged it; empty where there was no room for that."""


class Exchange(_OpenRequest):
    """A request of a client, or an array of them. The answer is JSON until it `has_begun` as a stream of
    events: one record has both, because that happens while it is open.
    """

    __slots__ = (
        "answers",
        "ask_answers",
        "counted",
        "has_begun",
        "ids",
        "is_batch",
        "method",
        "number",
        "sink",
    )

    def __init__(
        self,
        x: int,
        stream: "BrokerStream",
        requests: list[ClientMessage],
        now: float,
        *,
        array: bool = False,
    ) -> None:
        super().__init__(x, stream, now)
        self.ids = [each.id for each in requests]
        """Of its requests whose answers are still to come, as written."""
        self.is_batch = array
        self.method = "" if array else requests[0].method
        self.counted = 1
        """So many requests of it count against `Rules.max_open`."""
        if array:
            self.counted = len(requests)
        elif self.method == LISTEN:
            self.counted = 0
        self.sink = x
        """The HTTP request its events go to; 0: the client is away."""
        self.ask_answers: tuple[bytes, ...] = ()
        """What its client answered to its questions."""
        self.answers: list[bytes] = []
        """Of a JSON answer, so far."""
        self.has_begun = False
        """It is answered with a stream of events."""
        self.number = 0
        """Of the last event."""

    @property
    def is_listen(self) -> bool:
        """It stays open for news."""
        return self.method == LISTEN

    def request_answered(self, ident: bytes) -> bool:
        """One answer more is there. Returns False if it is to a request of an array that its client has
        cancelled. (One without an id is to a line that the broker could not read, and counts for the first.)
        """
        if ident in self.ids:
            self.ids.remove(ident)
            return True
        if self.is_batch and ident != b"null":
            return False
        del self.ids[0]
        return True


class OwnRequest(_OpenRequest):
    """A dialogue of the door itself with the broker."""

    __slots__ = ("dialogue", "is_listen", "is_repeatable", "is_wanted", "limit_s", "on_result")

    def __init__(
        self,
        x: int,
        stream: "BrokerStream",
        dialogue: Dialogue,
        on_result: Callable[[Any, float], None],
        now: float,
        *,
        is_listen: bool = False,
        is_repeatable: bool = True,
        limit_s: float = OWN_QUESTION_S,
    ) -> None:
        super().__init__(x, stream, now)
        self.dialogue = dialogue
        self.on_result = on_result
        """Gets what the dialogue found; `None` where it failed."""
        self.is_listen = is_listen
        """It stays open for news."""
        self.is_repeatable = is_repeatable
        """False: it may have changed something, so no later broker gets it again."""
        self.limit_s = limit_s
        """It is given up after this long."""
        self.is_wanted = True
        """False: its HTTP client has gone."""


class BrokerStream:
    """A session of the broker that this door has open."""

    def __init__(self, s: int, sort: StreamSort, endpoint: Endpoint, kept: KeptMessages, now: float) -> None:
        self.s = s
        self.sort = sort
        self.endpoint = endpoint
        self.kept = kept
        """What makes it the session that it is."""
        self.room = kept.room
        """For all that is kept of it for a later broker."""
        self.session = ""
        """Its `Mcp-Session-Id`, or what stands for it; empty until it is `opened`. Its client's for good."""
        self.name = ""
        """What the broker calls it; empty until it is `opened`."""
        self.secret = ""
        """What resumes it at a later broker."""
        self.moved: WorkspaceChanged | None = None
        """In which workspace it is, if that is not the one that its URL names."""
        self.stateful: list[str] = []
        """Servers where it may have state."""
        self.epoch = ""
        """Of the supervisor that serves it."""
        self.answered: dict[int, None] = {}
        """Hashes of the ids of its requests that had an answer not long ago (`unanswered`)."""
        self.detached_requests = OpenRequests(self.answered)
        """Requests that are not answered and are of no exchange (any more)."""
        self.detached_counted = 0
        """So many of them count against `Rules.max_open`: all, but while their record changes."""
        self.asks: dict[bytes, int] = {}
        """Questions that its client has not answered, by id as written: the exchange, or 0."""
        self.detached_ask_answers: tuple[bytes, ...] = ()
        """What its client answered to those of no exchange, while anything is loose."""
        self.sought_session = ""
        """What its client calls the session of a door that died, while the broker is asked for that."""
        self.seeking_requests: list[tuple[int, bytes]] = []
        """The HTTP requests that wait for that, each with the id of its message."""
        self.version = ""
        """The protocol version of a session, once it is negotiated."""
        self.exchanges: dict[int, Exchange | OwnRequest] = {}
        self._by_id: dict[bytes, list[int]] | None = None
        """Exchanges by the ids of their requests, made when a cancel asks for it; some may be over. None: it
        is to be made again, because another exchange is open.
        """
        self.resumable_exchanges: dict[int, tuple[int, float]] = {}
        """Ended exchanges that can be asked for again: number of the last event, and until when."""
        self.get_request = 0
        """The HTTP request that hears what belongs to no exchange; 0: none."""
        self.number = 0
        """Of the last event that belonged to no exchange."""
        self.last_delivered = 0
        """The last of them that somebody was there to hear."""
        self.refused = ""
        """Why the broker does not open it, for our own questions; empty: it has not refused."""
        self.used_at = now
        self.is_absent = False
        """The broker was told that its client has no open connection."""
        self.schemas: HeaderSchemas | None = None

    def add_exchange(self, exchange: Exchange) -> None:
        """A client's requests are open."""
        self.exchanges[exchange.x] = exchange
        self._by_id = None

    def exchanges_of(self, ident: bytes) -> list[Exchange]:
        """Return the exchanges with an open request of this id. Does not go through all for each question:
        cancels cost little to send.
        """
        if self._by_id is None:
            self._by_id = {}
            for x, exchange in self.exchanges.items():
                for each in exchange.ids if isinstance(exchange, Exchange) else ():
                    self._by_id.setdefault(each, []).append(x)
        found = [self.exchanges.get(x) for x in self._by_id.get(ident, ())]
        return [each for each in found if isinstance(each, Exchange)]

    @property
    def is_idle(self) -> bool:
        """True if nobody waits for anything on it. A listen of the door itself waits for nobody."""
        if self.get_request or self.seeking_requests:
            return False
        if self.schemas is not None and self.schemas.waiting_calls:
            return False
        return all(isinstance(each, OwnRequest) and each.is_listen for each in self.exchanges.values())

    @property
    def kind(self) -> Kind:
        """For the broker."""
        match self.sort:
            case "shared" | "control":
                return self.sort
            case _:
                return "session"


class HeaderSchemas:
    """Which arguments of which tools are told in headers, as far as a shared stream knows (`Mcp-Param-*`)."""

    def __init__(self) -> None:
        self.tools: dict[str, Annotated] | None = None
        """None: not known (any more)."""
        self.stale_at = 0.0
        self.fetching = False
        self.listening = 0
        """The exchange of our own listen; 0: none."""
        self.waiting_calls: list[tuple[float, int]] = []
        """Calls that wait for `tools`: since when, and which HTTP request."""
