"""Finds tools by their purpose: BM25 over names, descriptions, parameters and tags.

Owns which parts of a tool are indexed with which weight, how a query is read, and the order of the results.
The index is SQLite's full-text index, in memory (docs/decisions/0023). It is made at a search, and the last
few are kept, each for the tuple of tools that it was made of. That of a long list may be made in pieces.

Invariant: every result is one of the given tools.

Knows nothing of: sessions and rights (it gets only tools that may be called), the text of an answer, whose
turn it is (`answer_queue`).
"""

import re
import weakref
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from carpool_broker.core.registry.pool_catalog import ViewTool
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.json_scan import read_despite_half_pairs

MAX_QUERY_WORDS: Final = 32
MAX_QUERY_CHARS: Final = 2000
"""The rest of a query is ignored: an agent writes it, and it may be megabytes."""
MAX_TEXT_CHARS: Final = 600
"""Indexed part of a description; of parameters only the names are indexed.

The rest says how to call a tool rather than what it does, and BM25 ranks long texts lower (docs/search.md).
"""
MAX_INDICES: Final = 4
"""Indices that are kept: one for each profile that searches."""
MAX_INDEXED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of all definitions in the earlier ones of these: they may be of lists that have changed."""
INDEX_BATCH_TOOLS: Final = 64
"""Tools that are indexed at once while other events wait: 2 to 5 ms."""
TOOLS_AT_ONCE: Final = 256
"""A list of up to this many tools is indexed at once: 5 to 10 ms."""

COLUMNS: Final = {
    "name": 6.0,
    "server": 2.0,
    "title": 4.0,
    "description": 2.0,
    "parameters": 0.5,
    "tags": 2.0,
}
"""Weights of BM25: the words of a name say most about a tool, those of its parameters least."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_STOP_WORDS: Final = frozenset(
    re.split(
        " ",
        "a about all an and any are as at be by can do does for from get has have how i if in into is it its "
        "let make me my need of off on or our out please should show so some tell than that the their them "
        "then there these they this to up us use using want was we what when where which who whose will with "
        "would you your",
    )
)
"""Words of a question that say nothing about a tool. They count only if the query has no others."""
_SYNONYMS: Final = {
    "repo": "repository", "repos": "repositories", "pr": "pull", "prs": "pull", "dir": "directory",
    "dirs": "directories", "folder": "directory", "folders": "directories", "db": "database",
    "msg": "message", "docs": "documents", "doc": "document", "k8s": "kubernetes", "delete": "remove",
    "remove": "delete", "fetch": "get", "edit": "update", "change": "update", "modify": "update",
    "add": "create", "new": "create", "find": "search", "look": "search", "ticket": "issue",
    "picture": "image", "photo": "image", "email": "mail", "mail": "email", "meeting": "event",
    "webpage": "page", "website": "page",
}  # fmt: skip
"""Common words of questions and names → the word that other servers use."""


class CannotSearchError(Exception):
    """This Python has no SQLite, or one without its full-text index."""


class SearchResult(NamedTuple):
    """The best tools of a search, the best first, and the number of all matches."""

    tools: Sequence[ViewTool]
    total: int


class _Definition(Struct):
    title: str = ""
    description: str = ""
    inputSchema: object = None  # noqa: N815 - the wire's name


_read = msgspec.json.Decoder(_Definition, strict=False).decode


class ToolText(NamedTuple):
    """The parts of a definition that are searched and shown."""

    title: str
    description: str
    parameters: Sequence[str]
    """Names of the parameters, in order."""
    required: Collection[str]


def tool_text(definition: RawJson) -> ToolText:
    """The text of a tool's definition; empty if it cannot be read."""
    try:
        seen = read_despite_half_pairs(_read, definition)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ToolText("", "", (), ())
    schema = seen.inputSchema if isinstance(seen.inputSchema, dict) else {}
    properties, required = schema.get("properties"), schema.get("required")
    parameters = [str(name) for name in properties] if isinstance(properties, dict) else []
    names = {each for each in required if isinstance(each, str)} if isinstance(required, list) else ()
    return ToolText(seen.title, seen.description, parameters, names)


def split_words(text: str) -> list[str]:
    """The words of a text in lower case; `getUserName`, `get_user_name` and `get user name` are equal."""
    found: list[str] = []
    for part in _WORD.findall(text):
        low = part.lower()
        if part[1:] == low[1:]:
            found.append(low)
        else:
            found += map(str.lower, _CAMEL_CASE.split(part))
    return found


class ToolSearch:
    """Searches among tools. Keeps a few indices."""

    def __init__(self) -> None:
        self._indices: list[_Index] = []

    def find(
        self,
        tools: tuple[ViewTool, ...],
        tags: Mapping[ServerName, Sequence[str]],
        query: str,
        limit: int,
        *,
        server: str = "",
        tag: str = "",
    ) -> SearchResult:
        """The best `limit` of these tools for a query; for a query without words all, in their order.

        `server`, `tag`: only tools of that server, or of servers with that tag (any case). `tags`: tags of
        each server. Raises `CannotSearchError`.
        """
        query = query[:MAX_QUERY_CHARS]
        wanted = split_words(query)
        if wanted:
            found: Sequence[ViewTool] = self._index(tools, tags).search(wanted, query.strip())
        else:
            found = tools
        if server or tag:
            low = tag.lower()
            found = [
                tool
                for tool in found
                if (not server or tool.server.lower() == server.lower())
                and (not tag or low in map(str.lower, tags.get(tool.server, ())))
            ]
        return SearchResult(found[:limit], len(found))

    def is_indexed(self, tools: tuple[ViewTool, ...], tags: Mapping[ServerName, Sequence[str]]) -> bool:
        """True if a search of these tools has little to index: nothing, or a short list."""
        if len(tools) <= TOOLS_AT_ONCE:
            return True
        return any(index.is_made_of(tools, tags) and index.is_complete for index in self._indices)

    def index_more(self, tools: tuple[ViewTool, ...], tags: Mapping[ServerName, Sequence[str]]) -> bool:
        """True if these tools can be searched now; otherwise index one more piece. Raises
        `CannotSearchError`.
        """
        return self._index(tools, tags).grow(INDEX_BATCH_TOOLS)

    def _index(self, tools: tuple[ViewTool, ...], tags: Mapping[ServerName, Sequence[str]]) -> "_Index":
        for place, index in enumerate(self._indices):
            if index.is_made_of(tools, tags):
                self._indices.insert(0, self._indices.pop(place))
                return index
        # Most texts of a changed list, or of another profile's list, are in another index already.
        seen = {said: rows for index in self._indices for said, rows in index.seen.items()}
        kept, left_bytes = 0, MAX_INDEXED_BYTES
        for index in self._indices[: MAX_INDICES - 1]:
            left_bytes -= index.size_bytes
            if left_bytes < 0:
                break
            kept += 1
        for index in self._indices[kept:]:
            index.close()
        del self._indices[kept:]
        self._indices.insert(0, _Index(tools, tags, seen))
        return self._indices[0]


_IndexRow = tuple[str, str, str]
"""The words of a definition's title, description and parameters, as they are indexed."""

_NAMES: Final = ", ".join(COLUMNS)
_WEIGHTS: Final = ", ".join(map(str, COLUMNS.values()))
_TABLE: Final = f"CREATE VIRTUAL TABLE tools USING fts5({_NAMES}, content='', tokenize='porter unicode61')"
_INSERT: Final = f"INSERT INTO tools(rowid, {_NAMES}) VALUES (?{', ?' * len(COLUMNS)})"  # noqa: S608 - constants
_QUERY: Final = f"SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, {_WEIGHTS}), rowid"  # noqa: S608


class _Index:
    def __init__(
        self,
        tools: tuple[ViewTool, ...],
        tags: Mapping[ServerName, Sequence[str]],
        seen: Mapping[bytes, _IndexRow],
    ) -> None:
        """An empty index of these tools. `seen`: `seen` of other indices."""
        try:
            import sqlite3  # only whoever searches pays for it: 6 ms and 1.6 MB
        except ImportError as error:
            raise CannotSearchError from error

        self.tools = tools
        self.size_bytes = sum(tool.max_bytes for tool in tools)
        self.tags = dict(tags)
        self._names: dict[str, int] = {}
        self._rows: sqlite3.Connection = sqlite3.connect(":memory:", isolation_level=None)
        self.close = weakref.finalize(self, self._rows.close)
        """Free its memory now; else that happens with the index itself."""
        try:
            self._rows.execute(_TABLE)
        except sqlite3.OperationalError as error:
            raise CannotSearchError from error
        self.seen: dict[bytes, _IndexRow] = {}
        """The indexed words of each definition, by its digest."""
        self._seen_before = seen
        self._labels = {
            server: (_index_words(server), _index_words(" ".join(self.tags.get(server, ()))))
            for server in {tool.server for tool in tools}
        }
        self._done = 0
        """Number of indexed tools.

        All are in one transaction, because SQLite merges the results of several.
        """
        self._rows.execute("BEGIN")

    def is_made_of(self, tools: tuple[ViewTool, ...], tags: Mapping[ServerName, Sequence[str]]) -> bool:
        """True if this is the index of these very tools, with these tags."""
        return self.tools is tools and self.tags == tags

    @property
    def is_complete(self) -> bool:
        """True if all its tools are indexed."""
        return self._done == len(self.tools)

    def grow(self, count: int) -> bool:
        """Index `count` more tools. True if all are indexed."""
        if self.is_complete:
            return True
        rows = []
        for number, tool in enumerate(self.tools[self._done : self._done + count], self._done + 1):
            self._names.setdefault(tool.qualified.lower(), number)
            self._names.setdefault(tool.tool.lower(), number)
            definition = tool.definition  # rewritten each time
            digest = blake2b(definition, digest_size=16).digest()
            said = self._seen_before.get(digest) or _index_row(definition)
            self.seen[digest] = said
            server, tags = self._labels[tool.server]
            rows.append((number, _index_words(tool.tool), server, *said, tags))  # in the order of `COLUMNS`
        self._rows.executemany(_INSERT, rows)
        self._done += len(rows)
        if self._done < len(self.tools):
            return False
        self._rows.execute("COMMIT")
        self._seen_before = {}
        return True

    def search(self, wanted: Sequence[str], whole: str) -> list[ViewTool]:
        """All tools that match any of these words, the best first. A tool named like the query comes first.

        Tools that are not indexed yet are indexed before.
        """
        self.grow(len(self.tools))
        telling = [word for word in wanted if word not in _STOP_WORDS] or wanted
        terms = dict.fromkeys(telling[:MAX_QUERY_WORDS])
        for word in list(terms):
            if (other := _SYNONYMS.get(word)) is not None:
                terms.setdefault(other)
        rows = self._rows.execute(_QUERY, (" OR ".join(f'"{term}"' for term in terms),))
        found = [number for (number,) in rows]
        if (named := self._names.get(whole.lower())) is not None:
            found = [named, *(number for number in found if number != named)]
        return [self.tools[number - 1] for number in found]


def _index_row(definition: RawJson) -> _IndexRow:
    """The indexed words of a definition. A description is prose: splitting its words as names would only take
    time.
    """
    found = tool_text(definition)
    description = _valid_unicode(found.description[:MAX_TEXT_CHARS])
    return _index_words(found.title), description, _index_words(" ".join(found.parameters))


def _index_words(names: str) -> str:
    """The words of names in the form for the index."""
    return _valid_unicode(_CAMEL_CASE.sub(" ", names[:MAX_TEXT_CHARS]))


def _valid_unicode(text: str) -> str:
    """The text with `?` in place of half surrogate pairs, which no text should have."""
    return text.encode(errors="replace").decode()


def server_tags(view: View) -> Mapping[ServerName, Sequence[str]]:
    """The tags of the servers in an agent's view."""
    return {entry.server: entry.tags for entry in view.scope.servers if entry.tags}
