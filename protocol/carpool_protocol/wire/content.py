"""Finds and replaces content blocks and URIs within messages.

Owns which members of which messages hold blocks and URIs (MCP 2025-11-25 schema: `CallToolResult.content`,
`GetPromptResult.messages[].content`, `ReadResourceResult.contents[].uri`, `ResourceLink.uri`,
`EmbeddedResource.resource.uri`, `ResourceUpdatedNotification.params.uri`). Bytes are cut, never decoded and
written again: every byte stays except the replaced value and blanks between members. A text that cannot be
cut or needs no change is returned as the same object. An array with more parts than may be looked at in one
step is not changed: `TooManyPartsError`, so that nothing that had to be changed passes as it is. The same
holds for an object with more members than are cut (`change_members_strictly`).

Takes legal JSON that is free of control bytes, as `jsonrpc.decode` returns it. Knows nothing of: versions,
servers, the meaning of a URI.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from carpool_protocol.ids import EMPTY_OBJECT, RawJson
from carpool_protocol.wire.json_scan import (
    MAX_MEMBERS,
    MAX_NAMES_BYTES,
    MAX_PARTS,
    has_too_many_parts,
    key_text,
    members,
    without_half_pairs,
)
from carpool_protocol.wire.jsonrpc import quote

Change = Callable[[bytes], bytes]
"""Returns the replacement of a value, or the same object for no change."""

MAX_COMMAS: Final = 1_000_000
"""An array in a text with more commas is not cut: each of its elements costs many times its size."""

_read_list = msgspec.json.Decoder(list[Raw]).decode
_NO_ELEMENT: Final = Raw(b"")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class TooManyPartsError(Exception):
    """A change would have to look at more than it may in one step."""

    text = (
        "It would take too long to adapt it for this agent, which is done for objects of up to "
        f"{MAX_MEMBERS:,} members with {MAX_NAMES_BYTES // 1024} KiB of names, and for up to {MAX_PARTS:,} "
        "parts."
    )
    """The reason, for people."""


def elements_to_change(raw: bytes) -> list[bytes] | None:
    """As `elements`, of an array whose elements are all looked at. Raises `TooManyPartsError`."""
    if has_too_many_parts(raw):
        raise TooManyPartsError
    return elements(raw)


def reader_of_few(most: int) -> Callable[[bytes], list[Raw]]:
    """A reader of the elements of a JSON array. At one more than `most` it stops, and raises
    `msgspec.ValidationError`: of an array, nothing else is wrong for it.
    """
    members = [(f"element{at}", Raw, msgspec.field(default=_NO_ELEMENT)) for at in range(most)]
    few = msgspec.defstruct("FewElements", members, array_like=True, forbid_unknown_fields=True, gc=False)
    read = msgspec.json.Decoder(few).decode
    return lambda raw: [each for each in msgspec.structs.astuple(read(raw)) if each is not _NO_ELEMENT]


def elements(raw: bytes, read: Callable[[bytes], list[Raw]] = _read_list) -> list[bytes] | None:
    """The elements of one JSON array. None if it is no array or cannot be cut, or has more than `read` reads
    (`reader_of_few`).
    """
    if raw[:1] != b"[" or raw.count(b",") > MAX_COMMAS:
        return None
    try:
        return [bytes(found) for found in read(raw)]
    except _UNREADABLE:
        pass
    try:  # half a surrogate pair (rule 16): cut where the elements of a legal text of the same shape end
        lengths = [len(bytes(found)) for found in read(without_half_pairs(raw))]
    except _UNREADABLE:
        return None
    cuts: list[bytes] = []
    pos = 1
    for length in lengths:
        while raw[pos] in b" ,":
            pos += 1
        cuts.append(raw[pos : pos + length])
        pos += length
    return cuts


def change_elements(raw: bytes, change: Change) -> bytes:
    """The array with `change` applied to every element. Raises `TooManyPartsError`."""
    found = elements_to_change(raw)
    if found is None:
        return raw
    changed = [change(element) for element in found]
    if all(new is old for new, old in zip(changed, found, strict=True)):
        return raw
    return b"[%b]" % b",".join(changed)


def change_members(raw: bytes, changes: Mapping[str, Change | None]) -> bytes:
    """The object with the members of these names changed (None: removed), also a name that stands twice."""
    cuts = members(raw) if raw[:1] == b"{" else None
    if cuts is None:
        return raw
    parts: list[bytes] = []
    is_same = True
    for cut in cuts:
        key = raw[cut.key : cut.key_end]
        name = key_text(key)
        if name is None or name not in changes:
            parts.append(raw[cut.key : cut.value_end])
            continue
        change = changes[name]
        value = raw[cut.value : cut.value_end]
        new = value if change is None else change(value)
        is_same = is_same and change is not None and new is value
        if change is not None:
            parts.append(key + b":" + new)
    return raw if is_same else b"{%b}" % b",".join(parts)


def change_members_strictly(raw: bytes, changes: Mapping[str, Change | None]) -> bytes:
    """As `change_members`, of a value that must not pass as it is where it is an object that cannot be cut.
    Raises `TooManyPartsError` then.
    """
    changed = change_members(raw, changes)
    if changed is raw and raw[:1] == b"{" and members(raw) is None:
        raise TooManyPartsError
    return changed


def mentions(raw: bytes, quoted: bytes) -> bool:
    """True if a text can have a member or string with this spelling. Escapes within names are not
    considered.
    """
    return quoted in raw


def with_uri(definition: RawJson, key: str, uri: str) -> RawJson:
    """A resource's definition with another `uri` (of a template: with the key `uriTemplate`)."""
    return RawJson(change_members(definition, {key: lambda _: quote(uri)}))


def change_blocks(method: str, result: RawJson, change: Change) -> RawJson:
    """The result of a `tools/call` or `prompts/get` with every content block changed. Other results stay.
    Raises `TooManyPartsError`.
    """
    if method == "tools/call":
        return RawJson(
            change_members_strictly(result, {"content": lambda content: change_elements(content, change)})
        )
    if method == "prompts/get":
        return RawJson(
            change_members_strictly(
                result,
                {
                    "messages": lambda messages: change_elements(
                        messages, lambda it: change_members_strictly(it, {"content": change})
                    )
                },
            )
        )
    return result


def rewrite_uris(method: str, body: RawJson, outward: Callable[[str], str]) -> RawJson:
    """The result (of `notifications/resources/updated`: the params) with the URIs that agents see.

    Only for scopes with colliding URIs. URIs in texts and in `structuredContent` stay as the server wrote
    them. Raises `TooManyPartsError`.
    """
    if not mentions(body, b'"uri"'):
        return body

    def uri(raw: bytes) -> bytes:
        original = key_text(raw) if raw[:1] == b'"' else None
        if original is None:
            return raw
        shown = outward(original)
        return raw if shown == original else quote(shown)

    def block(raw: bytes) -> bytes:
        kind = block_type(raw)
        if kind == "resource":
            return change_members_strictly(
                raw, {"resource": lambda inner: change_members_strictly(inner, {"uri": uri})}
            )
        # A block whose type cannot be read may be a link.
        return change_members_strictly(raw, {"uri": uri}) if kind in {"resource_link", None} else raw

    def result(raw: bytes) -> bytes:
        return rewrite_uris("tools/call", RawJson(raw), outward)

    match method:
        case "resources/read":
            return RawJson(
                change_members_strictly(
                    body,
                    {
                        "contents": lambda found: change_elements(
                            found, lambda it: change_members_strictly(it, {"uri": uri})
                        )
                    },
                )
            )
        case "notifications/resources/updated":
            return RawJson(change_members_strictly(body, {"uri": uri}))
        case "tasks/get":
            return RawJson(change_members_strictly(body, {"result": result}))
        case _:
            return change_blocks(method, body, block)


def block_type(raw: bytes) -> str | None:
    """The `type` of a content block; None if it has none."""
    return text_of(raw, "type")


def text_of(raw: bytes, key: str) -> str | None:
    """The value of a string member of an object (the last of doubles); None if there is none."""
    found = value_of(raw, key)
    return key_text(found) if found is not None and found[:1] == b'"' else None


def value_of(raw: bytes, key: str) -> bytes | None:
    """The raw value of a member of an object (the last of doubles); None if there is none."""
    cuts = members(raw) if raw[:1] == b"{" else None
    for cut in reversed(cuts or ()):
        if key_text(raw[cut.key : cut.key_end]) == key:
            return raw[cut.value : cut.value_end]
    return None


def without_members(raw: bytes, names: Collection[str]) -> bytes:
    """Return the object without its members of these names. `names` are in lower case.

    Escaped names, doubles and other cases are removed too, because some readers ignore case. An object that
    cannot be cut becomes `{}`.
    """
    cuts = members(raw)
    if cuts is None:
        return EMPTY_OBJECT
    found = [(key_text(raw[cut.key : cut.key_end]) or "").casefold() for cut in cuts]
    if not any(name in names for name in found):
        return raw
    kept = [raw[cut.key : cut.value_end] for cut, name in zip(cuts, found, strict=True) if name not in names]
    return b"{%b}" % b",".join(kept)
