"""Reads the object `profiles` of the user's file.

Owns its structure. Only the user's own file may have profiles: a project must not decide what an agent may
do.

Knows nothing of: sessions, tokens, existing servers.
"""

from collections.abc import Mapping
from typing import Final

from carpool_protocol.config.reading.workspaces import SectionReader
from carpool_protocol.config.schema.model import ClusterConfig, HttpConfig, ProfileConfig
from carpool_protocol.config.schema.setting import with_defaults
from carpool_protocol.config.schema.settings_profile import PROFILE_SETTINGS
from carpool_protocol.config.schema.value_types import kind_of
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import KeyPath, did_you_mean
from carpool_protocol.wire.tool_name_resolver import check_server_name

PROFILES: Final = "profiles"
_KEYS: Final = {each.key: each for each in PROFILE_SETTINGS}


def check_profile_names(
    reading: SectionReader, http: HttpConfig, cluster: ClusterConfig, profiles: Mapping[str, ProfileConfig]
) -> None:
    """Check that the profiles of tokens and of other nodes exist; otherwise these could call nothing."""
    named: dict[KeyPath, str] = {("cluster", "profile"): cluster.profile}
    named |= {("http", "tokens", name, "profile"): token.profile for name, token in http.tokens.items()}
    for path, profile in named.items():
        if profile and profile not in profiles:
            meant = did_you_mean(profile, profiles)
            why = "there is no profile of that name" + (f"; did you mean {meant}?" if meant else "")
            reading.add_problem(path, why)


def read_profiles(reading: SectionReader, value: JsonValue) -> dict[str, ProfileConfig]:
    """All profiles in the order of the file."""
    if not isinstance(value, dict):
        reading.add_problem((PROFILES,), f"must be an object of names and profiles, found {kind_of(value)}")
        return {}
    found: dict[str, ProfileConfig] = {}
    for name, inner in value.items():
        path: KeyPath = (PROFILES, name)
        if (why := check_server_name(name, "profile")) is not None:
            reading.add_problem(path, why)
        elif not isinstance(inner, dict):
            kind = kind_of(inner)
            reading.add_problem(path, f'must be an object like {{ "allow": ["mcp:time:*"] }}, found {kind}')
        else:
            fields = with_defaults(PROFILE_SETTINGS, reading.section(path, inner, _KEYS, {}))
            found[name] = ProfileConfig(name=name, **fields)
    return found
