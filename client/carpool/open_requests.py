"""Requests that have passed to a broker and have no answer yet, by the ids of their messages.

Owns what a carrier of any kind goes by when it says again what its broker had not answered
(docs/decisions/0030): an answer belongs to one use of its id, the first that has none, or, where it refuses
an id that is in use, the one after that; and which ids had an answer not long ago and are in use again. An id
is to be used once (MCP, basic, "Requests"); some agents use one for everything.

Refuses to know how messages are read, and what makes a request end but its answer. The shim has it too, after
a death: the standard library only.
"""

REFUSED = b'"code":"duplicate_request_id"'
"""Stands in an answer of carpool's: it is about a request that came while another one with its id had no
answer.
"""
RECENT = 256
"""The number of answered ids that are remembered. A broker reports answers as written within a second; until
then the record may have one.
"""


class OpenRequests:
    """The requests of one session, or of a part of it. Ids are whatever the caller tells them apart by."""

    def __init__(self, answered: "dict[int, None] | None" = None) -> None:
        """`answered` is what the parts of one session share."""
        self._said: dict[int, tuple[object, bytes]] = {}
        """Ids and lines, by numbers in the order in which they were sent."""
        self._uses: dict[object, list[int]] = {}
        """The numbers of the requests that have one id."""
        self._answered: dict[int, None] = {} if answered is None else answered
        """The hashes of the ids that had an answer, the latest last. (Their bytes count nowhere, and an id
        may be long.)
        """
        self._last = 0

    def __len__(self) -> int:
        return len(self._said)

    def __contains__(self, number: int) -> bool:
        return number in self._said

    def request_sent(self, ident: object, line: bytes) -> int:
        """A request passes. Returns its number."""
        self._last += 1
        self._said[self._last] = (ident, line)
        self._uses.setdefault(ident, []).append(self._last)
        return self._last

    def request_answered(self, ident: object, answer: bytes) -> bytes:
        """An answer passes. Returns the request that it answers; None if no answer to that id was awaited."""
        name = hash(ident)
        self._answered.pop(name, None)
        self._answered[name] = None
        if len(self._answered) > RECENT:
            del self._answered[next(iter(self._answered))]
        uses = self._uses.get(ident)
        if not uses:
            return b""
        number = uses.pop(1 if len(uses) > 1 and REFUSED in answer else 0)
        if not uses:
            del self._uses[ident]
        return self._said.pop(number)[1]

    def request_ended(self, ident: object) -> "list[bytes]":
        """Forget all requests with this id, however often it is in use, and return them."""
        return [self._said.pop(number)[1] for number in self._uses.pop(ident, ())]

    def clear(self) -> None:
        """Forget all requests. Which ids had an answer stays known."""
        self._said.clear()
        self._uses.clear()

    def forget_unkept(self) -> None:
        """Forget requests whose lines there was no room to keep."""
        for number, ident, line in self.entries():
            if not line:
                self._uses[ident].remove(number)
                del self._said[number]

    def entries(self) -> "list[tuple[int, object, bytes]]":
        """Return number, id and line of each request, in the order in which they were sent."""
        return [(number, ident, line) for number, (ident, line) in self._said.items()]

    def lines(self) -> "list[bytes]":
        """Return the lines alone."""
        return [line for _, line in self._said.values()]

    def reused_ids(self) -> "set[int]":
        """Return the numbers of requests whose id had an answer not long ago."""
        return {number for number, (ident, _) in self._said.items() if hash(ident) in self._answered}
