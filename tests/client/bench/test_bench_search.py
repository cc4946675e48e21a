"""`bench.search`: its short run measures with two servers and their queries alone."""

import json
from typing import Any

import pytest

from bench import search


@pytest.mark.parametrize(("options", "servers"), [([], 23), (["--quick"], 2)])
def test_the_short_run_asks_two_servers_and_searches_for_their_tools_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], servers: int
) -> None:
    written = json.loads((search.DATA / "search_queries.json").read_text())
    right = {name for kind in ("plain", "hard") for _, names in written[kind] for name in names}

    def recorded(recipe: dict[str, Any]) -> dict[str, Any]:
        prefix = f"{recipe['server']}__"
        names = sorted(name.removeprefix(prefix) for name in right if name.startswith(prefix))
        tools = [{"name": name, "description": "Does it.", "inputSchema": {}} for name in names or ["none"]]
        return {"server": recipe["server"], "tools": tools}

    monkeypatch.setattr(search, "recorded", recorded)
    search.main([*options, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["servers"] == servers
    counts = [facts["ranks"][kind]["queries"] for kind in ("plain", "hard")]
    if not options:
        assert counts == [len(written["plain"]), len(written["hard"])], "each query is for one of the servers"
    else:
        assert all(counts), "there are queries of both kinds"
        assert sum(counts) < len(written["plain"]) / 2
        search.main(options)
        assert "of 2 servers" in capsys.readouterr().out
