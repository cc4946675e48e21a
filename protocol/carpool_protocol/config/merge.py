"""The user's configuration with a project's own over it.

Owns which of two servers of one name is meant (the project's), and what is said about it. The project adds
servers and nothing else. Invariant: a server is in `servers` or in `unusable`, never in both.

Pure. Knows nothing of: trust, files.
"""

from msgspec.structs import replace

from carpool_protocol.config.model import Config
from carpool_protocol.config.problems import ConfigProblem


def merge(user: Config, project: Config) -> Config:
    """Both together, in the user's order, then the project's."""
    servers = {**user.servers, **project.servers}
    for name in project.unusable:
        servers.pop(name, None)
    unusable = {name: why for name, why in user.unusable.items() if name not in project.servers}
    return replace(user, servers=servers, unusable={**unusable, **project.unusable})


def shadowed(user: Config, project: Config) -> list[ConfigProblem]:
    """A warning for each server of the user's that a server of the project takes the place of."""
    return [
        ConfigProblem(
            server.file,
            server.lines[()],
            name,
            f"takes the place of your server of this name in {user.servers[name].file}",
        )
        for name, server in project.servers.items()
        if name in user.servers
    ]


def cap_problem(merged: Config, file: str) -> ConfigProblem | None:
    """Rule 14 for both together: what must always run has to fit."""
    least = sum(each.policy.min_instances for each in merged.servers.values() if not each.disabled)
    if least <= merged.max_instances:
        return None
    why = f"the pool.min of its servers and yours add up to {least} instances, more than your max_instances"
    return ConfigProblem(file, 1, "", f"{why} ({merged.max_instances}); raise that or lower a pool.min")
