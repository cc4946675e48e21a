"""Records that wait for a channel, in turns of sessions.

Each session has a line of its own, and the lines take turns: the megabytes of one session delay the next
record of another one by one record. Records of one session stay in order. Only the latest offer waits.

Knows nothing of: frames, what a session is.
"""

from collections import Counter, deque

from carpool.cluster.core.frames import AnswerRecord, AnyRecord, OfferRecord, RequestRecord


class RecordQueue:
    """The records that wait to be sent."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[AnyRecord]] = {}
        """By session; 0: those of no session. The first line is the next one to take from; none is empty."""
        self._counts: Counter[type[AnyRecord]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def count(self, kind: type[AnyRecord]) -> int:
        """Return the number of records of a kind that wait."""
        return self._counts[kind]

    def put(self, record: AnyRecord) -> None:
        """Add a record at the end of the line of its session."""
        is_offer = isinstance(record, OfferRecord)
        line = self._lines.setdefault(_line_of(record), deque())
        if is_offer and (older := next((each for each in line if isinstance(each, OfferRecord)), None)):
            line.remove(older)
            self._counts[OfferRecord] -= 1
        line.append(record)
        self._counts[type(record)] += 1

    @property
    def first(self) -> AnyRecord:
        """Return the record that `take` takes. There must be one."""
        return next(iter(self._lines.values()))[0]

    def take(self) -> AnyRecord:
        """Take the next record. There must be one."""
        number, line = next(iter(self._lines.items()))
        del self._lines[number]
        record = line.popleft()
        self._counts[type(record)] -= 1
        if line:
            self._lines[number] = line  # at the end
        return record

    def clear(self) -> None:
        """Drop all records."""
        self._lines.clear()
        self._counts.clear()


def _line_of(record: AnyRecord) -> int:
    return 0 if isinstance(record, OfferRecord | RequestRecord | AnswerRecord) else record.session
