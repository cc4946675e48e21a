"""Findings of `carpool check` about profiles: patterns that match nothing, and the tools each profile
allows.

Owns the words for both. The files tell if a server is configured; the tools of servers are known from the
carpool that runs here, if one does. Neither finding is an error: a server may be added later. Knows nothing
of: terminals, how the files were read, the daemon.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from carpool_protocol.config.reading.profiles import PROFILES
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.text.problems import ConfigProblem, did_you_mean

Facts = dict[str, Any]


def unknown_server_warnings(config: Config, elsewhere: Iterable[ServerConfig] = ()) -> list[str]:
    """Return a warning for each pattern about servers that are not configured.

    `elsewhere`: those of projects.
    """
    servers = [*config.servers.values(), *elsewhere]
    for workspace in config.workspaces.values():
        servers += workspace.servers.values()
    return [problem.render() for problem in _names_unknown_server(config, servers)]


def _names_unknown_server(config: Config, servers: list[ServerConfig]) -> Iterator[ConfigProblem]:
    for profile in config.profiles.values():
        for key, patterns in (("allow", profile.allow), ("deny", profile.deny)):
            for at, text in enumerate(patterns):
                pattern = capability(text)
                is_any = pattern.server == "*" and pattern.tag is None
                if is_any or any(pattern.is_of(each.name, each.tags) for each in servers):
                    continue
                line = config.lines.get(
                    (PROFILES, profile.name, key, at), config.lines[PROFILES, profile.name]
                )
                if pattern.tag is not None:
                    why = "no server has such a tag"
                else:
                    meant = did_you_mean(pattern.server, [each.name for each in servers])
                    why = "no server has such a name" + (f"; did you mean {meant}?" if meant else "")
                yield ConfigProblem(config.file, line, f"{PROFILES}.{profile.name}.{key}[{at}]", why)


def profile_lines(found: list[Facts]) -> list[str]:
    """Return the report on profiles as lines for people."""
    said: list[str] = []
    for each in found:
        whose = f"profile {each['profile']}" if each["profile"] else "agents without a profile"
        line = f"{whose}: {each['tools']} of {each['of_tools']} known tools"
        line += f" ({each['left_out']} left out of its list by max_tools)" if each["left_out"] else ""
        if each["unknown"]:
            line += f"; not yet told: {', '.join(each['unknown'])}"
        said.append(line)
        said += [f"profile {each['profile']}: {text} covers nothing that is there" for text in each["idle"]]
    return said
