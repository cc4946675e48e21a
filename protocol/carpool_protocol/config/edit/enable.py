"""Enables or disables a server in the text of its file, and leaves everything else as its author wrote it.

Owns the key for each kind of file: carpool's own is `disabled`; in another program's file the key that is
already there, else the key of its shape. A value that contains a variable is left to a person.

Pure. Knows nothing of: files, the caller, how a text is edited (`edit`).
"""

from carpool_protocol.config.edit.edit import CannotEditError, remove_member, set_member
from carpool_protocol.config.foreign.formats import MCP_SERVERS, OPENCODE, program_of, shape_of
from carpool_protocol.config.text.jsonc import JsonValue, parse

_KEY = "disabled"


def set_enabled(text: str, file: str, path: tuple[str, ...], *, on: bool) -> str:
    """The text with the server at `path` enabled or disabled; unchanged if it already is.

    `file`: its path, which shows the program it belongs to. Raises `CannotEditError`.
    """
    whole = parse(text, "").value
    entry: JsonValue = whole
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    shape = shape_of(whole) or MCP_SERVERS
    if not isinstance(entry, dict):
        raise CannotEditError("the server is not written there as a member of an object")
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
