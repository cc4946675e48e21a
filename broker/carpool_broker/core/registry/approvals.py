"""Which words of a server the user has approved: definitions of tools, and its instructions.

Owns, for each pinned server: the definitions that count as approved, and the judgement of a tool by them.
What a server lists when it is met for the first time is approved as a whole (trust on first use); from then
on a tool that is new or whose definition differs is held, until `carpool pin approve`. A tool that goes is no
matter. Where what was approved cannot be read, everything is held. Every member of a definition counts, since
agents get all of them. One that two readers of JSON can read as two different tools (a key twice, or a known
key in another case) is approved by hand only, as the very bytes. Instructions are approved and held as a tool
without a name would be (`INSTRUCTIONS`). Pools of one server (other workspaces, variables or classes of
agents) may say other words: then each definition is approved for itself, and stays approved until another
takes its place and no pool offers it any more.

Invariant: nothing is approved that its server has not said itself.
Knows nothing of: views, files, sessions, what a server is run as (`approval`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from carpool_broker.core.model.approval import Approved, Definition, PinId
from carpool_broker.core.model.effects import AnyEffect, SaveApprovals
from carpool_protocol.ids import RawJson
from carpool_protocol.machine import slices

HeldReason = Literal["new", "changed", "unreadable"]
"""The reason why a tool is held: it is not among the approved ones; its definition differs from the approved
one; or what was approved cannot be read.
"""

INSTRUCTIONS: Final = ""
"""The name under which the instructions of a server stand among its tools. Tools have names that are not
empty.
"""
_KNOWN: Final = frozenset(
    (
        *("name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution"),
        *(
            "_meta",
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "default",
            "format",
            "pattern",
            "const",
        ),
    )
)
"""The keys of a tool and of its schemas that agents act on."""
_KNOWN_BYTES: Final = 8192
"""A longer definition is judged again each time: the cache is bounded by number, and a server may change long
definitions all the time.
"""
_FOLDED: Final = {key.casefold(): key for key in _KNOWN}
_AMBIGUOUS: Final = "two readers of JSON can read it differently: "
"""The beginning of the canonical form of such a definition."""
MAX_PARTS: Final = 16_384
"""The members and elements of a definition whose canonical form is made. Others would delay everybody."""
_TOO_LARGE: Final = "it has too many parts to be compared: "
"""The beginning of the canonical form of a larger one."""

_BYTES_OF_UNIT: Final = 8

Definitions = Mapping[str, RawJson]
"""Definitions by the server's own name of the tool."""


class HeldTool(Struct, frozen=True):
    """One tool that is held, as operators see it."""

    tool: str
    why: HeldReason
    before: str
    """The approved definition; empty if there is none, or it was not kept."""
    now: str
    digest: str
    """The digest of `now`."""


class Approvals:
    """The approvals of all pinned servers in use."""

    def __init__(self, out: Callable[[AnyEffect], None]) -> None:
        self._emit = out
        self.approved: dict[PinId, Approved | None] = {}
        """By pin; None if the server's catalog was never seen."""

    def pins_read(self, found: Mapping[PinId, Approved | None]) -> None:
        """The pins in use were read. What is known already stays: it is never older than what is on disk."""
        for pin, approved in found.items():
            self.approved.setdefault(pin, approved)

    def catalog_received(self, pin: PinId, offers: Definitions) -> slices.Steps[None]:
        """The server itself has told its catalog. The first time, all of it is approved."""
        if pin in self.approved and self.approved[pin] is None:
            approved: dict[str, Definition] = {}

            def approve(offer: tuple[str, RawJson]) -> int:
                tool, definition = offer
                found = approval_digest(definition)
                if not is_ambiguous(found):
                    approved[tool] = found
                return _judging_units(definition)

            yield from slices.handle_each(offers.items(), approve)
            if self.approved.get(pin) is None:  # nobody has approved anything between two slices
                self._add_approvals(pin, approved)

    def held_tools(
        self, pin: PinId, offers: Definitions, digests: dict[str, str]
    ) -> slices.Steps[dict[str, HeldReason]]:
        """Return which of these tools are held, and why. `digests` has the digests of these definitions that
        are known, and learns the others.
        """
        approved = self.approved.get(pin)
        if approved is None:
            return {}
        if approved.damaged:
            return dict.fromkeys(offers, "unreadable")
        found: dict[str, HeldReason] = {}

        def compare(offer: tuple[str, RawJson]) -> int:
            tool, definition = offer
            units = 2
            before = approved.for_tool(tool)
            if not before:
                found[tool] = "new"
                return units
            digest = digests.get(tool)
            if digest is None:
                digest = digests[tool] = approval_digest(definition).digest
                units += _judging_units(definition)
            if digest not in (each.digest for each in before):
                found[tool] = "changed"
            return units

        yield from slices.handle_each(offers.items(), compare)
        return found

    def held_definitions(self, pin: PinId, offers: Definitions) -> list[HeldTool]:
        """Return the held tools with both definitions."""
        approved = self.approved.get(pin)
        before = {} if approved is None else approved.tools
        return [
            HeldTool(tool, why, before[tool].text if tool in before else "", now.text, now.digest)
            for tool, why in slices.run_all_slices(self.held_tools(pin, offers, {})).items()
            for now in (approval_digest(offers[tool]),)
        ]

    def approve_tools(self, pin: PinId, pools: Sequence[Definitions], wanted: Mapping[str, str]) -> None:
        """Approve these tools, if one of the server's pools still offers the definition with this digest."""
        approved = self.approved.get(pin)
        if approved is None or approved.damaged:
            approved = Approved({})
        tools, also, found = dict(approved.tools), dict(approved.also), False
        for tool, said in wanted.items():
            now = {each.digest: each for each in (approval_digest(it[tool]) for it in pools if tool in it)}
            if said in now:
                others = (
                    each for each in approved.for_tool(tool) if each.digest in now and each.digest != said
                )
                tools[tool], also[tool] = now[said], tuple(others)
                found = True
        if found:
            self._add_approvals(pin, tools, {tool: others for tool, others in also.items() if others})

    def _add_approvals(
        self, pin: PinId, tools: Mapping[str, Definition], also: Mapping[str, tuple[Definition, ...]] = {}
    ) -> None:
        self.approved[pin] = Approved(tools, also=also)
        self._emit(SaveApprovals(pin))


def approval_digest(definition: RawJson) -> Definition:
    """Return the digest and the text that an approval of this definition keeps."""
    return (_known_digest if len(definition) <= _KNOWN_BYTES else _approval_digest)(definition)


def _approval_digest(definition: RawJson) -> Definition:
    text = canonical_definition(definition)
    return Definition(hashlib.sha256(text.encode()).hexdigest(), text)


_known_digest = lru_cache(1024)(_approval_digest)
"""Several pools of one server offer the same definitions."""


def canonical_definition(definition: RawJson) -> str:
    """Return a definition in one spelling, with every member. A definition that cannot be read, can be read
    in two ways or has too many parts is returned as it is.
    """
    if sum(map(definition.count, (b",", b":", b"{", b"["))) > MAX_PARTS:
        return _TOO_LARGE + definition.decode("utf-8", "replace")
    try:
        whole = json.loads(definition, object_pairs_hook=_members, parse_int=_number, parse_float=_number)
        text = msgspec.json.encode(whole, order="sorted").decode()
    except _AmbiguousError:
        return _AMBIGUOUS + definition.decode("utf-8", "replace")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return definition.decode("utf-8", "replace")
    if isinstance(whole, dict) and any(key not in _KNOWN and key.casefold() in _FOLDED for key in whole):
        return _AMBIGUOUS + definition.decode("utf-8", "replace")
    return text


def is_ambiguous(definition: Definition) -> bool:
    """True if the definition can be read in two ways, so that it is unknown which one an agent reads. One
    with too many parts counts as such, because nobody looks.
    """
    return definition.text.startswith((_AMBIGUOUS, _TOO_LARGE))


def _judging_units(definition: RawJson) -> int:
    """The cost of the digest of a definition."""
    return 4 + len(definition) // _BYTES_OF_UNIT


class _AmbiguousError(Exception):
    """A key stands twice, or a known key stands in another case."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One object, at any depth."""
    members = dict(pairs)
    if len(members) < len(pairs) or any(
        key not in _KNOWN and _FOLDED.get(key.casefold()) in members for key in members
    ):
        raise _AmbiguousError
    return members


def _number(text: str) -> msgspec.Raw:
    """As it is written: no number is too large, and none is rounded."""
    return msgspec.Raw(text.encode())
