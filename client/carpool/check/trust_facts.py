"""The facts that somebody sees who decides on trust in a project's servers.

Owns these facts and their page: the commands and their places, the names of the user's own that they
replace, and the user's variables and profiles that they get. Arguments are shown as written, before
expansion. Of environments only the names are shown; those that may change what a command does are marked
(`flagged_variables`). Invariant: nothing in the project adds a line to the page, and nothing on the page is
invisible. Knows nothing of: who asks, what is done with the answer.
"""

from typing import Any
from unicodedata import bidirectional

from carpool.terminal import display
from carpool_protocol.config.reading.flagged_variables import flagged
from carpool_protocol.config.reading.load import ConfigLayer
from carpool_protocol.config.reading.merge import shadowed
from carpool_protocol.config.reading.project import FoundWorkspace
from carpool_protocol.config.reading.trust import Trust
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.config.schema.expand import PLACE_NAMES, references
from carpool_protocol.config.schema.model import Config, ServerConfig

Facts = dict[str, Any]
_HERE = "${workspace}"
"""The directory of a project's servers, unless its file says otherwise."""
_BACKWARDS = {"R", "AL", "AN"}


def trust_facts(
    workspace: FoundWorkspace, layer: ConfigLayer, config: Config, now: Trust, user: Config | None
) -> Facts:
    """Return the facts of the question.

    `user`: the configuration under the project's file; None if it cannot be read.
    """
    return {
        "workspace": workspace.root,
        "file": workspace.file,
        "files": list(layer.files),
        "trust": now,
        "servers": [
            {
                "name": name,
                "command": _command(server),
                "env": list(server.env),
                "flagged": flagged(server),
                "uses": sorted(
                    {n for _, text in server.login_templates() for n in references(text)} - PLACE_NAMES
                ),
                "cwd": server.cwd,
                "prefix": server.tools_prefix,
                "disabled": server.disabled,
            }
            for name, server in config.servers.items()
        ],
        "unusable": dict(config.unusable),
        "replaces": [each.where for each in shadowed(user, config)] if user is not None else [],
        "covered": {} if user is None else covering_profiles(user, config),
        "shadowed": list(workspace.shadowed),
        "warnings": [each.render() for each in layer.loaded.warnings],
    }


def covering_profiles(user: Config, project: Config) -> dict[str, list[str]]:
    """Return, for each of these servers, the user's profiles that allow anything of it by its name or its
    tags.

    Patterns for servers of any name are not counted.
    """
    found: dict[str, list[str]] = {}
    for name, server in project.servers.items():
        for profile in user.profiles.values():
            granted = (it for it in map(capability, profile.allow) if not it.is_general)
            if any(it.is_of(name, server.tags) for it in granted):
                found.setdefault(name, []).append(profile.name)
    return found


def _command(server: ServerConfig) -> list[str]:
    """Return the command of a server as it is written."""
    if server.url is not None:
        return [server.transport or "url", server.url, *(f"{name}:" for name in server.headers)]
    if server.python is not None:
        return [server.interpreter or "python", "-m", "carpool.pymodule", server.python]
    return [server.command, *server.args] if server.command is not None else []


def page(facts: Facts) -> str:
    """Return the facts as text for people."""
    file, root = display.spelled(facts["file"]), display.spelled(facts["workspace"])
    said = [f"{file} would run, in {root}:"]
    if facts["trust"] == "changed":
        said[0] = (
            f"{file} has changed since you trusted it, or carpool now warns of more in it. "
            f"It would run, in {root}:"
        )
    elif facts["trust"] == "trusted":
        said[0] = f"{file} is trusted; and takes the place of a server that you had not. It runs, in {root}:"
    rows = [
        [
            each["name"],
            " ".join(map(_word, each["command"])) + (" (disabled)" if each["disabled"] else ""),
            display.spelled(", ".join(each["env"])) or "-",
        ]
        for each in facts["servers"]
    ]
    # What is trusted is shown whole, however wide the terminal is.
    table = display.columns(["SERVER", "COMMAND", "VARIABLES"], rows, whole=True)
    said.append(table or "nothing that can be run as it is")
    notes = [f"{each['name']} runs in {each['cwd']}" for each in facts["servers"] if each["cwd"] != _HERE]
    notes += [
        f"{each['name']} is given your {', '.join(each['uses'])}" for each in facts["servers"] if each["uses"]
    ]
    notes += [
        f"{each['name']} sets {', '.join(each['flagged'])}: look at the values in the file, "
        "they may change what its command does"
        for each in facts["servers"]
        if each["flagged"]
    ]
    notes += [
        f"{each['name']} has its tools called {each['prefix']}…"
        if each["prefix"]
        else f"{each['name']} has its tools called as it likes, without its name"
        for each in facts["servers"]
        if each["prefix"] is not None and each["prefix"] != each["name"]
    ]
    notes += [f"{each} belongs to it" for each in facts["files"][1:]]
    notes += [f"{name} takes the place of your own server of this name" for name in facts["replaces"]]
    notes += [
        f"agents with your profile {' or '.join(profiles)} may use {name}"
        for name, profiles in facts["covered"].items()
    ]
    notes += [f"{each} is not read: {facts['file']} shadows it" for each in facts["shadowed"]]
    notes += [*facts["unusable"].values(), *facts["warnings"]]
    said += ["\n".join(map(display.spelled, notes))] if notes else []
    return "\n\n".join(said)


def _word(text: str) -> str:
    plain = text and not set(text) & set(" \t\"'\\()")
    if any(bidirectional(char) in _BACKWARDS for char in text):  # its neighbours would be shown out of order
        return ascii(text)
    return display.spelled(text if plain else repr(text))
