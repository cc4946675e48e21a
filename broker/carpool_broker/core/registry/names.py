"""The names of tools, or of prompts, within one scope: what each spelling means.

A table gives one of three answers: an offer, an offer that the configuration or the profile keeps back, or
none. Offers that are kept back do not change the names of the others. Names are given over all servers of a
scope, also those that are away, so that no name changes its meaning because a server went away. Immutable to
its users. Similar names are searched only where they are told (`similar_names`): that takes long. What other
spellings need is made in slices with the table. Refuses to know: what is behind a name, which servers are
away, how names are formed (`carpool_protocol.wire.tool_name_resolver`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

from carpool_broker.core.model.scope import Scope
from carpool_protocol.ids import ServerName
from carpool_protocol.machine import slices
from carpool_protocol.wire.tool_name_resolver import (
    MAX_NAME_CHARS,
    AmbiguousName,
    LegalForms,
    NoSuchName,
    ResolvedName,
    Resolver,
    Tool,
    legal_forms,
    qualifying_all,
)

T = TypeVar("T")

_NO_SUCH_NAME: Final = NoSuchName(())
_OFFER_UNITS: Final = 2
"""The cost of one offer that is not rewritten."""


class DeniedName(Struct, frozen=True):
    """The offer exists, and the server's configuration or the profile keeps it back (fault
    `not_permitted`).
    """

    server: ServerName
    name: str
    """The server's own name for it, or its URI."""
    profile: str = ""
    """The profile that keeps it back; empty if the server's configuration does."""


class _Names(NamedTuple):
    """All that the meaning of a spelling needs, made in slices."""

    names: Mapping[Tool, str]
    longer: Mapping[Tool, str] | None
    """The names for agents with the highest bound, where this scope's is lower."""
    legal: LegalForms

    def resolver(self, scope: Scope) -> Resolver:
        return Resolver(self.names, scope.prefixes, scope.name_prefixes, self.longer, self.legal)


def _name_all(scope: Scope, tools: Sequence[Tool]) -> slices.Steps[_Names]:
    def named(most: int) -> slices.Steps[dict[Tool, str]]:
        return qualifying_all(tools, scope.prefixes, scope.separator, scope.name_prefixes, most=most)

    names = yield from named(scope.name_chars)
    longer = (yield from named(MAX_NAME_CHARS)) if scope.name_chars < MAX_NAME_CHARS else None
    return _Names(names, longer, (yield from legal_forms(names)))


class NameTable(Generic[T]):
    """One name space of a scope."""

    __slots__ = (
        "_denied",
        "_denied_resolver",
        "_resolver",
        "_resolving",
        "_scope",
        "_tools",
        "by_name",
    )

    def __init__(
        self, scope: Scope, resolving: "_Names", denied: "_Names", by_name: dict[str, T], *, tools: bool
    ) -> None:
        """See `build`."""
        self._scope = scope
        self._tools = tools
        self._resolving = resolving
        self._denied = denied
        self._resolver: Resolver | None = None
        self._denied_resolver: Resolver | None = None
        self.by_name = by_name
        """All offers that are let through, by qualified name, in the order of lists."""

    @classmethod
    def build(
        cls,
        scope: Scope,
        allowed: Sequence[Tool],
        denied: Sequence[Tool],
        make: Callable[[Tool, str], T],
        *,
        tools: bool,
        units: Callable[[T], int] = lambda _: _OFFER_UNITS,
    ) -> "slices.Steps[NameTable[T]]":
        """Build the table. `allowed` and `denied` are in the order of lists; `make` gives what (server, own
        name) is shown as; `tools` is false for prompts; `units` is the cost of `make`.
        """
        resolving = yield from _name_all(scope, allowed)
        by_name: dict[str, T] = {}

        def add(named: tuple[Tool, str]) -> int:
            own, name = named
            offer = by_name[name] = make(own, name)
            return units(offer)

        yield from slices.handle_each(resolving.names.items(), add)
        return cls(scope, resolving, (yield from _name_all(scope, denied)), by_name, tools=tools)

    @property
    def resolver(self) -> Resolver:
        """Return the resolver of all spellings, which is made for the first name that is not a qualified
        one.
        """
        if self._resolver is None:
            self._resolver = self._resolving.resolver(self._scope)
        return self._resolver

    def resolve(self, spelling: str) -> T | AmbiguousName | DeniedName | NoSuchName:
        """Return what `spelling` means. `NoSuchName` is without suggestions."""
        found = self.by_name.get(spelling)
        if found is not None:
            return found
        answer = self.resolver.meaning(spelling)
        match answer:
            case ResolvedName():
                return self.by_name[answer.qualified]
            case AmbiguousName():
                return answer
            case None:
                return self._denial(spelling) or _NO_SUCH_NAME

    def similar_names(self, spelling: str) -> tuple[str, ...]:
        """Return the names that are similar to `spelling`, which means none. Takes a millisecond or more."""
        return self.resolver.guess(spelling).suggestions

    def _denial(self, spelling: str) -> DeniedName | None:
        if not self._denied.names:
            return None
        if self._denied_resolver is None:
            self._denied_resolver = self._denied.resolver(self._scope)
        denied = self._denied_resolver.meaning(spelling)
        if not isinstance(denied, ResolvedName):
            return None
        return self._denied_by(denied.server, denied.tool)

    def _denied_by(self, server: ServerName, name: str) -> DeniedName:
        entry = self._scope.entry_of(server)
        by_file = self._tools and entry is not None and not entry.allows(name)
        return DeniedName(server, name, "" if by_file else self._scope.profile)
