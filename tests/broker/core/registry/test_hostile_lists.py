"""The lists that agents read, made of every hostile catalog as the supervisor tells it."""

import json

import pytest

from carpool_broker.core.model.pagination import FAMILIES, BadCursor
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.registry import Registry
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog, ToolOffer
from tests.behaviours import behaviour
from tests.kit.broker_rig import no_effect
from tests.kit.catalog_reader import CatalogReader
from tests.kit.hostile_catalogs import HOSTILE, HostileCatalog

READABLE = {name: said for name, said in HOSTILE.items() if not said.is_unreadable}
GOOD = Catalog(
    PoolKey("good:1"),
    [ToolOffer("read", RawJson(b'{"name":"read"}'))],
    "Be kind.",
    EMPTY_OBJECT,
    EMPTY_OBJECT,
    "",
    features=["tools"],
)


@behaviour("catalogs:bounded", "catalogs:own-section")
@pytest.mark.parametrize("said", READABLE.values(), ids=list(READABLE))
def test_a_hostile_catalog_leaves_lists_legal_and_takes_nothing_of_another_server(
    said: HostileCatalog,
) -> None:
    registry = Registry(no_effect, mark="m")
    entries = [ScopeEntry(server=ServerName(name), key=PoolKey(f"{name}:1")) for name in ("evil", "good")]
    scope = Scope(tuple(entries))
    registry.retain_scope(scope)
    registry.catalog_received(CatalogReader(said, "handshake").catalog)
    registry.catalog_received(GOOD)
    view = registry.view(scope)
    for family in FAMILIES:
        cursor = None
        while True:
            page = view.page(family, cursor)
            assert not isinstance(page, BadCursor)
            json.loads(page.body)
            cursor = page.next_cursor
            if cursor is None:
                break
    resolved = view.resolve("good__read")
    assert getattr(resolved, "server", "") == "good"
    assert view.instructions.endswith("# good\n\nBe kind.")
    registry.check()
