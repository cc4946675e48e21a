"""A server switched on or off in the text of its file, with everything else as its author wrote it.

Owns which key says so in a file of each shape: ours is `disabled`; another program's file has what is written
there already, else the key of its shape. A switch that a variable decides is left to a person.

Pure. Knows nothing of: files, who asks, how a text is edited (`edit`).
"""

from carpool_protocol.config.edit.edit import CannotEditError, remove_member, set_member
from carpool_protocol.config.foreign.formats import MCP_SERVERS, OPENCODE, program_of, shape_of
from carpool_protocol.config.text.jsonc import JsonValue, parse

_KEY = "disabled"


def set_enabled(text: str, file: str, path: tuple[str, ...], *, on: bool) -> str:
    """The text with the server at `path` enabled, or disabled; the very text where it is so already.

    `file` says whose it is. Raises `CannotEditError`.
    """
    whole = parse(text, "").value
    entry: JsonValue = whole
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    shape = shape_of(whole) or MCP_SERVERS
    if not isinstance(entry, dict):
        raise CannotEditError("the server is not written there as a member of an object")
    ours = program_of(file) is None and shape is MCP_SERVERS
    ways = {_KEY: shape.ways[_KEY]} if ours else shape.ways
    written = [key for key in entry if key in ways and ways[key].key == _KEY]
    for key in written:
        if not isinstance(entry[key], bool):
            raise CannotEditError(f"`{key}` is not plainly true or false there")
    if not on and not written:
        opposite = shape is OPENCODE
        return set_member(text, (*path, "enabled" if opposite else _KEY), opposite is False)
    if on and written and len(written) == len(entry):  # it was there to be without somebody else's
        return remove_member(text, path)
    for key in written:
        if ways[key].turn == "opposite":
            wished: bool | None = on
        else:
            wished = None if on else True
        if wished is None:
            text = remove_member(text, (*path, key))
        elif entry[key] is not wished:
            text = set_member(text, (*path, key), wished)
    return text
