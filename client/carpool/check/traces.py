"""The warning of `carpool check` about traces that cannot leave: their packages are missing.

Knows nothing of: the export of traces, whether a collector listens.
"""

from carpool_protocol.bootstrap.extras import install_command, is_installed
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.problems import ConfigProblem, KeyPath

_KEY: KeyPath = ("trace", "on")


def trace_warnings(config: Config) -> list[str]:
    """Return the warning, if there is one. Calls run without it; they leave no traces."""
    if not config.trace.on or is_installed("otel"):
        return []
    line = config.lines.get(_KEY, config.lines.get(_KEY[:1], 1))
    text = f"traces need more than is installed: {install_command('otel')}"
    return [ConfigProblem(config.file, line, "trace.on", text).render()]
