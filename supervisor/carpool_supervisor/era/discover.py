"""The greeting of the stateless era: `server/discover` and the catalog of a server that answers it.

Owns that request, the part of its answer that agents of another era may see, and the error for a server that
does not speak this era. Source: MCP 2026-07-28, server/discover.

Knows nothing of: calls, subscriptions, the capabilities that carpool declares.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, InstanceId, PoolKey, RawJson
from carpool_protocol.link.messages import Catalog, Feature
from carpool_protocol.wire.capabilities import features_of
from carpool_protocol.wire.content import change_members, text_of, value_of
from carpool_protocol.wire.json_scan import has_too_many_parts
from carpool_protocol.wire.jsonrpc import ErrorAnswer, ResultAnswer
from carpool_protocol.wire.list_repair import Family
from carpool_protocol.wire.stateless import SERVER_INFO, TASKS, VERSION
from carpool_supervisor.core.model.events import GreetingFailed
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.envelope import RequestEnvelope
from carpool_supervisor.era.greeting import MAX_GREETING_BYTES, RpcError, read_error, refusal
from carpool_supervisor.era.initialize import UNSUPPORTED_VERSION
from carpool_supervisor.era.list_reader import ListReader
from carpool_supervisor.era.self_description import SelfDescription

DISCOVER: Final = "server/discover"
PERHAPS_OLDER: Final = 'if it knows the handshake era only, set "era" to "legacy"'
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

_versions = msgspec.json.Decoder(list[str])


class DiscoverGreeting:
    """The open greeting request of one server, and its description of itself."""

    def __init__(
        self,
        instance: InstanceId,
        key: PoolKey,
        envelope: RequestEnvelope,
        decoded: Decoded,
        discovered: Callable[[list[Feature]], bytes],
        *,
        bridge: bool = False,
    ) -> None:
        """`discovered`: returns the lines to write before any list is read. `bridge`: the process is
        carpool's own bridge.
        """
        self._bridge = bridge
        self._instance = instance
        self._key = key
        self._envelope = envelope
        self._decoded = decoded
        self._discovered = discovered
        self._request = ABSENT
        """The id of the open `server/discover`."""
        self.has_greeted = False
        """True once a server of this era has answered."""
        self._lists = ListReader(instance, decoded, self._ask, self._catalog)
        self._features: list[Feature] = []

    def greeting_line(self) -> bytes:
        """`server/discover`."""
        self._request = self._envelope.next_id("discover")
        return self._envelope.request_line(self._request, DISCOVER)

    def lists_changed(self, families: Iterable[Family]) -> None:
        """Read these lists again."""
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

    def request_answered(self, message: ResultAnswer | ErrorAnswer) -> bool:
        """Handle an answer whose id is no number. Returns True if it answers a request of this greeting."""
        if not self._request or message.id != self._request:
            return self._lists.request_answered(message.id, message)
        self._request = ABSENT
        if isinstance(message, ErrorAnswer):
            self._refused(read_error(message.error))
        elif len(message.result) > MAX_GREETING_BYTES:
            self._fail(f"answered {DISCOVER} with more than {MAX_GREETING_BYTES // 1024**2} MiB", older=False)
        elif VERSION not in _supported(message.result):
            self._fail(f"does not speak MCP {VERSION}", older=True)
        else:
            self.has_greeted = True
            capabilities = RawJson(value_of(message.result, "capabilities") or b"{}")
            self._features = features_of(capabilities)
            known = value_of(value_of(capabilities, "extensions") or b"", TASKS) or b""
            self._envelope.tasks = known[:1] == b"{"
            # Subscribe first: a list that changes while it is read is read again.
            self._decoded.add_line(self._discovered(self._features))
            self._lists.begin(_described(message.result, capabilities), self._features)
        return True

    def answer_unreadable(self, answer_id: RawJson | None, text: str) -> bool:
        """Handle an unreadable line with this id. Returns True if it answers a request of this greeting."""
        if not answer_id:
            return False
        if answer_id != self._request:
            return self._lists.answer_unreadable(answer_id, text)
        self._fail(f"answered {DISCOVER} with an invalid message: {text}", older=True)
        return True

    def headers_received(self, text: str) -> bool:
        """Handle HTTP-like headers, which no stdio server writes. Returns True if that ends the greeting: the
        server may write them before carpool has greeted it.
        """
        if self.has_greeted:
            return False
        self._request = ABSENT
        self._fail(f"does not speak MCP over stdio: {text}", older=False)
        return True

    def _refused(self, error: RpcError) -> None:
        """Handle an error answer. A server of the handshake era may answer any error here; a server of this
        era only that it speaks other versions.
        """
        versions = _supported(RawJson(bytes(error.data))) if error.code == UNSUPPORTED_VERSION else []
        older = not versions or any(version in VERSIONS for version in versions)
        self._fail(refusal(DISCOVER, error, bridge=self._bridge), older=older)

    def _fail(self, text: str, *, older: bool) -> None:
        """Fail the greeting. `older`: the server may speak the handshake era."""
        whole = f"{text}; {PERHAPS_OLDER}" if older else text
        self._decoded.events.append(GreetingFailed(self._instance, whole, text if older else ""))

    def _ask(self, what: str, method: str, params: RawJson) -> RawJson:
        request = self._envelope.next_id(what)
        self._decoded.lines.append(self._envelope.request_line(request, method, params or EMPTY_OBJECT))
        return request

    def _catalog(self) -> Catalog:
        hint = self._lists.hint
        catalog = self._lists.catalog(self._key, version=VERSION, features=self._features)
        tasks = self._envelope.tasks
        return replace(catalog, era="stateless", ttl_ms=hint.ttl_ms, public=hint.public, tasks=tasks)


def _described(answer: RawJson, capabilities: RawJson) -> SelfDescription:
    """The server's description of itself in its answer."""
    return SelfDescription(
        text_of(answer, "instructions") or "",
        RawJson(bytes(value_of(value_of(answer, "_meta") or b"", SERVER_INFO) or b"{}")),
        # Left out: an extension may bring results and notifications that agents do not know. The code that
        # forwards an extension declares it.
        RawJson(change_members(capabilities, {"extensions": None})),
    )


def _supported(answer: RawJson) -> list[str]:
    """The versions that a result, or the data of an error, lists as supported. A list with too many parts to
    be read in one step names none.
    """
    listed = value_of(answer, "supportedVersions") or value_of(answer, "supported") or b"[]"
    try:
        return [] if has_too_many_parts(listed) else _versions.decode(listed)
    except _UNREADABLE:
        return []
