"""GETs of handshake-era clients: a session's own stream of events, and streams that are asked for again.

MCP 2025-11-25, basic/transports, "Listening for Messages" and "Resumability". Owns which GET hears a session,
and what of a stream is repeated to a client that comes back with `Last-Event-ID`.

Knows nothing of: the broker, what events say.
"""

from carpool.http.core.effects import Begin, End, Write
from carpool.http.core.exchanges import NO_BUFFERING, Books
from carpool.http.core.streams import Stream


class Listening(Books):
    """The books, and clients that listen."""

    def listen(self, x: int, stream: Stream) -> None:
        """A GET hears what belongs to no exchange. A newer one replaces an older one."""
        if stream.get:
            self._end(stream.get)
        stream.get = x
        self._clients[x] = stream
        missed = self._replay.after(stream.s, 0, stream.shown, stream.number) or []
        self._begin(x, stream, (0, stream.number) if not missed else None)
        for _, data in missed:
            self.out.append(Write(x, data))
        stream.shown = stream.number

    def resume(self, x: int, stream: Stream, exchange: int, number: int) -> bool:
        """A GET with `Last-Event-ID`. False: what it asks for is not there any more."""
        running = stream.exchanges.get(exchange)
        if exchange == 0:
            last = stream.number
        elif running is not None and running.begun:
            last = running.number
        elif exchange in stream.past:
            last = stream.past[exchange][0]
        else:
            return False
        kept = self._replay.after(stream.s, exchange, number, last)
        if exchange == 0:
            # What is forgotten of it is news that a list shows as well: no reason to refuse.
            stream.shown = number if kept is not None else last
            self.listen(x, stream)
            return True
        if kept is None:
            return False
        self.out.append(Begin(x, NO_BUFFERING))
        self.out += [Write(x, data) for _, data in kept]
        if running is None:
            self.out.append(End(x))
        else:
            if running.sink:
                self._end(running.sink)
            running.sink = x
            self._clients[x] = running
        return True
