"""What the door says of a stream to the broker after the one that died (docs/decisions/0019).

Owns the order: the stream with what resumes its session, then what makes the session what it is (a listen
behind what acknowledged it), then what has no answer. Pure.

Knows nothing of: when a broker dies, what becomes of a stream that cannot go on (`routing`).
"""

from typing import Final

from msgspec.structs import replace

from carpool.http.core.body import text_of
from carpool.http.core.streams import Stream
from carpool.open_requests import Unanswered
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach import ResumeSession
from carpool_protocol.carrier.streams import Open, frame_line, word_line

_END: Final = b"\n"


def comeback(stream: Stream, word: Open) -> list[bytes]:
    """The frames. `word`: how the stream is opened when nothing is resumed."""
    s = stream.s
    kept = [(line, 0) for line in stream.kept.lines()]
    left, again = _left(stream.loose, 0, [], 0)
    given = [(line, 0) for line in stream.given if line]
    for exchange in stream.exchanges.values():
        if exchange.granted:
            kept += [(exchange.granted, exchange.x), *((line, exchange.x) for line in exchange.lines.lines())]
        else:
            more, again = _left(exchange.lines, exchange.x, again, len(left))
            left += more
        given += [(line, 0) for line in exchange.given if line]
    said = [*kept, *left, *given]
    if stream.name and stream.sort != "control":
        asks = [ask for ask in map(text_of, stream.asks) if ask is not None]
        resume = ResumeSession(
            session=stream.name,
            secret=stream.secret,
            supervisor=stream.epoch,
            kept=len(kept),
            open=len(left) + len(given),
            last=f"{name_of(said[-1][0].removesuffix(_END)):x}" if said else "",
            # On a stream of many agents the exchange is a part of the name: no id is used again.
            again=[] if stream.kind == "shared" else again,
            asks=asks,
            moved=stream.moved,
            stateful=stream.stateful,
        )
        word = replace(word, resume=resume)
    return [word_line(s, word), *(frame_line(s, line, x) for line, x in said)]


def _left(
    requests: Unanswered, x: int, again: list[int], before: int
) -> tuple[list[tuple[bytes, int]], list[int]]:
    """Requests without an answer, of exchange `x`, and the places of all that use an id again. `again`: of
    those before them, which are so many.
    """
    used_again = requests.used_again()
    entries = requests.entries()
    places = [before + place for place, (number, _, _) in enumerate(entries) if number in used_again]
    return [(line, x) for _, _, line in entries], again + places
