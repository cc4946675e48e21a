"""What is open between HTTP clients and the broker: streams (sessions) and exchanges (requests).

Plain records; `routing` changes them. A stream is the broker's session, an exchange is one POST that waits.

Knows nothing of: HTTP, frames, when anything ends.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, Literal

from carpool.http.core.headers import Annotated
from carpool.http.core.kept_messages import Kept
from carpool.open_requests import Unanswered
from carpool_protocol.carrier.attach import Moved
from carpool_protocol.carrier.streams import Kind

StreamSort = Literal["session", "shared", "control", "once", "sse"]
"""`session`, `shared` and `control` are the broker's. `once`: a session for one POST (`http.stateless`).
`sse`: one of the transport of 2024-11-05, all of whose messages go to one GET.
"""

Dialogue = Generator[bytes, bytes, Any]
"""Questions of the door itself: yields a request line, is sent its answer, returns what was found."""

Endpoint = tuple[str, str, str, str, int]
"""Principal, server (empty: all), profile and workspace, as the URL names them (empty: none), and the bound
on the length of names that it says (0: none).
"""


OWN_QUESTION_S: Final = 10.0
"""For a question of the door itself where its asker names no other time."""


class Exchange:
    """One request (or array of requests) of a client, or a question of the door itself."""

    __slots__ = (
        "answers", "array", "at", "begun", "counted", "dialogue", "given", "granted", "ids", "limit_s",
        "lines", "method", "number", "sink", "stream", "then", "x",
    )  # fmt: skip

    def __init__(self, x: int, stream: "Stream", ids: list[bytes], now: float) -> None:
        self.x = x
        self.stream = stream
        self.ids = ids
        """Of its requests whose answers are still to come, as written."""
        self.at = now
        self.limit_s = OWN_QUESTION_S
        """A question of the door itself is given up after this long."""
        self.sink = x
        """The HTTP request its events go to; 0: the client is away."""
        self.begun = False
        """It is answered with a stream of events."""
        self.number = 0
        """Of its last event."""
        self.answers: list[bytes] = []
        """Of an array of requests, so far."""
        self.array = False
        self.method = ""
        self.counted = False
        """It counts against `Rules.max_open`."""
        self.dialogue: Dialogue | None = None
        self.lines = Unanswered(stream.answered)
        """Its requests that are neither answered nor cancelled, for a later broker; empty where there was no
        room for one.
        """
        self.given: tuple[bytes, ...] = ()
        """What its client answered to its questions."""
        self.granted: bytes | None = None
        """It is a listen, and this has acknowledged it; empty where there was no room for that."""
        self.then: Callable[[Any, float], None] | None = None
        """Gets what the dialogue found; `None` where it failed."""

    def answered(self, ident: bytes) -> None:
        """One answer more is there. (One to an id that is none of them counts for the first.)"""
        self.ids.remove(ident if ident in self.ids else self.ids[0])


class Stream:
    """A session of the broker that this door has open."""

    def __init__(self, s: int, sort: StreamSort, endpoint: Endpoint, kept: Kept, now: float) -> None:
        self.s = s
        self.sort = sort
        self.endpoint = endpoint
        self.kept = kept
        """What makes it the session that it is."""
        self.session = ""
        """Its `Mcp-Session-Id`, or what stands for it; empty until it is `opened`. Its client's for good."""
        self.name = ""
        """What the broker calls it; empty until it is `opened`."""
        self.secret = ""
        """What resumes it at a later broker."""
        self.moved: Moved | None = None
        """In which workspace it is, if that is not the one that its URL names."""
        self.stateful: list[str] = []
        """Servers where it may have state."""
        self.epoch = ""
        """Of the supervisor that serves it."""
        self.answered: dict[object, None] = {}
        """Ids of its requests that had an answer not long ago (`unanswered`)."""
        self.loose = Unanswered(self.answered)
        """Requests that are not answered and are of no exchange (any more)."""
        self.asks: dict[bytes, int] = {}
        """Questions that its client has not answered, by id as written: the exchange, or 0."""
        self.given: tuple[bytes, ...] = ()
        """What its client answered to those of no exchange, while anything is loose."""
        self.seeks = ""
        """What its client calls the session of a door that died, while the broker is asked for that."""
        self.sought: list[tuple[int, Callable[[float], None]]] = []
        """The HTTP requests that wait for that."""
        self.version = ""
        """The protocol version of a session, once it is negotiated."""
        self.exchanges: dict[int, Exchange] = {}
        self.past: dict[int, tuple[int, float]] = {}
        """Ended exchanges that can be asked for again: number of the last event, and until when."""
        self.get = 0
        """The HTTP request that hears what belongs to no exchange; 0: none."""
        self.number = 0
        """Of the last event that belonged to no exchange."""
        self.shown = 0
        """The last of them that somebody was there to hear."""
        self.refused = ""
        """Why the broker does not open it, for our own questions; empty: it has not refused."""
        self.used = now
        self.schemas: Schemas | None = None

    @property
    def kind(self) -> Kind:
        """For the broker."""
        match self.sort:
            case "shared" | "control":
                return self.sort
            case _:
                return "session"


class Schemas:
    """Which arguments of which tools are told in headers, as far as a shared stream knows (`Mcp-Param-*`)."""

    def __init__(self) -> None:
        self.tools: dict[str, Annotated] | None = None
        """None: not known (any more)."""
        self.stale_at = 0.0
        self.fetching = False
        self.listening = 0
        """The exchange of our own listen; 0: none."""
        self.parked: list[tuple[float, int, Callable[[float], None]]] = []
        """Calls that wait for `tools`: since when, which HTTP request, and how they go on."""
