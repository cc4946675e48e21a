"""The list of those tools that tell arguments in headers, by which the HTTP door checks calls."""

import json
from typing import Any

import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import ReplyStateless
from carpool_broker.core.registry import view
from carpool_broker.core.registry.pool_catalog import MAX_ANNOTATED_BYTES, ViewTool
from carpool_protocol.carrier.streams import ANNOTATED_TOOLS
from carpool_protocol.ids import EMPTY_OBJECT, RawJson
from carpool_protocol.link.messages import Catalog, ToolOffer
from tests.behaviours import behaviour
from tests.broker.stateless_rig import FEATURES, ONE, PLAIN, A, B, StatelessRig


def _tool(name: str, header: str = "", padding: int = 0) -> ToolOffer:
    region = {"type": "string", **({"x-mcp-header": header} if header else {})}
    schema = {"type": "object", "properties": {"region": region}}
    definition = {"name": name, "description": "x" * padding, "inputSchema": schema}
    return ToolOffer(name, RawJson(json.dumps(definition).encode()))


def _told(rig: StatelessRig, *tools: ToolOffer) -> None:
    rig.feed(Catalog(A, list(tools), "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", features=FEATURES))


def _listed(rig: StatelessRig, cursor: str | None = ANNOTATED_TOOLS) -> Any:
    effects = rig.feed(ev.ListPageRequested(ONE, RawJson(b"1"), cursor, by=PLAIN))
    [reply] = [each for each in effects if isinstance(each, ReplyStateless)]
    return json.loads(reply.body)


def _names(page: Any) -> list[str]:
    return [each["name"] for each in page["tools"]]


@behaviour("http:stateless:headers")
def test_only_annotated_tools_are_listed_under_their_names_in_the_view() -> None:
    rig = StatelessRig()
    _told(rig, _tool("plain"), _tool("told", "Region"), _tool("long", "Region", MAX_ANNOTATED_BYTES))
    assert _names(_listed(rig)) == ["a__told"]
    assert len(_names(_listed(rig, None))) == 4
    _told(rig, _tool("other", "Region"))
    assert _names(_listed(rig)) == ["a__other"]


@behaviour("http:stateless:headers")
def test_no_other_tool_is_written_anew_for_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StatelessRig()
    _told(rig, *[_tool(f"t{at}") for at in range(100)], _tool("told", "Region"))
    written: list[str] = []
    whole = ViewTool.definition.fget  # type: ignore[attr-defined]

    def definition(tool: ViewTool) -> RawJson:
        written.append(tool.tool)
        found: RawJson = whole(tool)
        return found

    monkeypatch.setattr(ViewTool, "definition", property(definition))
    assert _names(_listed(rig)) == _names(_listed(rig)) == ["a__told"]
    assert written == ["told"]  # once for the view, not once for each that asks


@behaviour("http:stateless:headers")
def test_a_long_list_of_annotated_tools_has_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "ANNOTATED_PAGE_BYTES", 1000)
    rig = StatelessRig()
    _told(rig, *[_tool(f"t{at}", "Region") for at in range(50)])
    cursor, names, pages = ANNOTATED_TOOLS, [], 0
    while cursor:
        page = _listed(rig, cursor)
        assert len(json.dumps(page["tools"])) < 1200
        cursor = page.get("nextCursor", "")
        names += _names(page)
        pages += 1
    assert sorted(names) == sorted(f"a__t{at}" for at in range(50))
    assert pages > 5


@behaviour("http:stateless:headers")
def test_the_list_waits_for_catalogs_that_are_on_their_way() -> None:
    rig = StatelessRig(told=False)
    asked = rig.feed(ev.ListPageRequested(ONE, RawJson(b"1"), ANNOTATED_TOOLS, by=PLAIN))
    assert not any(isinstance(each, ReplyStateless) for each in asked)
    rig.catalog(B, "y")
    effects = rig.feed(
        Catalog(A, [_tool("told", "Region")], "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", features=FEATURES)
    )
    [reply] = [each for each in effects if isinstance(each, ReplyStateless)]
    assert _names(json.loads(reply.body)) == ["a__told"]
