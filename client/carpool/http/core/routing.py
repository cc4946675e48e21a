"""The table of what is open: frames of the broker become answers and events of HTTP requests.

Owns streams, exchanges, the decision between plain JSON and a stream of events, event ids and what happens
when a client, a session or the broker goes. Invariants: each HTTP request is answered once; a message goes to
one stream (MCP, basic/transports); an answer is the last of its exchange; nothing of one session reaches
another; what a broker that died has not answered is asked of the next one (docs/decisions/0019), unless it
may have been run and nothing there could tell.

A POST is answered as JSON when its answer is the first that comes for it; otherwise, or after
`STREAM_AFTER_S` (proxies give up on silent requests), it becomes a stream.

Knows nothing of: sockets, clocks, paths and headers (`core`), what is asked.
"""

from collections.abc import Callable
from typing import Final

from carpool.http.core.body import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    SESSION_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Message,
    Said,
    read_said,
    texts_of,
    version_of,
)
from carpool.http.core.effects import Begin, End, Respond, Tell, Write, event
from carpool.http.core.exchanges import NO_BUFFERING
from carpool.http.core.get_streams import Listening
from carpool.http.core.kept_messages import REPEATABLE
from carpool.http.core.resume import comeback
from carpool.http.core.streams import Dialogue, Endpoint, Exchange, Stream
from carpool_protocol.carrier.attach import Moved, ResumeSession
from carpool_protocol.carrier.streams import (
    WORD,
    Closed,
    Gone,
    Opened,
    Over,
    Refused,
    Served,
    Stateful,
    Word,
    read_word,
    split_frame,
    word_line,
)

STREAM_AFTER_S: Final = 15.0
KEEP_ALIVE_S: Final = 15.0
"""A comment is written to each stream of events this often."""
RESUMABLE_S: Final = 60.0
"""After the end of an exchange its events can be asked for again."""

_STATUS: Final = {
    METHOD_NOT_FOUND: 404,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    INVALID_REQUEST: 400,
    PARSE_ERROR: 400,
}
"""HTTP status of error answers of the stateless era; 200 for all others (basic/transports, "Errors")."""

_COMMENT: Final = b":\n"
"""Keeps a connection alive. No empty line after it: httpx-sse, under the Python SDK, makes an event of one as
soon as an event with an id has gone before, and SDK 1.9 tells its user of an event that is no JSON."""
UNKNOWN_SESSION: Final = "Session not found: it has ended or never was; initialize a new one"
BROKER_LOST: Final = "carpool's broker ended while this was open; nothing is known of its outcome, try again"


class Table(Listening):
    """The books, and what the broker, clients and time do to them."""

    # --- the broker ---

    def said(self, line: bytes, now: float) -> bool:
        """A line of the broker. False: it is no frame."""
        parts = split_frame(line)
        if parts is None:
            return False
        s, message, x = parts
        stream = self._streams.get(s)
        if x == WORD:
            word = read_word(message)
            if word is not None and stream is not None:
                self._word(stream, word, now)
            return word is not None
        if stream is None:
            return True
        if x:
            exchange = stream.exchanges.get(x)
            if exchange is not None:
                self._on_exchange(exchange, message, now)
            elif stream.loose and (said := read_said(message)).answer:
                # It was on its way when its client went. Unsettled, a later broker would run its call again.
                self.settled(stream, said.id, message, is_error=said.code is not None)
        else:
            self._on_stream(stream, message)
        return True

    def _word(self, stream: Stream, word: Word, now: float) -> None:
        if isinstance(word, Opened):
            stream.name, stream.secret, stream.epoch = word.name, word.secret, word.supervisor
            if not stream.session:
                self._begun(stream, word, now)
        elif isinstance(word, Served):
            stream.epoch = word.epoch
        elif isinstance(word, Moved):
            stream.moved = word
        elif isinstance(word, Stateful):
            stream.stateful = word.servers
        elif isinstance(word, Refused) and stream.seeks:
            self.close(stream, 404, SESSION_NOT_FOUND, UNKNOWN_SESSION, now, tell=False)
        elif isinstance(word, Refused):
            stream.refused = word.text
            self.close(stream, 404, INVALID_REQUEST, word.text, now, tell=False)
        elif isinstance(word, Closed):
            text = word.text or "carpool has ended this session"
            if stream.sort == "shared":
                self.close(stream, 502, INTERNAL_ERROR, text, now, tell=False)
            else:
                self.close(stream, 404, SESSION_NOT_FOUND, text, now, tell=False)
        elif isinstance(word, Over):
            exchange = stream.exchanges.get(word.exchange)
            if exchange is not None:
                self._over(exchange, now)

    def _begun(self, stream: Stream, word: Opened, now: float) -> None:
        stream.session = word.session
        if stream.sort in {"session", "sse"}:
            self.sessions[word.session] = stream
        if stream.sort == "sse" and stream.get:
            self.out.append(Begin(stream.get, NO_BUFFERING))
            where = f"/messages?session={word.session}".encode()
            self.out.append(Write(stream.get, event(where, name=b"endpoint")))
        if stream.seeks:
            self._seeking.pop((stream.seeks, stream.endpoint), None)
            stream.seeks, stream.version = "", word.version
            sought, stream.sought = stream.sought, []
            for x, go_on in sought:
                if self.release(x):
                    go_on(now)

    def seek(
        self, x: int, session: str, endpoint: Endpoint, go_on: Callable[[float], None], now: float
    ) -> None:
        """A request of a session that a door before this one may have had: the broker knows."""
        found = self._seeking.get((session, endpoint))
        if found is None:
            resume = ResumeSession(session="", secret=session)
            found = self._seeking[session, endpoint] = self.open_stream("session", endpoint, now, resume)
            found.seeks = session
        self.hold(x, found)
        found.sought.append((x, go_on))

    def _on_exchange(self, exchange: Exchange, message: bytes, now: float) -> None:
        said = read_said(message)
        if exchange.dialogue is None and said.answer:
            self._answered(exchange, said, message, now)
            return
        if exchange.granted is None and exchange.method == "subscriptions/listen":
            exchange.granted = self._room.take(message)
        if exchange.dialogue is not None:
            self._converse(exchange, exchange.dialogue, said, message, now)
        elif self._plain_only(exchange):
            self._refuse_ask(exchange.stream, said)
        else:
            if said.asks:
                self.asked(exchange.stream, said.id, exchange.x)
            self.begin(exchange)
            self._event(exchange, message)

    def _answered(self, exchange: Exchange, said: Said, message: bytes, now: float) -> None:
        exchange.answered(said.id)
        stream = exchange.stream
        if stream.kept.pending:
            stream.kept.answered(exchange.x, said.id, is_error=said.code is not None)
        self.answered(exchange.lines, said.id, message)
        headers: tuple[tuple[str, str], ...] = ()
        if exchange.method == "initialize" and stream.sort == "session":
            stream.version = version_of(message)
            if stream.version:
                headers = (("Mcp-Session-Id", stream.session),)
        if exchange.begun:
            self._event(exchange, message)
            if not exchange.ids:
                self._finish(exchange, now)
            return
        exchange.answers.append(message)
        if exchange.ids:
            return
        body = b"[%b]" % b",".join(exchange.answers) if exchange.array else message
        status = 200
        if stream.sort == "shared" and said.code is not None:
            status = _STATUS.get(said.code, 200)
        self.out.append(Respond(exchange.sink, status, body, headers))
        self._finish(exchange, now)
        if exchange.method == "initialize" and stream.sort == "session" and not stream.version:
            self.close(stream, 404, SESSION_NOT_FOUND, "the session was not initialized", now)

    def _converse(
        self, exchange: Exchange, dialogue: Dialogue, said: Said, message: bytes, now: float
    ) -> None:
        """A step of our own question. Notifications are for dialogues that wait for news."""
        if said.asks:
            self._refuse_ask(exchange.stream, said)
            return
        if not said.answer and exchange.method != "subscriptions/listen":
            return
        if not said.answer and not said.method.endswith("list_changed"):
            return
        try:
            line = dialogue.send(message)
        except StopIteration as found:
            self._settle(exchange, found.value, now)
        else:
            exchange.at = now
            self.done(exchange.lines, b"")
            self._remember(exchange.lines, b"", line)
            self.tell(exchange.stream, line, exchange.x)

    def _on_stream(self, stream: Stream, message: bytes) -> None:
        said = read_said(message)
        if said.answer:
            self.settled(stream, said.id, message, is_error=said.code is not None)
        if stream.sort == "sse":
            if said.asks:
                self.asked(stream, said.id, 0)
            if stream.get:
                self.out.append(Write(stream.get, event(message)))
            return
        if said.answer or stream.sort == "shared":
            return  # its client is gone, and did not have an event's id to come back with
        if stream.sort != "session" or (self.rules.json_response and not stream.get):
            self._refuse_ask(stream, said)
            return
        if said.asks:
            self.asked(stream, said.id, 0)
        stream.number += 1
        data = event(message, b"0-%d" % stream.number)
        self._replay.keep(stream.s, 0, stream.number, data)
        if stream.get:
            self.out.append(Write(stream.get, data))
            stream.shown = stream.number

    def _over(self, exchange: Exchange, now: float) -> None:
        if exchange.begun:
            pass
        elif exchange.answers:
            body = b"[%b]" % b",".join(exchange.answers)
            self.out.append(Respond(exchange.sink, 200, body))
        else:
            # A cancelled request gets no answer; a stream without events says just that.
            exchange.begun = True
            self.out.append(Begin(exchange.sink))
        self._finish(exchange, now)

    def _finish(self, exchange: Exchange, now: float) -> None:
        """Its last answer was given. A stream ends, and can be asked for again for a while."""
        stream = exchange.stream
        if exchange.begun:
            if exchange.sink:
                self.out.append(End(exchange.sink))
            if stream.sort == "session" and exchange.number:
                stream.past[exchange.x] = (exchange.number, now + RESUMABLE_S)
        stream.used = now
        self._forget(exchange)
        if stream.sort == "once" and not stream.exchanges:
            self.close(stream, 404, SESSION_NOT_FOUND, "", now)

    # --- clients ---

    def gone(self, x: int, now: float) -> None:
        """The client of an HTTP request hung up before its end."""
        self.release(x)
        client = self._clients.pop(x, None)
        if isinstance(client, Stream):
            client.get = 0
            client.used = now
            if client.sort == "sse":
                self.close(client, 404, SESSION_NOT_FOUND, "", now)
        elif client is not None:
            client.sink = 0
            client.then = None  # of a dialogue, which goes on where others may want what it finds
            if client.stream.sort == "once":
                self.close(client.stream, 404, SESSION_NOT_FOUND, "", now)
            elif client.dialogue is not None:
                pass
            elif client.stream.sort == "shared" or not client.begun:
                # Stateless: that is the cancel. Otherwise it is none (basic/transports), but what still
                # comes has to find another way: without an event's id nobody can come back for it.
                stream = client.stream
                self.out.append(Tell(word_line(stream.s, Gone(client.x))))
                if stream.sort == "session":
                    self.loosen(client)
                self._forget(client)
                if client.method == "initialize" and not stream.version:
                    # Nobody knows the session's id, or ever will.
                    self.close(stream, 404, SESSION_NOT_FOUND, "", now)

    def pass_on(self, stream: Stream, message: Message, now: float) -> None:
        """What a client says that is no request of an exchange."""
        stream.used = now
        if message.method == "notifications/cancelled":
            ident = texts_of(message.params).get("requestId")
            self._cancelled(stream, bytes(ident) if ident is not None else b"")
        self.send(stream, message)

    def _cancelled(self, stream: Stream, ident: bytes) -> None:
        """A client cancelled a request of its own: no answer will come for it, but for others of an array."""
        self.done(stream.loose, ident)
        for exchange in stream.exchanges.values():
            self.done(exchange.lines, ident)
            if exchange.array and ident in exchange.ids and len(exchange.ids) > 1:
                exchange.ids.remove(ident)
                return

    # --- ends and time ---

    def away(self, now: float) -> None:
        """The broker has died. Everything waits for the next one, but for what that could not know."""
        for stream in list(self._streams.values()):
            if stream.seeks:
                self.close(stream, 404, SESSION_NOT_FOUND, UNKNOWN_SESSION, now, tell=False)
                continue
            if (stream.version or stream.kept.begun) and not stream.kept.complete:
                self.close(stream, 502, INTERNAL_ERROR, BROKER_LOST, now, tell=False)
                continue
            for exchange in list(stream.exchanges.values()):
                if not exchange.lines:
                    self._over(exchange, now)  # its client has cancelled it
                elif not all(exchange.lines.lines()) or not _is_safe(stream, exchange):
                    self._break(exchange, 502, INTERNAL_ERROR, BROKER_LOST, now)
            stream.loose.forget_unkept()
            if stream.schemas is not None and not stream.schemas.fetching:
                stream.schemas.tools = None  # whether the list has changed meanwhile, nobody says

    def back(self) -> None:
        """Another broker is there: it hears of everything that is open."""
        for stream in self._streams.values():
            self.out += map(Tell, comeback(stream, self.opening(stream)))

    def lost(self, now: float) -> None:
        """The broker is gone, and every session with it."""
        for stream in list(self._streams.values()):
            self.close(stream, 502, INTERNAL_ERROR, BROKER_LOST, now, tell=False)

    def evict(self, stays: Callable[[str], bool], now: float) -> None:
        """End what those principals have open who do not stay."""
        text = "the token that this began with is not good any more"
        for stream in list(self._streams.values()):
            if stream.sort != "control" and not stays(stream.endpoint[0]):
                self.close(stream, 401, INVALID_REQUEST, text, now)

    def tick(self, now: float) -> None:
        """To be called about every second."""
        comment = now - self._commented >= KEEP_ALIVE_S
        if comment:
            self._commented = now
        for stream in list(self._streams.values()):
            for exchange in list(stream.exchanges.values()):
                self._age(exchange, now)
                if comment and exchange.begun and exchange.sink:
                    self.out.append(Write(exchange.sink, _COMMENT))
            if comment and stream.get:
                self.out.append(Write(stream.get, _COMMENT))
            for x in [x for x, (_, until) in stream.past.items() if until <= now]:
                del stream.past[x]
                self._replay.drop(stream.s, x)
            idle = not stream.exchanges and not stream.get
            if stream.sort == "session" and idle and now - stream.used >= self.rules.session_idle_s:
                self.close(stream, 404, SESSION_NOT_FOUND, "", now)

    def _age(self, exchange: Exchange, now: float) -> None:
        waited_s = now - exchange.at
        if exchange.dialogue is not None:
            if waited_s >= exchange.limit_s and exchange.method != "subscriptions/listen":
                self._settle(exchange, None, now)
        elif exchange.method == "initialize":
            pass  # its answer says in a header which session it is
        elif waited_s >= STREAM_AFTER_S and exchange.sink and not self._plain_only(exchange):
            self.begin(exchange)


def _is_safe(stream: Stream, exchange: Exchange) -> bool:
    """Whether a request may be made again: the next broker knows by the stream's name what became of it."""
    if exchange.granted == b"":
        return False  # it would listen to less, and its client would not know
    return bool(stream.name) or exchange.dialogue is not None or exchange.method in REPEATABLE
