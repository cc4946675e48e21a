"""A hostile catalog as an era adapter of the supervisor reads it, line by line and without a process.

Knows nothing of: what is asserted of it.
"""

import json
from typing import Any, Literal

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_protocol.link.messages import Catalog
from carpool_supervisor.core.model.events import CatalogRead, InstanceGreeted
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.kit.hostile_catalogs import HostileCatalog

Era = Literal["handshake", "stateless"]
CAPABILITIES: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}


class CatalogReader:
    """What an adapter made of a catalog: the catalog as agents may come to see it, and all its events."""

    def __init__(self, said: HostileCatalog, era: Era, *, page_entries: int = 8) -> None:
        maker = HandshakeAdapter if era == "handshake" else StatelessAdapter
        self.adapter = maker(InstanceId(1), PoolKey("evil:1"), "1.0")
        self.events: list[Any] = []
        self._said = said
        self._page_entries = page_entries
        waiting = [self.adapter.greeting_line()]
        while waiting:
            for line in b"".join(waiting).splitlines():
                asked = json.loads(line)
                waiting = self._say(asked) if "id" in asked and "method" in asked else []

    @property
    def catalog(self) -> Catalog:
        """The one that was read last."""
        return next(
            each.catalog for each in reversed(self.events) if isinstance(each, InstanceGreeted | CatalogRead)
        )

    def _say(self, asked: dict[str, Any]) -> list[bytes]:
        line = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (
            json.dumps(asked["id"]).encode(),
            self._result(asked),
        )
        events, out = self.adapter.feed([line])
        self.events += events
        lines = list(out)
        while self.adapter.is_reading:
            events, out = self.adapter.read_on()
            self.events += events
            lines += out
        return lines

    def _result(self, asked: dict[str, Any]) -> bytes:
        said = self._said
        match asked["method"]:
            case "initialize":
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": CAPABILITIES,
                    "serverInfo": {"name": "x"},
                }
                return json.dumps(result | {"instructions": said.instructions}).encode()
            case "server/discover":
                versions = {"resultType": "complete", "supportedVersions": ["2026-07-28"]}
                result = versions | {"capabilities": CAPABILITIES, "instructions": said.instructions}
                return json.dumps(result).encode()
            case "tools/list":
                return self._page(asked, b"tools", said.tools)
            case "prompts/list":
                return self._page(asked, b"prompts", said.prompts)
            case "resources/list":
                return self._page(asked, b"resources", said.resources)
            case "resources/templates/list":
                return self._page(asked, b"resourceTemplates", said.templates)
            case _:
                return b"{}"

    def _page(self, asked: dict[str, Any], member: bytes, entries: tuple[bytes, ...]) -> bytes:
        start = int(asked["params"].get("cursor", 0)) if "params" in asked else 0
        end = start + self._page_entries
        cursor = b',"nextCursor":"%d"' % end if end < len(entries) else b""
        return b'{"%b":[%b]%b}' % (member, b",".join(entries[start:end]), cursor)
