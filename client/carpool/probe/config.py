"""The configuration of a probe's private carpool: one server of the user's, twice.

Pure. `ALONE` gives each session an instance of its own, `SHARED` has one instance for all; everything that
decides how the server runs stays as the user wrote it. What would disturb the experiment is replaced. Each
has a profile of its own name that lets through nothing of the other one: both list the same URIs, and where
one agent sees both, those of one are rewritten, in the answers to be compared too.
Knows nothing of: files, what is done with it.
"""

import json
from collections.abc import Mapping

from carpool_protocol.config.reading.parse import SERVERS
from carpool_protocol.config.reading.profiles import PROFILES
from carpool_protocol.config.text.jsonc import JsonValue

ALONE, SHARED = "alone", "shared"
START_S = 330.0
"""The seconds that the private carpool waits for the server's tools: a first start may install
for minutes.
"""
_MOST_ALONE = 4
"""Two private runs at once, one after them, and one instance that is still ending."""
_REPLACED = frozenset(
    {
        *(
            "sharing",
            "pool",
            "disabled",
            "auto_connect",
            "tools_prefix",
            "description_prefix",
            "lease_idle_s",
        ),
        "tools_file",  # what is tried is what the server itself offers
    }
)


def probe_config(entry: Mapping[str, JsonValue], env_file: str | None) -> str:
    """The private configuration. `entry`: the server as it is written, in our keys; `env_file`: absolute."""
    kept = {key: inner for key, inner in entry.items() if key not in _REPLACED}
    config = {
        SERVERS: {
            ALONE: {**kept, "sharing": "session", "pool": {"max": _MOST_ALONE}},
            SHARED: {**kept, "sharing": "concurrent", "pool": {"max": 1}},
        },
        PROFILES: {arm: {"allow": [f"mcp:{arm}"]} for arm in (ALONE, SHARED)},
        "list_wait_s": START_S,
        # Installers do not like to run twice at once on one cache.
        "max_greeting": 1,
    }
    return json.dumps(config if env_file is None else {**config, "env_file": env_file}, indent=2)
