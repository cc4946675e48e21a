"""The `mcpServers` shape that many programs share, and files of JSON.

Knows nothing of: single programs.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.programs.program import Entry, Home
from tests.programs.script import Json


def mcp_servers(servers: Mapping[str, Entry], *, url_key: str = "url", url_type: str = "") -> Json:
    """`{"odd": {"command": …, "args": […], "env": {…}}}`, or the URL under the key that a program reads."""
    return {
        name: {url_key: entry.url, **({"type": url_type} if url_type else {})}
        if entry.url
        else {"command": entry.command, "args": list(entry.args), "env": dict(entry.env)}
        for name, entry in servers.items()
    }


def write_json(file: Path, value: Json) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2), encoding="utf-8")


def entry_editor(file: str) -> Callable[[Home, Callable[[Entry], Entry]], None]:
    """Change carpool's entry in this file of the home, which is of this shape."""

    def edit(home: Home, change: Callable[[Entry], Entry]) -> None:
        whole = json.loads((home.path / file).read_text(encoding="utf-8"))
        old = whole["mcpServers"]["carpool"]
        new = change(Entry(old["command"], tuple(old.get("args", ())), old.get("env", {})))
        old |= {"command": new.command, "args": list(new.args), "env": dict(new.env)}
        write_json(home.path / file, whole)

    return edit
