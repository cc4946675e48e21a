"""The warning of `carpool check` about `http.max_body_bytes` above what carpool takes.

Knows nothing of: the HTTP door, bodies.
"""

from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.problems import ConfigProblem, KeyPath

_KEY: KeyPath = ("http", "max_body_bytes")


def body_size_warnings(config: Config) -> list[str]:
    """Return the warning, if there is one. Longer bodies are refused whatever the setting says."""
    if config.http.max_body_bytes <= MESSAGE_CAP_BYTES:
        return []
    line = config.lines.get(_KEY, config.lines.get(_KEY[:1], 1))
    text = f"carpool takes bodies of at most {MESSAGE_CAP_BYTES} bytes; a larger limit has no effect"
    return [ConfigProblem(config.file, line, "http.max_body_bytes", text).render()]
