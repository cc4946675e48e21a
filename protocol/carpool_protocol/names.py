"""The names agents see: how they are formed, and what every other spelling of them means.

Owns: what a server may be called, `server__tool`, shortening and collisions, the table of spellings.
Invariants: a qualified name matches `[a-zA-Z0-9_-]{1,64}` (legal for every model API); no two tools of
one set share one; a name depends on nothing but its own server, tool, prefix and separator, unless
another tool of the same set falls on the same name: then both carry a hash of their own (server, tool),
so the order of the set and every bystander in it are without influence. Names are looked up in a table,
never split: `a_b` + `c` and `a` + `b_c` read alike once joined.

Knows nothing of: JSON, catalogs, who may call what. Prompts follow the same rules with the same functions.
"""

import difflib
import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from carpool_protocol.ids import ServerName

SEPARATOR = "__"
MAX_NAME_CHARS = 64
MAX_SERVER_NAME_CHARS = 40
"""Leaves room for a readable piece of the tool and a hash within `MAX_NAME_CHARS`."""
MAX_SEPARATOR_CHARS = 8

_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL_CHAR = re.compile(r"[^A-Za-z0-9_-]")
_ILLEGAL_CHARS = re.compile(r"[^A-Za-z0-9_-]+")
_SERVER_NAME = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")

_HASH_CHARS = 8
_MAX_HASH_CHARS = 32

_SUGGESTIONS = 3
_SUGGESTION_CUTOFF = 0.6
_RANKED = 16
_MAX_GUESSED_CHARS = 2 * MAX_NAME_CHARS
_REMEMBERED_GUESSES = 128

Tool = tuple[ServerName, str]
"""A tool by its real names: the server as configured, the tool as the server calls it."""


def check_server_name(name: str, what: str = "server") -> str | None:
    """What is wrong with `name` as the name of a server (or `what`), as a sentence; None when it may be
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
                "one between letters, digits or hyphens is fine."
            )
        return f"The {what} name {name!a} may hold only A-Z, a-z, 0-9, hyphen and single underscores."
    return None


def safe_server_name(name: str) -> str:
    """The nearest name that a server may have."""
    plain = re.sub(r"_{2,}", "_", _ILLEGAL_CHARS.sub("-", name)).strip("_-")
    plain = plain[:MAX_SERVER_NAME_CHARS].strip("_-")
    return plain if plain and check_server_name(plain) is None else "server"


def safe_server_names(names: Iterable[str]) -> dict[str, str]:
    """The same for all servers of one file, each with a name of its own. Where several fall on one, those
    that are not written so all get a hash of what is written: their order says nothing.
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
    """What is wrong with `separator`, as a sentence; None when it may be used."""
    if not separator or len(separator) > MAX_SEPARATOR_CHARS or _LEGAL.fullmatch(separator) is None:
        return f"A separator is 1 to {MAX_SEPARATOR_CHARS} of A-Z, a-z, 0-9, underscore and hyphen."
    return None


def check_tools_prefix(prefix: str) -> str | None:
    """What is wrong with a `tools_prefix`, as a sentence; None when it may be used (`""` may)."""
    if prefix and (len(prefix) > MAX_SERVER_NAME_CHARS or _LEGAL.fullmatch(prefix) is None):
        return f"A tools_prefix is at most {MAX_SERVER_NAME_CHARS} of A-Z, a-z, 0-9, underscore and hyphen."
    return None


def legalise(name: str) -> str:
    """`name` with every character that model APIs refuse as `_`. Never empty; may still be too long."""
    return _ILLEGAL_CHAR.sub("_", name) or "_"


def qualify(
    server: str, tool: str, separator: str = SEPARATOR, prefix: str | None = None, *, hashed: int = 0
) -> str:
    """The name of one tool, legal by itself whatever is put in.

    `prefix` stands in place of the server's name; with `""` the tool keeps its own name, without a
    separator. `hashed` 0 is the plain name, which gets a hash only when it is too long; each number
    above it is another spelling of the same tool with a longer (from 5 on: another) hash, for
    `qualify_all` to choose from.
    """
    head = (server if prefix is None else prefix) + separator if prefix != "" else ""
    plain = head + tool
    if not hashed:
        if _LEGAL.fullmatch(plain) is not None:
            return plain
        plain = legalise(plain)
        if len(plain) <= MAX_NAME_CHARS:
            return plain
    rounds = max(1, hashed)
    chars = min(_HASH_CHARS * rounds, _MAX_HASH_CHARS)
    identity = f"{server}\0{tool}" if chars == _HASH_CHARS * rounds else f"{server}\0{tool}\0{rounds}"
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:chars]
    room = MAX_NAME_CHARS - 1 - chars
    # A head longer than any server name (a foreign prefix) must not push the tool out of its own name.
    head = head[: min(MAX_SERVER_NAME_CHARS + MAX_SEPARATOR_CHARS, room - room // 4)]
    return f"{legalise((head + tool)[:room])}_{digest}"


def qualify_all(
    tools: Iterable[Tool], prefixes: Mapping[ServerName, str | None], separator: str = SEPARATOR
) -> dict[Tool, str]:
    """Distinct legal names for a set of tools, in the order given; a tool given twice counts once.

    `prefixes` holds `tools_prefix` where a server has one. Tools that fall on one name all get a hash,
    until no two names are equal; each round looks at the whole set at once, so that order is without
    influence.
    """
    names = {(server, tool): qualify(server, tool, separator, prefixes.get(server)) for server, tool in tools}
    hashed = dict.fromkeys(names, 0)
    while len(set(names.values())) < len(names):
        sharing: dict[str, list[Tool]] = {}
        for key, name in names.items():
            sharing.setdefault(name, []).append(key)
        for group in sharing.values():
            if len(group) > 1:
                for server, tool in group:
                    hashed[server, tool] += 1
                    names[server, tool] = qualify(
                        server, tool, separator, prefixes.get(server), hashed=hashed[server, tool]
                    )
    return names


def spellings(server: str, tool: str) -> list[str]:
    """Every way other systems write this tool, the bare tool last. `Resolver` says what each means.

    A tool whose own name is not legal is also found under its legal form, which is what a model was shown.
    """
    found: dict[str, None] = {}
    legal = legalise(tool)
    for name in (tool,) if legal == tool else (tool, legal):
        found[f"{server}__{name}"] = None
        found[f"{server}_{name}"] = None
        found[f"mcp__{server}__{name}"] = None
        found[f"mcp:{server}:{name}"] = None
        found[f"mcp:{server}.{name}"] = None
        found[f"mcp_{server}_{name}"] = None
        found[f"{server}.{name}"] = None
        found[name] = None
    return list(found)


def may_be_of(spelling: str, server: str, separator: str = SEPARATOR, prefix: str | None = None) -> bool:
    """Whether `spelling` begins like a name of this server's, whatever its tools are.

    Only for a server whose tools are not known yet, to say whether they are worth waiting for: never to
    route.
    """
    if prefix == "":
        return True
    heads = [f"{mcp}{server}{mark}" for mcp in ("", "mcp__", "mcp:", "mcp_") for mark in ("_", ".", ":")]
    return spelling.startswith((*heads, legalise((server if prefix is None else prefix) + separator)))


class Resolved(Struct, frozen=True):
    """Exactly one tool is meant."""

    server: ServerName
    tool: str
    qualified: str


class Ambiguous(Struct, frozen=True):
    """Several tools can be meant, none better than the others: nothing is called. Qualified names, sorted."""

    candidates: tuple[str, ...]


class Unknown(Struct, frozen=True):
    """Nothing is called that. Qualified names that look alike, best first, at most three."""

    suggestions: tuple[str, ...]


Resolution = Resolved | Ambiguous | Unknown


class Resolver:
    """What each spelling means within one set of names.

    A qualified name always means itself; every other spelling counts only while no qualified name is
    written that way. So a plain name that two tools came to share is ambiguous from then on, never the
    other tool's. The table of other spellings is built when the first one is looked up.
    """

    __slots__ = ("_exact", "_guesses", "_lookalikes", "_names", "_others")

    def __init__(self, names: Mapping[Tool, str]) -> None:
        """`names` is what `qualify_all` returned: distinct values."""
        self._names = names
        self._exact = {name: Resolved(server, tool, name) for (server, tool), name in names.items()}
        self._others: dict[str, Resolved | Ambiguous] | None = None
        self._guesses: dict[str, Unknown] = {}
        self._lookalikes: _Lookalikes | None = None

    def resolve(self, spelling: str) -> Resolution:
        """The tool that `spelling` means: a lookup, or a few milliseconds when there is no such name."""
        exact = self._exact.get(spelling)
        if exact is not None:
            return exact
        if self._others is None:
            self._others = self._spell_out()
        return self._others.get(spelling) or self._guess(spelling)

    def aliases(self, server: ServerName, tool: str) -> list[str]:
        """The spellings that mean this tool alone, besides its qualified name; empty for an unknown tool."""
        qualified = self._names.get((server, tool))
        if qualified is None:
            return []
        meant = self._exact[qualified]
        return [way for way in spellings(server, tool) if way != qualified and self.resolve(way) is meant]

    def _spell_out(self) -> dict[str, Resolved | Ambiguous]:
        others: dict[str, Resolved | Ambiguous] = {}
        shared: dict[str, list[str]] = {}
        for meant in self._exact.values():
            for way in spellings(meant.server, meant.tool):
                if way in self._exact:
                    continue
                first = others.setdefault(way, meant)
                if first is not meant and isinstance(first, Resolved):
                    shared.setdefault(way, [first.qualified]).append(meant.qualified)
        for way, candidates in shared.items():
            others[way] = Ambiguous(tuple(sorted(set(candidates))))
        return others

    def _guess(self, spelling: str) -> Unknown:
        if len(spelling) > _MAX_GUESSED_CHARS:
            return Unknown(())
        known = self._guesses.get(spelling)
        if known is None:
            if self._lookalikes is None:
                self._lookalikes = _Lookalikes(self._exact.values())
            known = Unknown(self._lookalikes.of(spelling))
            if len(self._guesses) >= _REMEMBERED_GUESSES:
                self._guesses.clear()
            self._guesses[spelling] = known
        return known


class _Lookalikes:
    """Finds names that look like a spelling: rare shared trigrams choose a few, difflib ranks those.

    difflib over all names would hold up every agent for 50 ms per typo in a set of 1,000 tools.
    """

    __slots__ = ("_having", "_names")

    def __init__(self, names: Iterable[Resolved]) -> None:
        self._names = list(names)
        self._having: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            for trigram in _trigrams(name.qualified):
                self._having.setdefault(trigram, []).append(index)

    def of(self, spelling: str) -> tuple[str, ...]:
        shares: dict[int, float] = {}
        for trigram in _trigrams(spelling):
            having = self._having.get(trigram, ())
            for index in having:
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


def _trigrams(text: str) -> set[str]:
    text = text.lower()
    return {text[start : start + 3] for start in range(len(text) - 2)}


def _ratio(matcher: difflib.SequenceMatcher[str], name: str) -> float:
    matcher.set_seq1(name[:_MAX_GUESSED_CHARS].lower())
    return matcher.ratio()
