"""`python -m carpool_protocol.config.pages.formats_page` prints `docs/shapes.md`.

Owns the text around the tables of `formats`. A test compares the page with the file.
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

Carpool reads the files of other MCP programs as they are. The file's content shows its shape, and its path
shows the program. Carpool's own files (any path that is not in the second table) may use every shape and
are strict: an unknown key is an error, and one that concerns only another program a warning. In another
program's file an unknown key gets one warning, carpool's own keys ([settings.md](settings.md)) work beside
the program's, and a server that cannot be read or run is `misconfigured` while the others run. A server
with an illegal name gets the nearest legal name (`my.server` becomes `my-server`), with a warning. If
several servers of the file get the same name, each also gets a hash of its own name.

In every file that is not called `carpool.json`, also one that `CARPOOL_CONFIG`, `--config` or `include`
names, `null` means that the key is not set: a key of a server, a whole server, `mcpServers` itself. Of a key
that is written twice the last one counts, with a warning. In `carpool.json` both are errors.
"""

_AFTER = """\
[remote.md](remote.md) describes servers with a URL. A server with `type` `ws` is `misconfigured`.

`${env:VAR}` becomes `${VAR}`, `${workspaceFolder}` becomes `${workspace}`, `${userHome}` becomes `${HOME}`.
In settings of Gemini CLI `$VAR` becomes `${VAR}`. In files of opencode `{env:VAR}` does, and `${` is plain
text. `${input:…}` and files for single values (`${file:…}`, `{file:…}`) are not supported: such a server is
`misconfigured`. An entry that runs `carpool connect` or `carpool run` is ignored: it is how that program
reaches carpool.
"""

_CONVERSIONS: dict[Conversion, str] = {
    "same": "unchanged",
    "texts": "unchanged; numbers become texts, `null` is left out",
    "opposite": "the opposite",
    "time": "in seconds; a value above `max_total_s` raises that too",
    "command": "a `command` that is a list also holds the first arguments",
    "attempts": "the number plus 1; below 0: no limit",
    "reconnect": "`false`: 1, and `restart.open_s` 0: it is not started again until `carpool start`",
    "url": "unchanged",
    "http url": "preferred to `url`; `transport` is `http`",
    "oauth": "`clientId`, `clientSecret`, `scopes` or `scope`, `callbackPort`, unchanged; `false`: no effect",
    "cannot": "the server is `misconfigured`: carpool runs no program for headers and signs with no keys",
    "transport": "`stdio` and `local` are commands, `remote` is `url`; in VS Code `http` is also `url`",
    "unread": "ignored: it concerns only that program",
}


def page() -> str:
    """The whole page as Markdown."""
    parts = [
        _HEAD,
        "## Shapes\n\n| shape | written as | unit of `timeout` | keys beside it |\n|---|---|---|---|\n"
        + "".join(map(_shape, SHAPES)),
        "## Programs\n\n| path ends in | program | unit of `timeout` |\n|---|---|---|\n"
        + "".join(f"| `{each.path}` | {each.name} | {_unit(each.unit, '')} |\n" for each in PROGRAMS),
        "## Keys of a server\n\n| key of the program | key of carpool | conversion |\n|---|---|---|\n"
        + _keys(),
        _AFTER,
    ]
    return "\n".join(parts)


def _shape(shape: FileShape) -> str:
    beside = "anything" if shape.beside is None else ", ".join(f"`{each}`" for each in sorted(shape.beside))
    unit = _unit(shape.unit, "by the path")
    return f"| {shape.name} | `{_EXAMPLES[shape.name]}` | {unit} | {beside or '—'} |\n"


def _unit(unit: str | None, other: str) -> str:
    return unit or other or "not documented: ignored with a warning"


def _keys() -> str:
    """The table rows; one row for all keys with the same conversion."""
    rows: dict[KeyMapping, list[str]] = {}
    for shape in SHAPES:
        for key, mapping in shape.mappings.items():
            keys = rows.setdefault(mapping, [])
            if key not in keys:
                keys.append(key)
    return "".join(
        f"| {', '.join(f'`{key}`' for key in keys)} | {_ours(each)} | {_CONVERSIONS[each.conversion]} |\n"
        for each, keys in rows.items()
    )


def _ours(mapping: KeyMapping) -> str:
    return f"`{mapping.key}`" if mapping.key else "—"


if __name__ == "__main__":
    sys.stdout.write(page())
