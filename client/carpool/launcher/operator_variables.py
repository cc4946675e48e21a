"""The variables that an explicit `carpool up` brings along, for servers with `auto_connect` and traces.

Owns their choice: exactly the names that servers with `auto_connect` in the user's file use, and those of
OpenTelemetry if calls are traced, from the environment of whoever says `carpool up`. A start by an agent
brings none (`up --quiet`).

Refuses to know: the way to the broker (`variables_pipe`), their use there.
"""

from collections.abc import Mapping

import msgspec

from carpool_protocol.config.reading.load import find_config_file, home_of, load_layer
from carpool_protocol.config.schema.expand import is_usable
from carpool_protocol.config.schema.model import TRACE_VARIABLES, operator_variables


def variables_of_operator(environ: Mapping[str, str], config: str) -> bytes:
    """Return the variables as JSON; empty if there are none. `config` is the file; empty for
    the user's own.
    """
    loaded = load_layer(find_config_file(environ, config or None), home_of(environ)).loaded
    config_found = loaded.config
    names = operator_variables(config_found) if config_found is not None else frozenset()
    if config_found is not None and config_found.trace.on:
        names |= {name for name in environ if name.startswith(TRACE_VARIABLES)}
    found = {name: environ[name] for name in sorted(names) if is_usable(environ.get(name, "\0"))}
    return msgspec.json.encode(found) if found else b""
