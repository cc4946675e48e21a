"""The user's configuration with a named workspace or a project's own file laid over it.

Owns which of two servers with the same name counts (the upper one), and the warnings about it. The upper
layer adds servers and nothing else. Invariant: a server is in `servers` or in `unusable`, never in both.

Pure. Knows nothing of: trust, files.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from carpool_protocol.config.schema.model import Config, NamedWorkspace, ServerConfig
from carpool_protocol.config.text.problems import ConfigProblem, render_path
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import Policy


def merge_configs(user: Config, project: Config | NamedWorkspace) -> Config:
    """Both configurations together: the user's servers in their order, then the other's."""
    upper = {name: replace(it, beneath=_server_beneath(user, name)) for name, it in project.servers.items()}
    servers = {**user.servers, **upper}
    for name in project.unusable:
        servers.pop(name, None)
    unusable = {name: why for name, why in user.unusable.items() if name not in project.servers}
    return replace(user, servers=servers, unusable={**unusable, **project.unusable})


def _server_beneath(user: Config, name: ServerName) -> Policy:
    below = user.servers.get(name)
    if below is None:
        return Policy()
    return below.policy if below.beneath is None else below.beneath


def taken_over(user: Config, project: Config) -> frozenset[ServerName]:
    """Servers of a project with the name of one of the user's servers.

    A user's server that cannot be run counts too, because rights are granted to the name.
    """
    return frozenset(project.servers.keys() & {*user.servers, *user.unusable})


def shadowed(user: Config, project: Config | NamedWorkspace) -> list[ConfigProblem]:
    """A warning for each server of the user that an upper server replaces."""
    warnings = []
    for name, server in project.servers.items():
        if name in user.servers or name in user.unusable:
            where = name if not server.workspace else render_path(server.under)
            warnings.append(ConfigProblem(server.file, server.lines[()], where, _is_shadowed(user, name)))
    for name in project.unusable:
        if name in user.servers:
            text = f"{_is_shadowed(user, name)}, and cannot be run as it is written"
            warnings.append(ConfigProblem(project.file, 1, name, text))
    return warnings


def _is_shadowed(user: Config, name: ServerName) -> str:
    file = user.servers[name].file if name in user.servers else user.file
    return f"takes the place of your server of this name in {file}"


def least_instances(servers: Mapping[ServerName, ServerConfig]) -> int:
    """The number of instances that must always run."""
    return sum(each.policy.min_instances for each in servers.values() if not each.disabled)


def cap_problem(merged: Config, file: str) -> ConfigProblem | None:
    """The problem if the instances that must always run exceed `max_instances` (rule 14); None if they
    fit.
    """
    least = least_instances(merged.servers)
    if least <= merged.max_instances:
        return None
    why = f"the pool.min of its servers and yours add up to {least} instances, more than your max_instances"
    return ConfigProblem(file, 1, "", f"{why} ({merged.max_instances}); raise that or lower a pool.min")
