"""What somebody is shown who is asked whether a project's servers may run.

Owns the question's facts and their page: what is run and where, which names of the user's own it takes, which
of his variables and profiles it gets. Arguments are shown as written, before expansion; of environments only
the names. Invariant: nothing in the project adds a line to the page or is there and not to be seen on it.

Knows nothing of: who asks, what is done with the answer.
"""

import re
from typing import Any
from unicodedata import bidirectional

from carpool import display
from carpool_protocol.capability import capability
from carpool_protocol.config.expand import PLACES, references
from carpool_protocol.config.load import Layer
from carpool_protocol.config.merge import shadowed
from carpool_protocol.config.model import Config, ServerConfig
from carpool_protocol.config.project import Workspace
from carpool_protocol.config.trust import Trust

Facts = dict[str, Any]
_HERE = "${workspace}"
"""Where a project's servers run unless its file says otherwise."""
_DECIDING = re.compile(
    r"PATH|HOME|SHELL|ENV|BASH_ENV|(LD|DYLD|XDG)_\w+|PYTHON[A-Z]+|PERL5\w+|RUBY(LIB|OPT)|(_|JDK_)?JAVA_(TOOL_)?OPTIONS"
    r"|NODE_(OPTIONS|PATH|EXTRA_CA_CERTS|TLS_REJECT_UNAUTHORIZED)|(NPM_CONFIG|UV|PIP)_\w+"
    r"|GIT_(SSH|CONFIG|EXEC_PATH|ASKPASS|PROXY_COMMAND|TEMPLATE_DIR|EDITOR|PAGER|EXTERNAL_DIFF)\w*"
    r"|GIT_(DIR|WORK_TREE)|SSH_ASKPASS|VISUAL|EDITOR|PAGER|BROWSER|ZDOTDIR|GCONV_PATH|CLASSPATH"
    r"|LUA_(C?PATH|INIT)\w*|PHPRC|PHP_INI_SCAN_DIR|GEM_(HOME|PATH)|BUNDLE_(GEMFILE|PATH|BIN)|GO(FLAGS|PROXY|PATH|ROOT)"
    r"|DENO_(DIR|CERT|INSTALL_ROOT)|BUN_(INSTALL|OPTIONS)|(YARN|COREPACK|CARGO)_\w+|RUSTC_WRAPPER|DOTNET_STARTUP_HOOKS"
    r"|OPENSSL_(CONF|ENGINES|MODULES)|DOCKER_(HOST|CONFIG|CONTEXT)|KUBECONFIG|AWS_(CONFIG_FILE|CA_BUNDLE)"
    r"|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|SSLKEYLOGFILE|(REQUESTS|CURL)_CA_BUNDLE",
    re.IGNORECASE,
)
"""Variables by which a program that is named is another one, or is made to run or fetch something else. Their
values are not shown, as no variable's is.
"""
_BACKWARDS = {"R", "AL", "AN"}


def described(workspace: Workspace, layer: Layer, config: Config, now: Trust, user: Config | None) -> Facts:
    """What the question is about. `user`: what lies under the project's file; None: that cannot be read."""
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
                "uses": sorted(
                    {n for _, text in server.login_templates() for n in references(text)} - PLACES
                ),
                "cwd": server.cwd,
                "prefix": server.tools_prefix,
                "disabled": server.disabled,
            }
            for name, server in config.servers.items()
        ],
        "unusable": dict(config.unusable),
        "replaces": [each.where for each in shadowed(user, config)] if user is not None else [],
        "covered": {} if user is None else covered(user, config),
        "shadowed": list(workspace.shadowed),
        "warnings": [each.render() for each in layer.loaded.warnings],
    }


def covered(user: Config, project: Config) -> dict[str, list[str]]:
    """Which of the user's profiles let their agents use anything of each of these servers, by its name or its
    tags. Those that are about servers of any name are not counted.
    """
    found: dict[str, list[str]] = {}
    for name, server in project.servers.items():
        for profile in user.profiles.values():
            granted = (it for it in map(capability, profile.allow) if not it.is_general)
            if any(it.is_of(name, server.tags) for it in granted):
                found.setdefault(name, []).append(profile.name)
    return found


def _command(server: ServerConfig) -> list[str]:
    """What is run, as it is written."""
    if server.url is not None:
        return [server.transport or "url", server.url, *(f"{name}:" for name in server.headers)]
    if server.python is not None:
        return [server.interpreter or "python", "-m", "carpool.pymodule", server.python]
    return [server.command, *server.args] if server.command is not None else []


def page(facts: Facts) -> str:
    """The same for people."""
    file, root = display.spelled(facts["file"]), display.spelled(facts["workspace"])
    said = [f"{file} would run, in {root}:"]
    if facts["trust"] == "changed":
        said[0] = f"{file} has changed since you trusted it. It would run, in {root}:"
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
    said.append(
        display.columns(["SERVER", "COMMAND", "VARIABLES"], rows) or "nothing that can be run as it is"
    )
    notes = [f"{each['name']} runs in {each['cwd']}" for each in facts["servers"] if each["cwd"] != _HERE]
    notes += [
        f"{each['name']} is given your {', '.join(each['uses'])}" for each in facts["servers"] if each["uses"]
    ]
    notes += [
        f"{each['name']} has another {', '.join(deciding)}: look at the file, for that decides what is run"
        for each in facts["servers"]
        if (deciding := list(filter(_DECIDING.fullmatch, each["env"])))
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
