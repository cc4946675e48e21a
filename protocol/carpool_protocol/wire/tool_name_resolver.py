"""The tool names that agents see: how they are formed, and the meaning of every other spelling.

Owns legal server names, `server__tool`, shortening and collisions, the meaning of spellings, and the server
that a spelling reads as a name of. Invariants:

- A qualified name matches `[a-zA-Z0-9_-]{1,64}`, which every model API accepts. A lower bound leaves room for
  a prefix that an agent adds.
- No two tools of one set share a name.
- A name depends only on its own server, tool, prefix, separator and bound and on the names of other servers.
  Exception: tools of the same set that get the same name all carry a hash of their own (server, tool), so
  order and other tools have no influence.
- Every way to split a name is looked up: `a_b` + `c` and `a` + `b_c` look alike once joined.
- A server's tool names never let one of its tools mean a spelling that reads as a name of another server
  (`NamePrefixes`), even if that server's tools are not in the table.

Knows nothing of: JSON, catalogs, rights to call. Prompts follow the same rules with the same functions.
"""

import difflib
import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter

from msgspec import Struct

from carpool_protocol.ids import ServerName
from carpool_protocol.machine import slices

SEPARATOR = "__"
MAX_NAME_CHARS = 64
MIN_NAME_CHARS = 32
"""The smallest bound on names: room for a hash and for a readable piece of server and tool."""
MAX_SERVER_NAME_CHARS = 40
"""Leaves room for a readable piece of the tool and a hash within `MAX_NAME_CHARS`."""
MAX_SEPARATOR_CHARS = 8

_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL_CHAR = re.compile(r"[^A-Za-z0-9_-]")
_ILLEGAL_CHARS = re.compile(r"[^A-Za-z0-9_-]+")
_SERVER_NAME = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")

_HASH_CHARS = 8

_NAME_UNITS = 2
"""The cost of one name, plus one unit for this many characters. See `SlicedWork`."""
_CHARS_OF_UNIT = 16

_SUGGESTIONS = 3
_SUGGESTION_CUTOFF = 0.6
_RANKED = 16
_MAX_GUESSED_CHARS = 2 * MAX_NAME_CHARS
_REMEMBERED_GUESSES = 128
_SEARCHED_NAMES = 1024
"""Similar names are searched among so many: each server's share is equal, its first names count."""
_MAX_CANDIDATES = 16
"""So many tools of one server can share one legal form. The form is ambiguous from two on."""

Tool = tuple[ServerName, str]
"""A tool by its real names: the server as configured, and the server's own name for the tool."""


def check_server_name(name: str, what: str = "server") -> str | None:
    """The problem of `name` as the name of a server (or of a `what`), as a sentence. None if it may be
    used.
    """
    if not name:
        return f"A {what} needs a name."
    if len(name) > MAX_SERVER_NAME_CHARS:
        return f"A {what} name has at most {MAX_SERVER_NAME_CHARS} characters, this one has {len(name)}."
    if _SERVER_NAME.fullmatch(name) is None:
        if "__" in name or name[0] == "_" or name[-1] == "_":
            return (
                f"The {what} name {name!a} has an underscore at an end or two in a row; "
                "a single one between letters, digits or hyphens is allowed."
            )
        return f"The {what} name {name!a} may hold only A-Z, a-z, 0-9, hyphen and single underscores."
    return None


def safe_server_name(name: str) -> str:
    """The nearest legal server name: `my server!` → `my-server`."""
    plain = re.sub(r"_{2,}", "_", _ILLEGAL_CHARS.sub("-", name)).strip("_-")
    plain = plain[:MAX_SERVER_NAME_CHARS].strip("_-")
    return plain if plain and check_server_name(plain) is None else "server"


def safe_server_names(names: Iterable[str]) -> dict[str, str]:
    """The nearest legal names for all servers of one file, each different.

    If several get the same name, those that were changed all get a hash of their original name, so that order
    has no influence.
    """
    found = {name: name if check_server_name(name) is None else safe_server_name(name) for name in names}
    count = Counter(found.values())
    room = MAX_SERVER_NAME_CHARS - _HASH_CHARS - 1
    for name, safe in found.items():
        if safe != name and count[safe] > 1:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
            found[name] = f"{safe[:room].rstrip('_-')}-{digest}"
    return found


def check_separator(separator: str) -> str | None:
    """The problem of `separator`, as a sentence. None if it may be used."""
    if not separator or len(separator) > MAX_SEPARATOR_CHARS or _LEGAL.fullmatch(separator) is None:
        return f"A separator is 1 to {MAX_SEPARATOR_CHARS} of A-Z, a-z, 0-9, underscore and hyphen."
    return None


def check_tools_prefix(prefix: str) -> str | None:
    """The problem of a `tools_prefix`, as a sentence. None if it may be used (`""` may)."""
    if prefix and (len(prefix) > MAX_SERVER_NAME_CHARS or _LEGAL.fullmatch(prefix) is None):
        return f"A tools_prefix is at most {MAX_SERVER_NAME_CHARS} of A-Z, a-z, 0-9, underscore and hyphen."
    return None


def check_name_length(chars: int) -> str | None:
    """The problem of a bound on the length of names, as a sentence. None if it may be used."""
    if not MIN_NAME_CHARS <= chars <= MAX_NAME_CHARS:
        return (
            f"The bound on the length of tool names must be {MIN_NAME_CHARS} to {MAX_NAME_CHARS} characters."
        )
    return None


def legalise(name: str) -> str:
    """`name` with `_` in place of every character that model APIs refuse. Never empty; may still be too
    long.
    """
    return _ILLEGAL_CHAR.sub("_", name) or "_"


def qualify(
    server: str,
    tool: str,
    separator: str = SEPARATOR,
    prefix: str | None = None,
    *,
    hashed: int = 0,
    most: int = MAX_NAME_CHARS,
) -> str:
    """The qualified name of one tool, legal for any input.

    `prefix` stands in place of the server's name; with `""` the tool keeps its own name, without a separator.
    `most`: the longest name, from `MIN_NAME_CHARS` to `MAX_NAME_CHARS`. `hashed` 0 is the plain name, with a
    hash only if it is too long. Each higher number is another spelling of the same tool with a longer (in the
    end: another) hash, from which `qualify_all` chooses.
    """
    head = (server if prefix is None else prefix) + separator if prefix != "" else ""
    plain = head + tool
    if not hashed:
        if len(plain) <= most and _LEGAL.fullmatch(plain) is not None:
            return plain
        plain = legalise(plain)
        if len(plain) <= most:
            return plain
    rounds = max(1, hashed)
    chars = min(_HASH_CHARS * rounds, most // 2)
    identity = f"{server}\0{tool}" if chars == _HASH_CHARS * rounds else f"{server}\0{tool}\0{rounds}"
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:chars]
    room = most - 1 - chars
    # A head longer than any server name (a foreign prefix) must not push the tool out of its own name.
    head = head[: min(MAX_SERVER_NAME_CHARS + MAX_SEPARATOR_CHARS, room - room // 4)]
    return f"{legalise((head + tool)[:room])}_{digest}"


def qualify_all(
    tools: Iterable[Tool],
    prefixes: Mapping[ServerName, str | None],
    separator: str = SEPARATOR,
    heads: "NamePrefixes | None" = None,
    *,
    most: int = MAX_NAME_CHARS,
) -> dict[Tool, str]:
    """Distinct legal names for a set of tools, in the given order. A tool given twice counts once.

    `prefixes` holds the `tools_prefix` of servers that have one; `most` is the longest name. A name that
    `heads` reads as another server's is formed with the server's own name instead; if that does not help, it
    gets a hash. Tools with equal names all get a hash, until no two names are equal. Each round treats the
    whole set at once, so that order has no influence.
    """
    return slices.run_all_slices(qualifying_all(tools, prefixes, separator, heads, most=most))


def qualifying_all(
    tools: Iterable[Tool],
    prefixes: Mapping[ServerName, str | None],
    separator: str = SEPARATOR,
    heads: "NamePrefixes | None" = None,
    *,
    most: int = MAX_NAME_CHARS,
) -> slices.Steps[dict[Tool, str]]:
    """The same as `qualify_all`, as work in slices for long lists of tools."""
    names: dict[Tool, str] = {}
    hashed: dict[Tool, int] = {}
    unprefixed: set[Tool] = set()

    def add_name(key: Tool) -> int:
        server, tool = key
        units = _NAME_UNITS + len(tool) // _CHARS_OF_UNIT
        prefix = prefixes.get(server)
        names[key] = qualify(server, tool, separator, prefix, most=most)
        hashed[key] = 0
        if (
            heads is None
            or not (prefix == "" or server in heads.ambiguous_servers)
            or heads.may_mean(names[key], server)
        ):
            return units
        unprefixed.add(key)
        names[key] = qualify(server, tool, separator, most=most)
        if not heads.may_mean(names[key], server):
            hashed[key] = 1
            names[key] = qualify(server, tool, separator, hashed=1, most=most)
        return units

    yield from slices.handle_each(tools, add_name)
    while len(set(names.values())) < len(names):
        sharing: dict[str, list[Tool]] = {}
        for key, name in names.items():
            sharing.setdefault(name, []).append(key)
        yield len(names)
        for some in slices.batched([key for group in sharing.values() if len(group) > 1 for key in group]):
            for key in some:
                prefix = None if key in unprefixed else prefixes.get(key[0])
                hashed[key] += 1
                names[key] = qualify(*key, separator, prefix, hashed=hashed[key], most=most)
            yield 4 * len(some)
    return names


LegalForms = Mapping[Tool, Sequence[str]]
"""By (server, legal form): the server's own names that are not legal and have this form."""


def legal_forms(tools: Iterable[Tool]) -> slices.Steps[LegalForms]:
    """Find the legal forms of names that are not legal themselves."""
    found: dict[Tool, list[str]] = {}

    def add_form(key: Tool) -> int:
        server, tool = key
        units = 1 + len(tool) // _CHARS_OF_UNIT
        if tool and _ILLEGAL_CHAR.search(tool) is None:
            return units
        having = found.setdefault((server, legalise(tool)), [])
        if len(having) < _MAX_CANDIDATES:
            having.append(tool)
        return _NAME_UNITS + units

    yield from slices.handle_each(tools, add_form)
    return found


def spellings(server: str, tool: str, prefix: str | None = None) -> list[str]:
    """Every way in which other systems write this tool, the bare tool last. `Resolver` decides which ones it
    means.

    A tool with an illegal name is also found under its legal form, which a model was shown. A `prefix` is
    written in the same ways as the server's name.
    """
    found: dict[str, None] = {}
    legal = legalise(tool)
    for name in (tool,) if legal == tool else (tool, legal):
        for head in _spelled_heads(server, prefix):
            found[head + name] = None
        found[name] = None
    return list(found)


def _spelled_heads(server: str, prefix: str | None) -> list[str]:
    """What stands before the tool in each spelling but the bare one."""
    return [
        head
        for name in ((prefix, server) if prefix else (server,))
        for head in (
            f"{name}__",
            f"{name}_",
            f"mcp__{name}__",
            f"mcp:{name}:",
            f"mcp:{name}.",
            f"mcp_{name}_",
            f"{name}.",
        )
    ]


def _name_prefixes(name: str, separator: str) -> set[str]:
    """The beginnings of all spellings of any tool of a server, for its name or its `tools_prefix`."""
    heads = {f"{mcp}{name}{mark}" for mcp, mark in product(("", "mcp__", "mcp:", "mcp_"), ("_", ".", ":"))}
    return {*heads, legalise(name + separator)}


def may_be_of(spelling: str, server: str, separator: str = SEPARATOR, prefix: str | None = None) -> bool:
    """True if `spelling` begins like a name of this server, whatever its tools are.

    For explanations why it cannot be called, never to route a call.
    """
    if prefix == "":
        return True
    names = {server, server if prefix is None else prefix}
    return spelling.startswith(tuple(head for name in names for head in _name_prefixes(name, separator)))


class NamePrefixes:
    """Finds the server that a spelling reads as a name of: the one with the longest matching beginning.

    It knows all configured servers in any state, so that no spelling comes to mean another server's tool
    while one is down. A `tools_prefix` is read as the server's name is, unless another server's name is read
    that way: a prefix cannot take over a name. A server of `former` gets the beginnings that no other server
    has.
    """

    __slots__ = ("_lengths", "_owners", "ambiguous_servers")

    def __init__(
        self,
        servers: Mapping[ServerName, str | None],
        separator: str = SEPARATOR,
        *,
        former: Mapping[ServerName, str | None] | None = None,
    ) -> None:
        """`servers`: each with its `tools_prefix`."""
        owners: dict[str, frozenset[ServerName]] = {}
        for group in (servers, former or {}):
            for names in (((it, it) for it in group), group.items()):
                found: dict[str, set[ServerName]] = {}
                for server, name in names:
                    for head in _name_prefixes(name, separator) if name else ():
                        if head not in owners:
                            found.setdefault(head, set()).add(server)
                owners |= {head: frozenset(which) for head, which in found.items()}
        self._owners = owners
        self._lengths = sorted({len(head) for head in owners}, reverse=True)
        self.ambiguous_servers = self._find_crossed(servers, separator)
        """Servers with their own name or prefix in spellings that can also read as a name of another
        server.
        """

    def _find_crossed(
        self, servers: Mapping[ServerName, str | None], separator: str
    ) -> frozenset[ServerName]:
        crossed: set[ServerName] = set()
        for head, which in self._owners.items():
            for length in self._lengths:
                if length < len(head):
                    crossed |= self._owners.get(head[:length], which) - which
        for server, prefix in servers.items():
            heads = _name_prefixes(prefix, separator) if prefix else ()
            if any(server not in self._owners[head] for head in heads):
                crossed.add(server)
        return frozenset(crossed)

    def servers_of(self, spelling: str) -> frozenset[ServerName]:
        """The servers that `spelling` reads as a name of: none, one, or several that share a prefix."""
        for length in self._lengths:
            found = self._owners.get(spelling[:length])
            if found is not None:
                return found
        return frozenset()

    def all_servers_of(self, spelling: str) -> frozenset[ServerName]:
        """`servers_of` and the servers of shorter beginnings: `a_b_c` can be the tool `b_c` of `a`."""
        heads = (self._owners.get(spelling[:length]) for length in self._lengths)
        return frozenset().union(*(which for which in heads if which is not None))

    def may_mean(self, spelling: str, server: ServerName) -> bool:
        """True if `spelling` may mean a tool of this server, because it does not read as a name of others."""
        readers = self.servers_of(spelling)
        return not readers or server in readers


NO_NAME_PREFIXES: NamePrefixes = NamePrefixes({})
"""No server names are known."""


class ResolvedName(Struct, frozen=True):
    """The result of a lookup if exactly one tool matches."""

    server: ServerName
    tool: str
    qualified: str


class AmbiguousName(Struct, frozen=True):
    """The result of a lookup if several tools match equally well, so none is called. Qualified names,
    sorted.
    """

    candidates: tuple[str, ...]


class NoSuchName(Struct, frozen=True):
    """The result of a lookup if no tool matches. Similar qualified names, best first, at most three."""

    suggestions: tuple[str, ...]


Resolution = ResolvedName | AmbiguousName | NoSuchName


class Resolver:
    """Finds the tool that a spelling means within one set of names.

    A qualified name always means itself. Every other spelling counts only if no qualified name is written
    that way; the longer forms of names come first, because an agent with a higher bound sees them in its
    list. So a plain name that two tools came to share is ambiguous from then on. A spelling that reads as a
    name of a server never means a tool of another one. A spelling is taken apart, and no tool is spelled out:
    the price of a lookup grows with the number of servers at most.
    """

    __slots__ = (
        "_guesses",
        "_head_chars",
        "_heads",
        "_legal_forms",
        "_longer",
        "_longer_owners",
        "_meanings",
        "_names",
        "_owners",
        "_prefixes",
        "_servers",
        "_similar_names",
        "_spelled",
    )

    def __init__(
        self,
        names: Mapping[Tool, str],
        prefixes: Mapping[ServerName, str | None] | None = None,
        heads: NamePrefixes = NO_NAME_PREFIXES,
        longer: Mapping[Tool, str] | None = None,
        legal: LegalForms | None = None,
    ) -> None:
        """`names`: the result of `qualify_all`, distinct values. `longer`: the same for a higher bound.
        `legal`: the result of `legal_forms` for these tools, where it is known.
        """
        self._names = names
        self._longer = longer or {}
        self._prefixes = prefixes or {}
        self._heads = heads
        self._legal_forms = slices.run_all_slices(legal_forms(names)) if legal is None else legal
        self._owners = dict(zip(names.values(), names, strict=True))
        self._longer_owners = dict(zip(self._longer.values(), self._longer, strict=True))
        self._servers = dict.fromkeys(map(itemgetter(0), names))
        self._spelled: dict[str, list[ServerName]] = {}
        """By what stands before a tool: the servers."""
        for server in self._servers:
            for head in _spelled_heads(server, self._prefixes.get(server)):
                self._spelled.setdefault(head, []).append(server)
        self._head_chars = sorted({len(head) for head in self._spelled})
        self._meanings: dict[str, ResolvedName | AmbiguousName] = {}
        self._guesses: dict[str, NoSuchName] = {}
        """The results for spellings that mean no tool and were asked for lately."""
        self._similar_names: _SimilarNames | None = None

    def resolve(self, spelling: str) -> Resolution:
        """The tool that `spelling` means. Takes a few lookups, or a few milliseconds if there is no such
        name.
        """
        return self.meaning(spelling) or self.guess(spelling)

    def meaning(self, spelling: str) -> ResolvedName | AmbiguousName | None:
        """The same; None if there is no such name."""
        exact = self._owners.get(spelling)
        if exact is not None:
            return ResolvedName(*exact, spelling)
        meant = self._longer_owners.get(spelling)
        if meant is not None:
            return ResolvedName(*meant, self._names[meant])
        found = self._meanings.get(spelling)
        if found is None:
            found = self._taken_apart(spelling)
            if found is not None and len(spelling) <= _MAX_GUESSED_CHARS:
                if len(self._meanings) >= _REMEMBERED_GUESSES:
                    self._meanings.clear()
                self._meanings[spelling] = found
        return found

    def _taken_apart(self, spelling: str) -> ResolvedName | AmbiguousName | None:
        strong, weak = self._read(spelling)
        if len(strong) == 1 and not weak:
            return ResolvedName(*strong[0], self._names[strong[0]])
        if not strong:
            return None
        return AmbiguousName(tuple(sorted({self._names[tool] for tool in (*strong, *weak)})))

    def aliases(self, server: ServerName, tool: str) -> list[str]:
        """The spellings that mean this tool alone, besides its qualified name. Empty for an unknown tool."""
        qualified = self._names.get((server, tool))
        if qualified is None:
            return []
        meant = ResolvedName(server, tool, qualified)
        forms = spellings(server, tool, self._prefixes.get(server))
        if (longer := self._longer.get((server, tool), qualified)) not in forms:
            forms.insert(0, longer)
        return [form for form in forms if form != qualified and self.meaning(form) == meant]

    def _read(self, spelling: str) -> tuple[list[Tool], list[Tool]]:
        """The tools that are spelled this way. The second list has those whose server the spelling reads as a
        name of, and more so as one of another server.
        """
        strong: list[Tool] = []
        weak: list[Tool] = []
        for server, tool in self._tools_spelled(spelling):
            is_crossed = server in self._heads.ambiguous_servers
            is_bare = spelling == tool or spelling == legalise(tool)
            if not (is_crossed or is_bare) or self._heads.may_mean(spelling, server):
                strong.append((server, tool))
            elif is_crossed and server in self._heads.all_servers_of(spelling):
                weak.append((server, tool))
        return strong, weak

    def _tools_spelled(self, spelling: str) -> Iterable[Tool]:
        found: dict[Tool, None] = {}
        for chars in self._head_chars:
            for server in self._spelled.get(spelling[:chars], ()):
                found.update(self._tools_named(server, spelling[chars:]))
        # A bare name that reads as a name of a server is one of that server only.
        readers = self._heads.all_servers_of(spelling)
        for server in readers or self._servers:
            found.update(self._tools_named(server, spelling))
        return found

    def _tools_named(self, server: ServerName, name: str) -> dict[Tool, None]:
        found = dict.fromkeys((server, own) for own in self._legal_forms.get((server, name), ()))
        if (server, name) in self._names:
            found[server, name] = None
        return found

    def guess(self, spelling: str) -> NoSuchName:
        """The names that are similar to `spelling`, which means none."""
        if len(spelling) > _MAX_GUESSED_CHARS:
            return NoSuchName(())
        known = self._guesses.get(spelling)
        if known is None:
            if self._similar_names is None:
                self._similar_names = _SimilarNames(_equal_shares(self._names))
            known = NoSuchName(self._similar_names.similar_to(spelling, self._heads.servers_of(spelling)))
            if len(self._guesses) >= _REMEMBERED_GUESSES:
                self._guesses.clear()
            self._guesses[spelling] = known
        return known


class _SimilarNames:
    """Finds names similar to a spelling: rare shared trigrams choose a few, difflib ranks those.

    difflib over all names would delay every agent by 50 ms per typo in a set of 1,000 tools.
    """

    __slots__ = ("_having", "_names")

    def __init__(self, names: Iterable[ResolvedName]) -> None:
        self._names = list(names)
        self._having: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            for trigram in _trigrams(name.qualified):
                self._having.setdefault(trigram, []).append(index)

    def similar_to(self, spelling: str, servers: Collection[ServerName]) -> tuple[str, ...]:
        """The most similar names, best first. `servers`: only names of these; empty: of any server.

        A misspelled name of one server is never taken for another server's: its arguments are for that
        server.
        """
        shares: dict[int, float] = {}
        for trigram in _trigrams(spelling):
            having = self._having.get(trigram, ())
            for index in having:
                if not servers or self._names[index].server in servers:
                    shares[index] = shares.get(index, 0.0) + 1 / len(having)
        nearest = heapq.nsmallest(
            _RANKED, shares, key=lambda index: (-shares[index], self._names[index].qualified)
        )
        matcher = difflib.SequenceMatcher(b=spelling.lower(), autojunk=False)
        ranked: list[tuple[float, str]] = []
        for index in nearest:
            name = self._names[index]
            ratio = max(_ratio(matcher, name.qualified), _ratio(matcher, name.tool))
            if ratio >= _SUGGESTION_CUTOFF:
                ranked.append((-ratio, name.qualified))
        return tuple(qualified for _, qualified in sorted(ranked)[:_SUGGESTIONS])


def _equal_shares(names: Mapping[Tool, str]) -> Iterable[ResolvedName]:
    """The names that are searched for similar ones: at most `_SEARCHED_NAMES`, so that no server takes the
    place of the others.
    """
    by_server: dict[ServerName, list[Tool]] = {}
    for tool in names:
        by_server.setdefault(tool[0], []).append(tool)
    room = _SEARCHED_NAMES
    for left, tools in zip(range(len(by_server), 0, -1), sorted(by_server.values(), key=len), strict=True):
        for tool in tools[: room // left]:
            yield ResolvedName(*tool, names[tool])
        room -= min(len(tools), room // left)


def _trigrams(text: str) -> set[str]:
    text = text.lower()
    return {text[start : start + 3] for start in range(len(text) - 2)}


def _ratio(matcher: difflib.SequenceMatcher[str], name: str) -> float:
    matcher.set_seq1(name[:_MAX_GUESSED_CHARS].lower())
    return matcher.ratio()
