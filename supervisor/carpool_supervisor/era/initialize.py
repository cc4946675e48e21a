"""The greeting of the handshake era: `initialize`, `initialized` and the catalog of the server.

Owns the version negotiation and the server's description of itself; its lists are read by `list_reader`.
Source: MCP 2025-11-25, basic/lifecycle.

Knows nothing of: calls, asks, which capabilities carpool declares (they are passed in).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from carpool_protocol.ids import ABSENT, InstanceId, PoolKey, RawJson
from carpool_protocol.link.messages import Catalog, Feature
from carpool_protocol.wire.capabilities import features_of
from carpool_protocol.wire.jsonrpc import ErrorAnswer, ResultAnswer, notification_line, quote, request_line
from carpool_protocol.wire.list_repair import Family
from carpool_supervisor.core.model.events import GreetingFailed, VersionRefused
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.greeting import (
    Initialized,
    is_of_bridge,
    next_version,
    read_error,
    read_initialized,
    refusal,
)
from carpool_supervisor.era.list_reader import ListReader
from carpool_supervisor.era.self_description import MAX_CAPABILITIES_BYTES, SelfDescription
from carpool_supervisor.era.tasks import tools_of

UNSUPPORTED_VERSION: Final = -32022
NOT_THIS_ERA: Final = frozenset({UNSUPPORTED_VERSION, -32601, -32602, -32600})
"""Errors by which a server of the stateless era may refuse `initialize`: unknown version or method, missing
`_meta`, invalid request.
"""
NO_VERSION: Final = "no protocol version"


class InitializeGreeting:
    """The open greeting request of one server, and its description of itself."""

    def __init__(
        self,
        instance: InstanceId,
        key: PoolKey,
        release: str,
        declared: RawJson,
        decoded: Decoded,
        *,
        bridge: bool = False,
        version: str = VERSIONS[0],
    ) -> None:
        """`declared`: the capabilities that carpool declares, a JSON object. `bridge`: the process is
        carpool's own. `version`: the one to offer first.
        """
        self._first = version
        self._bridge = bridge
        self._instance = instance
        self._key = key
        self._release = release
        self._declared = declared
        self._decoded = decoded
        self._count = 0
        """Counts carpool's requests; their ids are strings."""
        self._initialize = ABSENT
        """The id of the open `initialize`."""
        self._tried: list[str] = []
        """The versions that the server was offered."""
        self._lists = ListReader(instance, decoded, self._request, self._catalog)
        self._features: list[Feature] = []
        self._greeted: Initialized | None = None
        self.task_tools: frozenset[str] = frozenset()
        """The tools that run as tasks only."""

    @property
    def has_greeted(self) -> bool:
        """True once a server of this era has answered."""
        return self._greeted is not None

    @property
    def version(self) -> str:
        """The version that the server speaks; empty before its greeting."""
        return "" if self._greeted is None else self._greeted.protocolVersion

    # --- out -------------------------------------------------------------------------------------------

    def greeting_line(self, version: str = "") -> bytes:
        """`initialize`; `version`: the one to offer, if it is not the first one."""
        version = version or self._first
        self._tried.append(version)
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

    def _request(self, what: str, method: str, params: RawJson) -> RawJson:
        request = self._next_id(what)
        self._decoded.lines.append(request_line(request, method, params))
        return request

    # --- in --------------------------------------------------------------------------------------------

    def request_answered(self, answer_id: RawJson, message: ResultAnswer | ErrorAnswer) -> bool:
        """Handle an answer whose id is no number. Returns True if it answers a request of this greeting."""
        if answer_id == self._initialize:
            self._initialize = ABSENT
            self._greeting_answered(message)
            return True
        return self._lists.request_answered(answer_id, message)

    def answer_unreadable(self, answer_id: RawJson | None, text: str) -> bool:
        """Handle an unreadable line with this id. Returns True if it answers a request of this greeting."""
        if not answer_id:
            return False
        if answer_id != self._initialize:
            return self._lists.answer_unreadable(answer_id, text)
        self._fail(f"answered initialize with an invalid message: {text}")
        return True

    def headers_received(self, text: str) -> bool:
        """Handle HTTP-like headers, which no stdio server writes. Returns True if that ends the greeting: the
        server may write them before carpool has greeted it.
        """
        if self.has_greeted:
            return False
        self._initialize = ABSENT
        self._fail(f"does not speak MCP over stdio: {text}")
        return True

    def lists_changed(self, families: Iterable[Family]) -> None:
        """Read these lists again."""
        if self._greeted is not None:
            self._lists.lists_changed(families)

    @property
    def open_list_request(self) -> tuple[RawJson, str]:
        """See `EraAdapter`."""
        return self._lists.open_request

    @property
    def is_reading(self) -> bool:
        """See `EraAdapter`."""
        return self._lists.is_busy

    def read_on(self) -> None:
        """See `EraAdapter`."""
        self._lists.read_on()

    def list_timed_out(self, after_s: float) -> None:
        """See `EraAdapter`."""
        self._lists.list_timed_out(after_s)

    def relist_line(self, *, is_calm: bool = False) -> bytes:
        """The line that begins to read all lists again."""
        return self._lists.relist_line(is_calm=is_calm)

    def close(self) -> None:
        """See `EraAdapter`."""
        self._lists.close()

    def _greeting_answered(self, message: ResultAnswer | ErrorAnswer) -> None:
        if isinstance(message, ErrorAnswer):
            error = read_error(message.error)
            version = None
            if error.code != UNSUPPORTED_VERSION and not is_of_bridge(error, bridge=self._bridge):
                version = next_version(error, self._tried)
                refused = VersionRefused(self._instance, self._tried[-1], version or "")
                self._decoded.events.append(refused)
            if version is not None:
                self._decoded.lines.append(self.greeting_line(version))
                return
            hint = '; it speaks the stateless era: set "era": "modern"' * (error.code == UNSUPPORTED_VERSION)
            text = refusal("initialize", error, bridge=self._bridge)
            self._fail(text + hint, text if error.code in NOT_THIS_ERA else "")
            return
        greeted = read_initialized(message.result)
        if greeted is None or greeted.protocolVersion not in VERSIONS:
            version = "" if greeted is None else greeted.protocolVersion[:40]
            text = f"answered initialize with {f'protocol version {version!a}' if version else NO_VERSION}"
            newer = version > VERSIONS[0]  # versions are dates
            self._fail(f"{text}; carpool speaks {', '.join(VERSIONS)}", text if newer else "")
            return
        capabilities = RawJson(msgspec.json.encode(greeted.capabilities))
        info = RawJson(bytes(greeted.serverInfo))
        described = SelfDescription(greeted.instructions or "", info, capabilities)
        # A copy, because the answer may be large and is not kept.
        tasks = bytes(greeted.capabilities.get("tasks", b"null"))[:MAX_CAPABILITIES_BYTES]
        self._greeted = Initialized(greeted.protocolVersion, {"tasks": msgspec.Raw(tasks)})
        self._decoded.lines.append(notification_line("notifications/initialized", ABSENT))
        self._features = features_of(capabilities)
        self._lists.begin(described, self._features)

    def _fail(self, text: str, refused: str = "") -> None:
        self._decoded.events.append(GreetingFailed(self._instance, text, refused))

    def _catalog(self) -> Catalog:
        greeted = self._greeted
        assert greeted is not None
        version = greeted.protocolVersion
        catalog = self._lists.catalog(self._key, version=version, features=self._features)
        self.task_tools = tools_of(greeted, catalog.tools)
        return catalog
