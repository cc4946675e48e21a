"""Rows about workspaces for `status`.

Owns their keys (docs/json.md). Decides nothing about the configuration in force. Knows nothing of: sessions,
sources.
"""

from collections.abc import Iterable

from carpool_broker.config.workspaces import Project
from carpool_protocol.config.reading.merge import cap_problem, merge_configs, shadowed
from carpool_protocol.config.reading.workspaces import root_of
from carpool_protocol.config.schema.model import Config


def named_workspace_rows(config: Config, home: str) -> list[dict[str, object]]:
    """Rows for the workspaces of the user's file, in its order."""
    return [
        {
            "name": name,
            "root": root_of(each, home),
            "file": each.file,
            "trust": "own",
            "servers": list(each.servers),
            "problems": [],
            "warnings": [over.render() for over in shadowed(config, each)],
        }
        for name, each in config.workspaces.items()
    ]


def project_rows(config: Config, projects: Iterable[Project]) -> list[dict[str, object]]:
    """Rows for workspaces with a project file."""
    found: list[dict[str, object]] = []
    for project in projects:
        root, file = project.workspace.root, project.workspace.file
        name = project.name
        user = merge_configs(config, config.workspaces[name]) if name in config.workspaces else config
        over = project.config
        too_many = cap_problem(user if over is None else merge_configs(user, over), file)
        found.append(
            {
                "name": name,
                "root": root,
                "file": file,
                "trust": project.trust if project.holds_servers() else "nothing",
                "servers": [] if over is None else [*over.servers, *over.unusable],
                "problems": [*project.problems, *([too_many.render()] if too_many is not None else [])],
                "warnings": [
                    *project.notes(),
                    *(each.render() for each in ([] if over is None else shadowed(user, over))),
                ],
            }
        )
    return found
