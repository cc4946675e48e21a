"""The names of tools, or of prompts, within one scope: what each spelling means.

A table gives one of three answers: an offer, an offer that the configuration or the profile keeps back, or
none. Offers that are kept back do not change the names of the others. Names are given over all servers of a
scope, also those that are away, so that no name changes its meaning because a server went away. Immutable to
its users; the tables for rare spellings are built on first use. Refuses to know: what is behind a name,
which servers are away, how names are formed (`carpool_protocol.wire.tool_name_resolver`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from carpool_broker.core.model.scope import Scope
from carpool_protocol.ids import ServerName
from carpool_protocol.machine import slices
from carpool_protocol.wire.tool_name_resolver import (
    MAX_NAME_CHARS,
    AmbiguousName,
    NoSuchName,
    ResolvedName,
    Resolver,
    Tool,
    qualify_all,
    qualifying_all,
)

T = TypeVar("T")


class DeniedName(Struct, frozen=True):
    """The offer exists, and the server's configuration or the profile keeps it back (fault
    `not_permitted`).
    """

    server: ServerName
    name: str
    """The server's own name for it, or its URI."""
    profile: str = ""
    """The profile that keeps it back; empty if the server's configuration does."""


class NameTable(Generic[T]):
    """One name space of a scope."""

    __slots__ = (
        "_denied",
        "_denied_resolver",
        "_heads",
        "_names",
        "_prefixes",
        "_resolver",
        "_scope",
        "_tools",
        "by_name",
    )

    def __init__(
        self,
        scope: Scope,
        names: Mapping[Tool, str],
        denied: Sequence[Tool],
        by_name: dict[str, T],
        *,
        tools: bool,
    ) -> None:
        """See `build`."""
        self._scope = scope
        self._tools = tools
        self._prefixes = scope.prefixes
        self._heads = scope.name_prefixes
        self._names = names
        self._denied = tuple(denied)
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
    ) -> "slices.Steps[NameTable[T]]":
        """Build the table. `allowed` and `denied` are in the order of lists; `make` gives what (server, own
        name) is shown as; `tools` is false for prompts.
        """
        names = yield from qualifying_all(
            allowed, scope.prefixes, scope.separator, scope.name_prefixes, most=scope.name_chars
        )
        by_name: dict[str, T] = {}
        step = slices.STEP_ENTRIES
        for at, (own, name) in enumerate(names.items(), 1):
            if not at % step:
                yield 2 * step
            by_name[name] = make(own, name)
        return cls(scope, names, denied, by_name, tools=tools)

    def _name(self, tools: Iterable[Tool], most: int | None = None) -> dict[Tool, str]:
        scope = self._scope
        return qualify_all(tools, self._prefixes, scope.separator, self._heads, most=most or scope.name_chars)

    def _resolve_by(self, names: Mapping[Tool, str]) -> Resolver:
        cut = self._scope.name_chars < MAX_NAME_CHARS
        longer = self._name(names, MAX_NAME_CHARS) if cut else None
        return Resolver(names, self._prefixes, self._heads, longer)

    @property
    def resolver(self) -> Resolver:
        """Return the resolver of all spellings, which is built for the first name that is not a qualified
        one.
        """
        if self._resolver is None:
            self._resolver = self._resolve_by(self._names)
        return self._resolver

    def resolve(self, spelling: str) -> T | AmbiguousName | DeniedName | NoSuchName:
        """Return what `spelling` means."""
        found = self.by_name.get(spelling)
        if found is not None:
            return found
        answer = self.resolver.resolve(spelling)
        match answer:
            case ResolvedName():
                return self.by_name[answer.qualified]
            case AmbiguousName():
                return answer
            case NoSuchName():
                return self._denial(spelling) or answer

    def _denial(self, spelling: str) -> DeniedName | None:
        if not self._denied:
            return None
        if self._denied_resolver is None:
            self._denied_resolver = self._resolve_by(self._name(self._denied))
        denied = self._denied_resolver.resolve(spelling)
        if not isinstance(denied, ResolvedName):
            return None
        return self._denied_by(denied.server, denied.tool)

    def _denied_by(self, server: ServerName, name: str) -> DeniedName:
        entry = self._scope.entry_of(server)
        by_file = self._tools and entry is not None and not entry.allows(name)
        return DeniedName(server, name, "" if by_file else self._scope.profile)
