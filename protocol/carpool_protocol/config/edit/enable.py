"""Enables or disables a server in the text of its file, and leaves everything else as its author wrote it.

Owns the key for each kind of file: carpool's own is `disabled`; in another program's file the key that is
already there, else the key of its shape. A value that contains a variable is left to a person.

Pure. Knows nothing of: files, the caller, how a text is edited (`edit`).
"""

from carpool_protocol.config.edit.edit import CannotEditError, remove_member, set_member
from carpool_protocol.config.foreign.formats import MCP_SERVERS, OPENCODE, program_of, shape_of
from carpool_protocol.config.text.jsonc import JsonValue, parse
from carpool_protocol.config.text.problems import KeyPath

_KEY = "disabled"


def set_enabled(text: str, file: str, path: KeyPath, *, on: bool, name: str = "") -> str:
    """The text with the server at `path` enabled or disabled; unchanged if it already is.

    `file`: its path, which shows the program it belongs to. `name`: the server's name, by which it is found
    in a list, since another edit may have moved it. Raises `CannotEditError`.
    """
    whole = parse(text, "").value
    entry: JsonValue = whole
    found: list[str | int] = []
    for key in path:
        at = _index_of(entry, name) if isinstance(entry, list) else key
        found.append(at)
        if isinstance(entry, list) and isinstance(at, int):
            entry = entry[at] if 0 <= at < len(entry) else None
        else:
            entry = entry.get(str(at)) if isinstance(entry, dict) else None
    path = tuple(found)
    shape = shape_of(whole) or MCP_SERVERS
    if not isinstance(entry, dict):
        raise CannotEditError("the server is not written there as an object")
    ours = program_of(file) is None and shape is MCP_SERVERS
    keys_written = {_KEY: shape.mappings[_KEY]} if ours else shape.mappings
    written = [key for key in entry if key in keys_written and keys_written[key].key == _KEY]
    for key in written:
        if not isinstance(entry[key], bool):
            raise CannotEditError(f"`{key}` is not plainly true or false there")
    if not on and not written:
        opposite = shape is OPENCODE
        return set_member(text, (*path, "enabled" if opposite else _KEY), opposite is False)
    # the entry existed only to disable a server of the same name
    if on and written and len(written) == len(entry):
        return remove_member(text, path)
    for key in written:
        if keys_written[key].conversion == "opposite":
            expected: bool | None = on
        else:
            expected = None if on else True
        if expected is None:
            text = remove_member(text, (*path, key))
        elif entry[key] is not expected:
            text = set_member(text, (*path, key), expected)
    return text


def _index_of(servers: list[JsonValue], name: str) -> int:
    """Return the place of a server in a list; -1: it is not there."""
    found = (at for at, each in enumerate(servers) if isinstance(each, dict) and each.get("name") == name)
    return next(found, -1)
