"""Profiles applied to a configuration: the rights, the limits, and the servers that are left.

Owns the step from a profile as it is written to the values that decide. Invariants: a server of which
nothing is permitted is in no part of the result, so that it is never started for these agents and no text
names it to them; a profile that has left the file grants nothing. Pure. Refuses to know: sessions, which
session has which profile, files.
"""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from carpool_broker.core.configuration.resolve_servers import Resolution, filter_servers
from carpool_broker.core.model.bounds import ProfileLimits
from carpool_broker.core.model.compiled_profile import ALL_RIGHTS, NO_RIGHTS, Rights
from carpool_broker.core.model.scope import Scope
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.config.schema.model import Config
from carpool_protocol.ids import ServerName


def rights_of(config: Config, profile: str) -> Rights:
    """Return the rights of this profile; an empty name has all rights."""
    if not profile:
        return ALL_RIGHTS
    written = config.profiles.get(profile)
    if written is None:
        return NO_RIGHTS
    return Rights(tuple(map(capability, written.allow)), tuple(map(capability, written.deny)))


def limits_of(config: Config) -> Mapping[str, ProfileLimits]:
    """Return the limits by profile name; only of profiles that have some."""
    found = {
        name: ProfileLimits(
            max_in_flight=each.max_in_flight,
            calls_per_minute=each.calls_per_minute,
            max_servers=each.max_servers,
        )
        for name, each in config.profiles.items()
    }
    return {name: limits for name, limits in found.items() if limits != ProfileLimits()}


def profile_scope(config: Config, profile: str, strangers: Collection[ServerName] = ()) -> Scope:
    """Return what agents with this profile see, without servers yet. `strangers`: see
    `ScopeEntry.stranger`.
    """
    rights = rights_of(config, profile)
    written = config.profiles.get(profile)
    least = [config.max_tools, None if written is None else written.max_tools]
    return Scope(
        (),
        config.separator,
        profile="" if rights.are_all else profile,
        rights=rights,
        barred=(
            *(
                (server.name, server.tools_prefix)
                for server in config.servers.values()
                if not rights.sees_server(server.name, server.tags, stranger=server.name in strangers)
            ),
            *(
                (name, None)
                for name in config.unusable
                if name not in config.servers and not rights.sees_server(name, (), stranger=name in strangers)
            ),
        ),
        name_chars=config.tool_name_length,
        max_tools=min((most for most in least if most is not None), default=None),
        search=written is not None and written.show == "search",
        resource_tools=written is not None and written.resource_tools,
    )


def is_visible(
    config: Config, profile: str, server: ServerName, strangers: Collection[ServerName] = ()
) -> bool:
    """True if the profile permits anything of this server."""
    written = config.servers.get(server)
    tags = () if written is None else written.tags
    return rights_of(config, profile).sees_server(server, tags, stranger=server in strangers)


def permitted_servers(
    found: Resolution, config: Config, rights: Rights, strangers: Collection[ServerName] = ()
) -> Resolution:
    """Return those of these servers of which the rights permit anything."""
    if rights.are_all:
        return found
    tags = {name: server.tags for name, server in config.servers.items()}
    left = filter_servers(
        found, lambda name: rights.sees_server(name, tags.get(name, ()), stranger=name in strangers)
    )
    entries = [replace(it, stranger=True) if it.server in strangers else it for it in left.entries]
    return replace(left, entries=entries)
