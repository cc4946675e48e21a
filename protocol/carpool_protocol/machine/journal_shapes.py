"""The fields of each Struct class that a journal keeps.

Owns the reading of annotations: which fields are payload (`messages.Payload`: only the length is kept),
secret (`messages.Secret`: nothing is kept), names of any length (`messages.Name`: a long one is cut),
documents (`messages.Document`: kept whole and counted), may hold such Structs further down, or name a call, a
session, an instance. Compiled once per class.

Invariants: a result of `StructStrippers` keeps no reference to a field annotated as payload or secret, nor to
a Struct that has one, and no name of more than `SMALL_BYTES` characters; a result of `StructKeepers` may hold
payloads and names of less than `SMALL_BYTES` in total, and no secret. Refuses to know: rings, files, the
meaning of an event.
"""

import sys
import types
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Struct

from carpool_protocol import ids

FieldKind = Literal["plain", "deep", "length", "lengths", "name", "names", "document", "blank"]
"""`deep`: may hold Structs. `lengths`: a list or tuple of payloads; `names`: of names."""

MAX_BLANK_BYTES: Final = 64 * 1024 * 1024
"""The largest payload in a dump that is read: carpool reads no longer line."""

_ID_KINDS: Final = (
    ids.SessionId,
    ids.ServerName,
    ids.PoolKey,
    ids.InstanceId,
    ids.CallId,
    ids.AskId,
    ids.WireId,
)


class StructShape:
    """One Struct class as the journal sees it."""

    __slots__ = ("cls", "fields", "hints", "id_fields", "kept_whole", "kinds", "name")

    def __init__(self, cls: type[Struct]) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.fields = cls.__struct_fields__
        hints = get_type_hints(cls, include_extras=True)
        self.hints = {field: hints[field] for field in self.fields}
        self.kinds: dict[str, FieldKind] = {f: _kind(self, f, hint) for f, hint in self.hints.items()}
        self.id_fields = {f: found for f, hint in self.hints.items() if (found := _ids_in(hint))}
        self.kept_whole = cls.__struct_config__.frozen and not any(map(_hides, self.hints.values()))
        """The Struct and all below it hold nothing to remove: the journal keeps the object itself, which
        costs nothing.
        """


StrippedStruct = tuple[Any, ...]
"""A stripped Struct: its `StructShape`, then its fields in order. A Struct that is `kept_whole` stays an
object.
"""

Strip = Callable[[Any], StrippedStruct]


class StructStrippers(dict[type, "Strip | None"]):
    """Class → function that strips it; None: keep the object itself. Filled on first use."""

    def __missing__(self, cls: type) -> "Strip | None":
        if not issubclass(cls, Struct):
            raise TypeError(f"a journal takes msgspec Structs, not {cls.__name__}")
        shape = shape_of(cls)
        strip = self[cls] = None if shape.kept_whole else self._compile(shape)
        return strip

    def deep(self, value: Any) -> Any:
        """Strip the Structs in a value of any shape."""
        if isinstance(value, Struct):
            strip = self[type(value)]
            return value if strip is None else strip(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.deep(item) for item in value]
        if isinstance(value, dict):
            return {key: self.deep(item) for key, item in value.items()}
        return value

    def _compile(self, shape: StructShape) -> Strip:
        parts = [_part(shape, field, "m") for field in shape.fields]
        source = f"lambda m: (_shape, {', '.join(parts)})"
        # One expression per class, made of attribute names of our own classes. A loop over the fields takes 4
        # times as long, and this runs for every event and effect.
        names = {"_shape": shape, "_deep": self.deep, "_lengths": _lengths, "_cut": _cut, "_names": _names}
        return eval(source, names)  # type: ignore[no-any-return]  # noqa: S307


SMALL_BYTES: Final = 512
"""A message with fewer bytes of payload and characters of names stays whole in the ring and is stripped when
it is shown.

Stripping every message of every call took 5 % of each process's CPU time.
"""

MAX_NAMES_CHARS: Final = 8192
"""About the most characters that are kept of a list of names. The number of the other names follows."""

_OF_NAME_CHARS: Final = SMALL_BYTES - 32
_OVERHEAD_CHARS: Final = 64
"""The memory of one name in a list, beside its characters."""
_STRUCT_BYTES: Final = 128
"""The memory of one Struct in a list, beside its documents: the object and a short name."""


class StructKeepers(dict[type, "Callable[[Any], Any] | None"]):
    """Class → function that returns the object or its stripped form, for the ring. None: keep the object."""

    def __init__(self, strippers: StructStrippers, documents_come: Callable[[int], None]) -> None:
        """`documents_come`: told of the memory, in bytes, of all documents in an object that is kept."""
        self._strippers = strippers
        self._documents_come = documents_come

    def __missing__(self, cls: type) -> "Callable[[Any], Any] | None":
        strip = self._strippers[cls]
        weight = None if strip is None else _weight(cls, "m")
        if weight is None:
            keep = strip
        else:
            # As in `StructStrippers`; only for a frozen class, so nothing in the ring can change.
            source = f"lambda m: m if {weight} < {SMALL_BYTES} else _strip(m)"
            keep = eval(source, {"_strip": strip})  # noqa: S307
        if documents := _documents(cls, "m"):
            source = f"lambda m: (_come({documents}), {'m' if keep is None else '_keep(m)'})[1]"
            keep = eval(source, {"_come": self._documents_come, "_keep": keep, "_size": sys.getsizeof})  # noqa: S307
        self[cls] = keep
        return keep


def _weight(cls: type[Struct], of: str) -> str | None:
    """A Python expression for the bytes of payload in a Struct. None if no short expression gives them."""
    shape = shape_of(cls)
    if not cls.__struct_config__.frozen:
        return None
    parts = []
    for field in shape.fields:
        hint = _bare(shape.hints[field])
        match shape.kinds[field]:
            case "plain":
                continue
            case "length":
                part: str | None = _part(shape, field, of)
            case "name":
                part = (
                    f"len({of}.{field} or '')" if _may_be_none(shape.hints[field]) else f"len({of}.{field})"
                )
            case "lengths" | "names":  # usually the list is empty
                part = f"(len({of}.{field}) and {SMALL_BYTES})"
            case "deep" if _is_light(shape.hints[field]):
                continue
            case "deep" if isinstance(hint, type) and shape.hints[field] is hint:
                part = _weight(hint, f"{of}.{field}")
            case "deep" if get_origin(hint) is tuple and shape.hints[field] is hint:
                part = f"({SMALL_BYTES} if {of}.{field} else 0)"
            case _:
                part = None
        if part is None:
            return None
        parts.append(part)
    return " + ".join(parts) or "0"


def _documents(cls: type[Struct], of: str, depth: int = 0) -> str:
    """A Python expression for the memory of all documents in a Struct; empty if its class has none. It knows
    Structs in fields, in lists and as values of a mapping.
    """
    parts = []
    for field, hint in shape_of(cls).hints.items():
        bare, value, item = _bare(hint), f"{of}.{field}", f"e{depth}"
        if _journal_mark(hint) == "document":
            parts.append(f"_size({value})")
            continue
        inner = get_args(bare)[-1] if get_origin(bare) in (list, dict) else bare
        if not (isinstance(inner, type) and issubclass(inner, Struct)) or inner is cls:
            continue
        if inner is bare:
            parts.append(_documents(inner, value, depth))
        elif each := _documents(inner, item, depth + 1):
            values = f"{value}.values()" if get_origin(bare) is dict else value
            parts.append(f"sum([{_STRUCT_BYTES} + {each} for {item} in {values}])")
    return " + ".join(filter(None, parts))


def _is_light(hint: Any) -> bool:
    """True if all Structs that a value of this type can hold may be kept whole."""
    return not _hides(hint) and all(shape_of(each).kept_whole for each in structs_in(hint).values())


def kept_bytes(value: Any) -> int:
    """About how many bytes of memory the texts of a value take, without payloads. Slow: only for possibly
    large values.
    """
    if isinstance(value, str) and not value.isascii():
        return max(len(value), sys.getsizeof(value) - _WIDE_BYTES)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, tuple | list):
        return sum(map(kept_bytes, value))
    if isinstance(value, Struct):
        kinds = shape_of(type(value)).kinds.items()
        return sum(kept_bytes(getattr(value, field)) for field, kind in kinds if kind in _READABLE)
    return 0


_READABLE: Final = frozenset[FieldKind]({"plain", "deep", "name", "names", "document"})
_WIDE_BYTES: Final = sys.getsizeof("\u0394") - 2
"""The memory of a text that is not ASCII, beside its characters."""

_PART: Final[dict[FieldKind, str]] = {
    "plain": "{0}",
    "deep": "_deep({0})",
    "length": "len({0})",
    "lengths": "_lengths({0})",
    "name": f"({{0}} if len({{0}}) <= {SMALL_BYTES} else _cut({{0}}))",
    "names": "_names({0})",
    "document": "{0}",
    "blank": "None",
}
_PART_OR_NONE: Final[dict[FieldKind, str]] = {
    "length": "len({0} or b'')",
    "name": "({0} and _cut({0}))",
}
"""The same for a field that may be None."""


def _part(shape: StructShape, field: str, of: str) -> str:
    """A Python expression for the part of a field that is kept."""
    kind = shape.kinds[field]
    parts = _PART_OR_NONE if kind in _PART_OR_NONE and _may_be_none(shape.hints[field]) else _PART
    return parts[kind].format(f"{of}.{field}")


_shapes: dict[type, StructShape] = {}


def shape_of(cls: type[Struct]) -> StructShape:
    """The shape of a class, computed once."""
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = StructShape(cls)
    return shape


def structs_in(hint: Any, found: dict[str, type[Struct]] | None = None) -> dict[str, type[Struct]]:
    """Every Struct class that a type mentions at any depth, by name. ValueError if two share a name."""
    found = {} if found is None else found
    if isinstance(hint, type) and issubclass(hint, Struct):
        known = found.get(hint.__name__)
        if known is hint:
            return found
        if known is not None:
            raise ValueError(f"two classes are called {hint.__name__}: a journal needs distinct names")
        found[hint.__name__] = hint
        for inner in shape_of(hint).hints.values():
            structs_in(inner, found)
        return found
    for inner in _parts_of(hint):
        structs_in(inner, found)
    return found


def revive(hint: Any, value: Any, known: dict[str, type[Struct]]) -> Any:
    """The value of type `hint` from its form in a dump. Fields that the journal did not keep are blank."""
    if isinstance(value, dict) and value.get("type") in known:
        shape = shape_of(known[value["type"]])
        return shape.cls(**{f: _revive_field(shape, f, value[f], known) for f in shape.fields if f in value})
    if value is None:
        return None
    hint = _bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(value, list) and _mentions_struct(hint):
        inner = args[0] if args else Any
        items = [revive(inner, item, known) for item in value]
        return origin(items) if origin in (tuple, set, frozenset) else items
    if isinstance(value, dict) and origin is dict and _mentions_struct(hint):
        key_hint, item_hint = args
        return {
            msgspec.convert(key, key_hint, strict=False): revive(item_hint, item, known)
            for key, item in value.items()
        }
    if origin in (Union, types.UnionType):
        arms = [arm for arm in args if not _mentions_struct(arm)]
        lists = [arm for arm in args if _mentions_struct(arm) and get_origin(arm) is not None]
        if isinstance(value, list) and lists:
            return revive(lists[0], value, known)
        hint = Union[tuple(arms)] if arms else Any  # noqa: UP007
    if isinstance(hint, TypeVar) or hint in (Any, object):
        return value
    return msgspec.convert(value, hint, strict=False, str_keys=True)


def _revive_field(shape: StructShape, field: str, value: Any, known: dict[str, type[Struct]]) -> Any:
    match shape.kinds[field]:
        case "length":
            return _blank(value)
        case "lengths":
            container = get_origin(_bare(shape.hints[field])) or list
            return container(map(_blank, value))
        case "blank":
            bare = _bare(shape.hints[field])
            empty = get_origin(bare) or bare
            return empty() if empty in (dict, list, str, bytes, tuple) else None
        case "plain" | "deep" | "name" | "names" | "document":
            return revive(shape.hints[field], value, known)


def _blank(length: dict[str, Any]) -> bytes:
    """Blanks in place of a payload. ValueError for a length that no payload can have."""
    size_bytes = int(length["bytes"])
    if not 0 <= size_bytes <= MAX_BLANK_BYTES:
        raise ValueError(f"a payload of {size_bytes} bytes is longer than any line that carpool reads")
    return b" " * size_bytes


# --- annotations -----------------------------------------------------------------------------------------


def _kind(shape: StructShape, field: str, hint: Any) -> FieldKind:
    marks = _marks(hint)
    if "blank" in marks:
        return "blank"
    if "length" in marks:
        if _is_payload(hint):
            return "length"
        if get_origin(_bare(hint)) in (list, tuple):
            return "lengths"
        raise TypeError(
            f"{shape.name}.{field}: a payload stands alone or in a list, or a journal cannot strip it"
        )
    if "name" in marks:
        return "name" if _bare(hint) is str else "names"
    if _journal_mark(hint) == "document":
        return "document"
    return "deep" if _mentions_struct(hint) else "plain"


def _journal_mark(hint: Any) -> str | None:
    if get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, msgspec.Meta) and extra.extra:
                mark: str | None = extra.extra.get("journal")
                return mark
    return None


def _parts_of(hint: Any) -> tuple[Any, ...]:
    return () if get_origin(hint) is Literal else get_args(hint)


def _bare(hint: Any) -> Any:
    """The type without `Annotated` and without `None`."""
    if get_origin(hint) is Annotated:
        return _bare(hint.__origin__)
    if get_origin(hint) in (Union, types.UnionType):
        arms = [arm for arm in get_args(hint) if arm is not types.NoneType]
        if len(arms) == 1:
            return _bare(arms[0])
    return hint


def _may_be_none(hint: Any) -> bool:
    return types.NoneType in get_args(hint)


def _is_payload(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(arm is types.NoneType or _is_payload(arm) for arm in get_args(hint))
    return _journal_mark(hint) == "length"


def _marks(hint: Any) -> set[str]:
    """The journal marks of a type, without those inside Structs."""
    mark = _journal_mark(hint)
    if mark is not None:
        return {mark}
    return {mark for part in _parts_of(hint) for mark in _marks(part)}


def _mentions_struct(hint: Any) -> bool:
    """True if a value of this type can hold Structs. Any and TypeVar can."""
    if isinstance(hint, TypeVar) or hint in (Any, object):
        return True
    if isinstance(hint, type) and issubclass(hint, Struct):
        return True
    return any(map(_mentions_struct, _parts_of(hint)))


def _hides(hint: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """True if a value of this type can hold what a journal does not keep, at any depth."""
    if isinstance(hint, TypeVar) or hint in (Any, object) or _journal_mark(hint) not in (None, "document"):
        return True
    if isinstance(hint, type) and issubclass(hint, Struct):
        if hint in seen:
            return False
        inner = get_type_hints(hint, include_extras=True)
        return any(_hides(inner[f], seen | {hint}) for f in hint.__struct_fields__)
    return any(_hides(part, seen) for part in _parts_of(hint))


def _ids_in(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, NewType):
        return (hint,) if hint in _ID_KINDS else ()
    if isinstance(hint, type) and issubclass(hint, Struct):
        return ()
    return tuple(found for part in _parts_of(hint) for found in _ids_in(part))


def _lengths(values: Any) -> list[int]:
    return [len(value) for value in values or ()]


def _cut(name: str) -> str:
    """A name, or its beginning and its hash: different names stay different, and one name stays the same."""
    return name if len(name) <= SMALL_BYTES else f"{name[:_OF_NAME_CHARS]}~{hash(name):x}"


def _names(names: Any) -> list[str]:
    kept: list[str] = []
    left_chars = MAX_NAMES_CHARS
    for name in names:
        short = _cut(name)
        left_chars -= len(short) + _OVERHEAD_CHARS
        if left_chars < 0:
            kept.append(f"~{len(names) - len(kept)} more")
            break
        kept.append(short)
    return kept
