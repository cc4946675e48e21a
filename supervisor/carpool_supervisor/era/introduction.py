"""How a server of the handshake era introduces itself: `initialize`, `initialized`, and what it offers.

Owns the greeting with its version negotiation, and the one list request that is out at a time (which list
and which page: `reading`), until the catalog is told, and again whenever a list changes. Source: MCP
2025-11-25, basic/lifecycle, server/utilities/pagination.

Knows nothing of: calls, what the server asks, what we declare (it is told).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from carpool_protocol.features import features_of
from carpool_protocol.ids import ABSENT, InstanceId, PoolKey, RawJson
from carpool_protocol.jsonrpc import ErrorAnswer, Result, notification_line, quote, request_line
from carpool_protocol.messages import Catalog, Feature
from carpool_supervisor.core.events import CatalogRead, GreetingFailed, InstanceGreeted, ServerMisspoke
from carpool_supervisor.era.adapter import Taken
from carpool_supervisor.era.greeting import (
    VERSIONS,
    Initialized,
    common_version,
    read_error,
    read_initialized,
)
from carpool_supervisor.era.reading import METHODS, Family, Page, Reading
from carpool_supervisor.era.tasks import tools_of

METHOD_NOT_FOUND: Final = -32601


class Introduction:
    """What one server says of itself, and the request for it that is out."""

    def __init__(
        self, instance: InstanceId, key: PoolKey, release: str, declared: RawJson, taken: Taken
    ) -> None:
        """`declared`: the capabilities that we say we have, an object."""
        self._instance = instance
        self._key = key
        self._release = release
        self._declared = declared
        self._taken = taken
        self._count = 0
        """Counts our requests; their ids are strings."""
        self._initialize = ABSENT
        """The id of the `initialize` that is out."""
        self._listing = ABSENT
        """The id of the list request that is out."""
        self._fit = False
        self._version = VERSIONS[0]
        self._reading = Reading()
        self._features: list[Feature] = []
        self._greeted: Initialized | None = None
        self.task_tools: frozenset[str] = frozenset()
        """Its tools that run as tasks only."""

    # --- out -------------------------------------------------------------------------------------------

    def greet(self, version: str = VERSIONS[0]) -> bytes:
        """`initialize`."""
        self._version = version
        self._initialize = self._next_id("initialize")
        info = msgspec.json.encode({"name": "carpool", "version": self._release})
        params = b'{"protocolVersion":%b,"capabilities":%b,"clientInfo":%b}' % (
            quote(version),
            self._declared,
            info,
        )
        return request_line(self._initialize, "initialize", RawJson(params))

    def _next_id(self, what: str) -> RawJson:
        self._count += 1
        return RawJson(b'"carpool-%b-%d"' % (what.encode(), self._count))

    def _ask(self, page: Page | None) -> None:
        """Write the request for this page."""
        if page is not None:
            self._listing = self._next_id(page.family)
            params = ABSENT if page.cursor is None else RawJson(b'{"cursor":%b}' % quote(page.cursor))
            self._taken.lines.append(request_line(self._listing, METHODS[page.family], params))

    # --- in --------------------------------------------------------------------------------------------

    def answered(self, answer_id: RawJson, message: Result | ErrorAnswer) -> bool:
        """An answer with an id that is no number. Whether it was for a request from here."""
        if answer_id == self._initialize:
            self._initialize = ABSENT
            self._greeting_answered(message)
        elif answer_id == self._listing:
            self._listing = ABSENT
            self._page_answered(message)
        else:
            return False
        return True

    def unreadable(self, answer_id: RawJson | None, text: str) -> bool:
        """A line with this id cannot be read. Whether that ends the greeting."""
        if not answer_id or answer_id != self._initialize:
            return False
        self._fail(f"answered initialize with no message: {text}")
        return True

    def changed(self, families: Iterable[Family]) -> None:
        """These lists are old."""
        if self._greeted is not None:
            self._ask(self._reading.changed(families))

    def _greeting_answered(self, message: Result | ErrorAnswer) -> None:
        if isinstance(message, ErrorAnswer):
            error = read_error(message.error)
            version = common_version(error, self._version)
            if version is not None:
                self._taken.lines.append(self.greet(version))
                return
            self._fail(f"refused initialize: {error.message[:200]} ({error.code})")
            return
        greeted = read_initialized(message.result)
        if greeted is None or greeted.protocolVersion not in VERSIONS:
            said = (
                "no protocol version"
                if greeted is None
                else f"protocol version {greeted.protocolVersion[:40]!a}"
            )
            self._fail(f"answered initialize with {said}; carpool speaks {', '.join(VERSIONS)}")
            return
        self._greeted = greeted
        self._taken.lines.append(notification_line("notifications/initialized", ABSENT))
        self._features = features_of(RawJson(msgspec.json.encode(greeted.capabilities)))
        self._reading.announce(self._features)
        page = self._reading.next()
        if page is None:
            self._told()
        else:
            self._ask(page)

    def _page_answered(self, message: Result | ErrorAnswer) -> None:
        family = self._reading.family
        if isinstance(message, ErrorAnswer):
            error = read_error(message.error)
            wrong = f"refused {family}/list: {error.message[:200]} ({error.code})"
            page = self._reading.refused()
            if error.code == METHOD_NOT_FOUND and family == "templates":
                wrong = ""  # servers with resources and no templates do that
        else:
            page, wrong = self._reading.take(message.result)
        if wrong:
            self._taken.events.append(ServerMisspoke(self._instance, wrong))
            if family == "tools" and not self._fit and "do not end" not in wrong:
                self._fail(wrong)
                return
        if page is None:
            self._told()
        else:
            self._ask(page)

    def _fail(self, text: str) -> None:
        self._taken.events.append(GreetingFailed(self._instance, text))

    def _told(self) -> None:
        greeted = self._greeted
        assert greeted is not None
        tools = self._reading.named("tools")
        self.task_tools = tools_of(greeted, tools)
        catalog = Catalog(
            key=self._key,
            tools=tools,
            instructions=greeted.instructions or "",
            server_info=RawJson(bytes(greeted.serverInfo)),
            capabilities=RawJson(msgspec.json.encode(greeted.capabilities)),
            protocol_version=greeted.protocolVersion,
            prompts=self._reading.named("prompts"),
            resources=self._reading.located("resources"),
            templates=self._reading.located("templates"),
            features=self._features,
        )
        if self._fit:
            self._taken.events.append(CatalogRead(self._instance, catalog))
        else:
            self._fit = True
            self._taken.events.append(InstanceGreeted(self._instance, catalog))
        self._ask(self._reading.late())
