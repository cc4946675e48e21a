"""Keys that a configuration may well hold and that no setting is made of.

Owns the sentence for each key that later versions or other programs know and this version refuses, and the
keys that are passed over.

Knows nothing of: settings, values.
"""

from typing import Final

_OTHER_SHAPE: Final = "a file holds its servers in one place: move these under `mcpServers`"
_URL: Final = "the key is called `url` here"

FILE_LATER: Final[dict[str, str]] = {
    "servers": _OTHER_SHAPE,
    "mcp": _OTHER_SHAPE,
}
"""Keys that later versions or other programs know and this version refuses, each with its sentence."""

SERVER_LATER: Final[dict[str, str]] = {
    "serverUrl": _URL,
    "httpUrl": _URL,
    "environment": "the key is called `env` here",
    "enabled": "the key is called `disabled` here, with the opposite value",
    "timeout": "the key is called `timeout_s` here, in seconds",
}
"""The same for the keys of a server."""

IGNORED_KEYS: Final = frozenset({"$schema"})
"""Keys of the file that editors write and nobody here reads."""
