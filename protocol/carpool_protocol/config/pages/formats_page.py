"""`python -m carpool_protocol.config.pages.formats_page` prints `docs/shapes.md`.

A test holds the two together.
"""

import sys

from carpool_protocol.config.foreign.formats import PROGRAMS, SHAPES, Conversion, FileShape, KeyMapping

_EXAMPLES = {
    "mcpServers": '{"mcpServers": {NAME: {…}}}',
    "VS Code": '{"servers": {NAME: {…}}}',
    "VS Code settings": '{"mcp": {"servers": {NAME: {…}}}}',
    "list with names": '[{"name": NAME, …}]',
    "servers as a list": '{"servers": [{"name": NAME, …}]}',
    "opencode": '{"mcp": {NAME: {…}}}',
}

_HEAD = """\
# Other programs' files

<!-- Made by `python -m carpool_protocol.config.pages.formats_page`; change `foreign/formats.py`. -->

What other MCP programs have written is read as it is. The shape is told from the file's content, whose file
it is from its path. Our own files (any path that is not in the second table) may use every shape, and are
strict: a key that nobody knows is an error. In another program's file it gets one warning, our own keys
([settings.md](settings.md)) work beside the program's, and a server that cannot be read or run is
`misconfigured` while the others run. One whose name carpool does not take goes by the nearest name that it
does (`my.server` by `my-server`), with a warning; where that is several servers' of the file, by that and a
hash of its own name.
"""

_AFTER = """\
Servers with a URL are reached as [remote.md](remote.md) says. A `type` of `ws` is `misconfigured`.

`${env:VAR}` becomes `${VAR}`, `${workspaceFolder}` becomes `${workspace}`, `${userHome}` becomes `${HOME}`.
In settings of Gemini CLI `$VAR` becomes `${VAR}`, in files of opencode `{env:VAR}`, and `${` is text there.
`${input:…}` and files for single values (`${file:…}`, `{file:…}`) have no equal here: such a server is
`misconfigured`. An entry that runs `carpool connect` or `carpool run` is how that program reaches
carpool, and no server.
"""

_CONVERSIONS: dict[Conversion, str] = {
    "same": "as it is",
    "texts": "as it is; numbers become texts, `null` is left out",
    "opposite": "the opposite",
    "time": "in seconds; a longer one than `max_total_s` raises that, too",
    "command": "a `command` that is a list holds the first arguments, too",
    "attempts": "one more than that many failures; below 0: without end",
    "reconnect": "`false`: 1, and `restart.open_s` 0: it is not started again until `carpool start`",
    "url": "as it is",
    "http url": "before `url`; `transport` is `http`",
    "oauth": "`clientId`, `clientSecret`, `scopes` or `scope`, `callbackPort`, as it is; `false`: nothing",
    "cannot": "the server is `misconfigured`: carpool runs no program for headers, and signs with no keys",
    "transport": "`stdio` and `local` are commands, `remote` is `url`; in VS Code `http` is `url`, too",
    "unread": "passed over: the program's own business",
}


def page() -> str:
    """The whole page, in Markdown."""
    parts = [
        _HEAD,
        "## Shapes\n\n| shape | written as | unit of `timeout` | beside it |\n|---|---|---|---|\n"
        + "".join(map(_shape, SHAPES)),
        "## Whose file it is\n\n| path ends in | program | unit of `timeout` |\n|---|---|---|\n"
        + "".join(f"| `{each.path}` | {each.name} | {_unit(each.unit, '')} |\n" for each in PROGRAMS),
        "## Keys of a server\n\n| theirs | ours | how |\n|---|---|---|\n" + _keys(),
        _AFTER,
    ]
    return "\n".join(parts)


def _shape(shape: FileShape) -> str:
    beside = "anything" if shape.beside is None else ", ".join(f"`{each}`" for each in sorted(shape.beside))
    unit = _unit(shape.unit, "by the path")
    return f"| {shape.name} | `{_EXAMPLES[shape.name]}` | {unit} | {beside or '—'} |\n"


def _unit(unit: str | None, other: str) -> str:
    return unit or other or "not documented: passed over with a warning"


def _keys() -> str:
    """One row for all keys that go the same way."""
    rows: dict[KeyMapping, list[str]] = {}
    for shape in SHAPES:
        for key, way in shape.ways.items():
            keys = rows.setdefault(way, [])
            if key not in keys:
                keys.append(key)
    return "".join(
        f"| {', '.join(f'`{key}`' for key in keys)} | {_ours(way)} | {_CONVERSIONS[way.turn]} |\n"
        for way, keys in rows.items()
    )


def _ours(way: KeyMapping) -> str:
    return f"`{way.key}`" if way.key else "—"


if __name__ == "__main__":
    sys.stdout.write(page())
