"""The journal of a core: a ring of its recent events and effects.

Owns the last `size` entries `(now, event, effects)`, their form as JSON lines, and the story of one call,
session or instance. A dumped journal replays through the same machine and ends in the same state, because
time and every decision from outside came in with the events.

Invariants: it keeps no secret, and only small payloads (`journal_shapes.SMALL_BYTES`); it never shows or
dumps either of them, only the length of a payload; of a long name or a long list of names it keeps the
beginning; documents take at most `MAX_DOCUMENT_BYTES`, or are those of the newest entry; entries are in the
order of events; `record` never fails on a value.

A dump that begins with `seq` 0 replays exactly, but for the rest of such a list. A dump that has lost its
first entries is only for reading.
Refuses to know: files, processes, the meaning of an event.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from carpool_protocol.machine.journal_shapes import (
    StructKeepers,
    StructShape,
    StructStrippers,
    revive,
    shape_of,
    structs_in,
)
from carpool_protocol.machine.machine import Machine, Ticked

JOURNAL_ENTRIES: Final = 1024
"""About 250 calls. Four times as many make each call cost 10 % more: the ring leaves the processor's cache.
"""

MAX_DOCUMENT_BYTES: Final = 32 * 1024 * 1024
"""The most memory of all documents in the ring: the oldest entries leave for others. Twice the largest
catalog of a server, because one that changes its lists all the time must not fill the memory.
"""

_strippers = StructStrippers()


class JournalEntry(Struct, frozen=True):
    """One event and its effects, in a form that people and programs read."""

    seq: int
    now: float
    """Monotonic seconds, as the machine received them."""
    event: dict[str, Any]
    effects: list[dict[str, Any]]

    def line(self) -> str:
        """The entry as one line for people."""
        effects = ", ".join(map(_shown, self.effects)) or "nothing"
        return f"{self.now:.6f} #{self.seq} {_shown(self.event)} -> {effects}"


class Journal:
    """A bounded ring of entries. `record` is on the hot path; the other methods help to find a fault."""

    def __init__(self, size: int = JOURNAL_ENTRIES) -> None:
        self._ring: deque[tuple[float, Any, Sequence[Any]]] = deque(maxlen=size)
        self._recorded = 0
        self._keepers = StructKeepers(_strippers, self._documents_come)
        self._documents: deque[tuple[int, int]] = deque()
        """Each entry with documents, oldest first: its number and their bytes. It may have left the ring."""
        self._document_bytes = 0
        """The sum of these bytes."""

    def __len__(self) -> int:
        return len(self._ring)

    def record(self, now: float, event: Any, effects: Sequence[Any]) -> None:
        """Keep one event and its effects (Structs). The sequence must not be changed afterwards."""
        keepers = self._keepers
        keep = keepers[type(event)]
        if keep is not None:
            event = keep(event)
        for effect in effects:
            keep = keepers[type(effect)]
            if keep is not None and keep(effect) is not effect:
                # The documents of the effects before this one are counted twice: less is kept, never more.
                effects = [each if (keep := keepers[type(each)]) is None else keep(each) for each in effects]
                break
        self._ring.append((now, event, effects))
        self._recorded += 1

    def _documents_come(self, size_bytes: int) -> None:
        """Make room for documents of the entry that is recorded next."""
        known, first = self._documents, self._recorded - len(self._ring)
        known.append((self._recorded, size_bytes))
        self._document_bytes += size_bytes
        while known[0][0] < first or (
            self._document_bytes > MAX_DOCUMENT_BYTES and known[0][0] < self._recorded
        ):
            number, freed_bytes = known.popleft()
            self._document_bytes -= freed_bytes
            while first <= number:
                self._ring.popleft()
                first += 1

    def entries(self) -> list[JournalEntry]:
        """All of the ring, oldest first."""
        first = self._recorded - len(self._ring)
        return [
            JournalEntry(seq=first + i, now=now, event=_render(event), effects=[_render(e) for e in effects])
            for i, (now, event, effects) in enumerate(self._ring)
        ]

    def story(self, subject: int | str, kind: type[int | str] | None = None) -> list[JournalEntry]:
        """The entries that mention this id. `kind` (`ids.CallId`, ...) tells call 5 from instance 5."""
        first = self._recorded - len(self._ring)
        return [
            JournalEntry(seq=first + i, now=now, event=_render(event), effects=[_render(e) for e in effects])
            for i, (now, event, effects) in enumerate(self._ring)
            if _mentions(event, subject, kind) or any(_mentions(e, subject, kind) for e in effects)
        ]

    def dump(self) -> bytes:
        """JSON lines, one entry each, oldest first."""
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.entries())


def load_journal(data: bytes, event_types: Iterable[Any]) -> list[tuple[float, Any]]:
    """`(now, event)` of each line of a dump. `event_types`: Struct classes or unions of them.

    Payloads become blanks of their length, secrets become empty. Raises ValueError for bytes that are no
    dump, for an event of another class, and for one whose fields do not fit its class.
    """
    known = structs_in(Ticked)
    for event_type in event_types:
        structs_in(event_type, known)
    pairs = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            entry = msgspec.json.decode(line, type=JournalEntry)
            name = entry.event.get("type")
            if not isinstance(name, str) or name not in known:
                raise ValueError(f"line {number}: unknown event {name!r}")
            pairs.append((entry.now, revive(Any, entry.event, known)))
        except (TypeError, KeyError, RecursionError) as error:  # a field is missing or has another type
            raise ValueError(f"line {number}: the event is not as it was written ({error})") from None
    return pairs


def replay(machine: Machine[Any, Any], pairs: Iterable[tuple[float, Any]]) -> list[list[Any]]:
    """Feed a loaded journal to a fresh machine. Returns the effects of each entry."""
    return [
        machine.tick(now) if isinstance(event, Ticked) else machine.handle(event, now) for now, event in pairs
    ]


# --- rendering -------------------------------------------------------------------------------------------


def _fields(kept: Any) -> tuple[StructShape, Sequence[Any]] | None:
    """Shape and field values of a Struct, stripped or whole; None for any other value."""
    if isinstance(kept, tuple) and kept and isinstance(kept[0], StructShape):
        return kept[0], kept[1:]
    if isinstance(kept, Struct):
        strip = _strippers[type(kept)]
        if strip is not None:
            kept = strip(kept)
            return kept[0], kept[1:]
        shape = shape_of(type(kept))
        return shape, [getattr(kept, field) for field in shape.fields]
    return None


def _render(kept: Any) -> Any:
    parts = _fields(kept)
    if parts is not None:
        shape, values = parts
        rendered: dict[str, Any] = {"type": shape.name}
        for field, value in zip(shape.fields, values, strict=True):
            match shape.kinds[field]:
                case "length":
                    rendered[field] = {"bytes": value}
                case "lengths":
                    rendered[field] = [{"bytes": n} for n in value]
                case _:
                    rendered[field] = _render(value)
        return rendered
    if isinstance(kept, (list, tuple, set, frozenset)):
        return [_render(item) for item in kept]
    if isinstance(kept, dict):
        return {str(_render(key)): _render(value) for key, value in kept.items()}
    if isinstance(kept, float) and not math.isfinite(kept):
        return str(kept)  # JSON has no infinity; `revive` reads the word
    return msgspec.to_builtins(kept, enc_hook=repr)


def _mentions(kept: Any, subject: int | str, kind: type[int | str] | None) -> bool:
    parts = _fields(kept)
    if parts is not None:
        shape, values = parts
        for field, value in zip(shape.fields, values, strict=True):
            kinds = shape.id_fields.get(field)
            if kinds and (kind is None or kind in kinds) and _holds(value, subject):
                return True
            if shape.kinds[field] == "deep" and _mentions(value, subject, kind):
                return True
        return False
    if isinstance(kept, dict):
        return any(_mentions(value, subject, kind) for value in kept.values())
    return isinstance(kept, (list, tuple)) and any(_mentions(item, subject, kind) for item in kept)


def _holds(value: Any, subject: int | str) -> bool:
    if isinstance(value, dict):
        return any(_holds(pair, subject) for pair in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_holds(item, subject) for item in value)
    return type(value) is type(subject) and bool(value == subject)


def _shown(rendered: dict[str, Any]) -> str:
    fields = ", ".join(f"{name}={_short(value)}" for name, value in rendered.items() if name != "type")
    return f"{rendered['type']}({fields})"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        if value.keys() == {"bytes"}:
            return f"<{value['bytes']} bytes>"
        if "type" in value:
            return _shown(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value[:8]))}{', ...' if len(value) > 8 else ''}]"
    return repr(value)
