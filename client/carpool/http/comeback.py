"""What the door says of a stream to the broker after the one that died (docs/decisions/0019).

Owns the order: the stream with what resumes its session, then what makes the session what it is (a listen
behind what acknowledged it), then what has no answer. Pure.

Knows nothing of: when a broker dies, what becomes of a stream that cannot go on (`table`).
"""

from msgspec.structs import replace

from carpool.http.message import text_of
from carpool.http.open_streams import Stream
from carpool_protocol.attach import ResumeSession
from carpool_protocol.streams import Open, frame_line, word_line


def comeback(stream: Stream, word: Open) -> list[bytes]:
    """The frames. `word`: how the stream is opened when nothing is resumed."""
    s = stream.s
    kept = [frame_line(s, line) for line in stream.kept.lines()]
    left = [frame_line(s, line) for line in stream.loose.values()]
    given = [frame_line(s, line) for line in stream.given if line]
    for exchange in stream.exchanges.values():
        frames = [frame_line(s, line, exchange.x) for line in exchange.lines.values()]
        if exchange.granted:
            kept += [frame_line(s, exchange.granted, exchange.x), *frames]
        else:
            left += frames
        given += [frame_line(s, line) for line in exchange.given if line]
    left += given
    if stream.name and stream.sort != "control":
        asks = [ask for ask in map(text_of, stream.asks) if ask is not None]
        resume = ResumeSession(
            session=stream.name,
            secret=stream.secret,
            supervisor=stream.epoch,
            kept=len(kept),
            open=len(left),
            asks=asks,
            moved=stream.moved,
            stateful=stream.stateful,
        )
        word = replace(word, resume=resume)
    return [word_line(s, word), *kept, *left]
