"""What search mode saves, and whether it finds the right tool: `python -m bench.search`.

Owns the measure: tokens of the whole list against what search mode shows, and the rank of the right tool for
the queries that ship with it, among what real servers tell (`record_tools`, which installs and asks them the
first time; nothing runs after that).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.record_tools import NotRecordedError, recipes, recorded
from carpool.cli.tools import BYTES_PER_TOKEN
from carpool_broker.builtin_tools.results import builtin_result
from carpool_broker.builtin_tools.search import ToolSearch
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog, ToolOffer
from carpool_protocol.wire.downgrade import NEWEST

DATA: Final = Path(__file__).parent / "data"
QUICK: Final = frozenset({"git", "time"})
"""The servers of `--quick`: small packages, with queries of both kinds."""
Queries = list[tuple[str, list[str]]]
"""Each query with the tools that do it."""
Facts = dict[str, Any]


def told(*, quick: bool) -> list[Facts]:
    """Return what each server says of itself and its tools. `quick`: those of `QUICK` alone."""
    found = []
    for recipe in recipes():
        if quick and recipe["server"] not in QUICK:
            continue
        try:
            found.append(recorded(recipe))
        except NotRecordedError as error:
            sys.exit(f"{recipe['server']}: {error}; run `python -m bench.record_tools` again")
    return found


def view_of(servers: list[Facts], *, search: bool) -> View:
    """What an agent sees of them."""
    registry = Registry(lambda _: None)
    entries = []
    for server in servers:
        name = ServerName(server["server"])
        offers = [ToolOffer(tool["name"], RawJson(json.dumps(tool).encode())) for tool in server["tools"]]
        registry.catalog_received(
            Catalog(PoolKey(name), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "", features=["tools"])
        )
        entries.append(ScopeEntry(server=name, key=PoolKey(name)))
    return registry.retain_scope(Scope(tuple(entries), search=search))


def tokenizer() -> tuple[str, Callable[[str], int]]:
    """How tokens are counted, and what that is called."""
    try:
        import bpe_openai
    except ImportError:
        return (
            f"estimated, {BYTES_PER_TOKEN} bytes each",
            lambda text: -(-len(text.encode()) // BYTES_PER_TOKEN),
        )
    encoding = bpe_openai.get_encoding("o200k_base")
    return "counted with o200k_base", lambda text: len(encoding.encode(text))


def queries_of(servers: list[Facts]) -> dict[str, Queries]:
    """The queries of each kind that a tool of these servers does."""
    written = json.loads((DATA / "search_queries.json").read_text())
    names = {f"{server['server']}__{tool['name']}" for server in servers for tool in server["tools"]}
    return {kind: [each for each in written[kind] if names & {*each[1]}] for kind in ("plain", "hard")}


def ranks(view: View, queries: Queries, depth: int = 50) -> list[int | None]:
    """For each query the place of the first tool that does it, from 1; None beyond `depth`."""
    finder = ToolSearch()
    places: list[int | None] = []
    for query, right in queries:
        names = [tool.qualified for tool in finder.find(view.tools, {}, query, depth).tools]
        places.append(next((at for at, name in enumerate(names, 1) if name in right), None))
    return places


def summary(places: list[int | None]) -> Facts:
    """Shares of queries whose right tool is among the first, and the mean of 1/rank."""
    count = len(places)
    found: Facts = {
        f"top{most}": sum(1 for place in places if place is not None and place <= most) / count
        for most in (1, 3, 5, 10)
    }
    return found | {"mrr": sum(1 / place for place in places if place) / count, "queries": count}


def tokens(view: View, everything: View, queries: list[str], count: Callable[[str], int]) -> Facts:
    """What an agent has in its context: before the first question, and for each question."""
    finder = ToolSearch()

    def answer(kind: str, **arguments: object) -> str:
        rest = RawJson(json.dumps({"arguments": arguments}).encode())
        text: str = json.loads(builtin_result(view, kind, rest, finder, NEWEST))["content"][0]["text"]
        return text

    finds = [count(answer("find_tools", query=query)) for query in queries]
    definitions = [count(tool.definition.decode()) for tool in everything.tools]
    return {
        "tools": len(everything.tools),
        "whole_list": sum(definitions),
        "search_list": sum(count(tool.definition.decode()) for tool in view.builtin_tools.values()),
        "find_tools_median": statistics.median(finds),
        "describe_tool_median": statistics.median(definitions),
        "describe_tool_largest": max(definitions),
    }


def costs(view: View, queries: list[str]) -> Facts:
    """What searching costs the broker."""
    finder = ToolSearch()
    began = time.perf_counter()
    finder.find(view.tools, {}, "anything", 10)
    index_s = time.perf_counter() - began
    began = time.perf_counter()
    for query in queries:
        finder.find(view.tools, {}, query, 10)
    query_s = (time.perf_counter() - began) / len(queries)
    return {"index_ms": index_s * 1000, "query_ms": query_s * 1000}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object, for programs")
    parser.add_argument("--quick", action="store_true", help="two servers and their queries alone")
    options = parser.parse_args(argv)
    servers = told(quick=options.quick)
    sets = queries_of(servers)
    everything, view = view_of(servers, search=False), view_of(servers, search=True)
    texts = [query for kind in sets.values() for query, _ in kind]
    how, count = tokenizer()
    places = {kind: ranks(view, queries) for kind, queries in sets.items()}
    facts: Facts = {
        "servers": len(servers),
        "tokens": tokens(view, everything, texts, count) | {"how": how},
        "ranks": {kind: summary(its) for kind, its in places.items()},
        "costs": costs(view, texts),
        "missed": [
            {"kind": kind, "query": query, "rank": place, "right": right}
            for kind, queries in sets.items()
            for (query, right), place in zip(queries, places[kind], strict=True)
            if place is None or place > 5
        ],
    }
    print(json.dumps(facts, indent=1) if options.json else page(facts))


def page(facts: Facts) -> str:
    """All of it, for people."""
    its, costs_ = facts["tokens"], facts["costs"]
    once, finds, describes = its["search_list"], its["find_tools_median"], its["describe_tool_median"]
    lines = [
        f"{its['tools']} tools of {facts['servers']} servers; tokens are {its['how']}",
        f"  the whole list {its['whole_list']:,}",
        f"  search mode    {once:,} ({1 - once / its['whole_list']:.1%} less)",
        f"  and for each tool that is needed: find_tools {finds:,.0f}, describe_tool {describes:,.0f} "
        f"(medians; the largest definition {its['describe_tool_largest']:,})",
        "",
    ]
    for kind, each in facts["ranks"].items():
        shares = ", ".join(f"top-{most} {each[f'top{most}']:.0%}" for most in (1, 3, 5, 10))
        lines.append(f"{kind}: {each['queries']} queries, {shares}, MRR {each['mrr']:.2f}")
    lines.append(f"index made in {costs_['index_ms']:.0f} ms, a query takes {costs_['query_ms']:.2f} ms")
    lines += ["", "not among the first five:"]
    for miss in facts["missed"]:
        lines.append(f"  {miss['kind']} #{miss['rank'] or '-'} {miss['query']!r}: {miss['right'][0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
