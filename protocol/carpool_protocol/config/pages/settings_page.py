"""`python -m carpool_protocol.config.pages.settings_page` prints `docs/settings.md`.

Owns the text around the tables of settings. A test compares the page with the file.
"""

import json
import sys

from msgspec import UNSET

from carpool_protocol.config.schema.environment import KEPT, VOLATILE
from carpool_protocol.config.schema.settings import (
    FILE_SETTINGS,
    HOOK_SETTINGS,
    PROFILE_SETTINGS,
    SERVER_SETTINGS,
    WORKSPACE_SETTINGS,
    MiB,
    Setting,
)

_KINDS = {
    "text": "text",
    "template": "text with `${VAR}`",
    "switch": "true or false",
    "count": "whole number",
    "seconds": "seconds",
    "fraction": "number from 0 to 1",
    "texts": "list of texts",
    "templates": "list of texts with `${VAR}`",
    "template map": "object of texts with `${VAR}`",
    "seconds map": "object of seconds",
    "token map": "object of hashes, or of `{hash, profile, operator, expires, workspaces}`; or false",
    "url": "URL with `${VAR}`",
    "secret": "text with `${VAR}`",
    "header map": "object of texts with `${VAR}`",
}

_HEAD = """\
# Settings

<!-- Made by `python -m carpool_protocol.config.pages.settings_page`; change `schema/settings.py`. -->

One file holds all settings: the one named with `--config`, else `$CARPOOL_CONFIG`, else
`carpool/carpool.json` in `$XDG_CONFIG_HOME` (`~/.config`). It is JSON; `//` and `/* */` comments and
trailing commas are allowed. An unknown key is an error; a key of a server that concerns only another
program (`autoApprove`) gets a warning. Carpool also reads other programs' files and shapes:
[shapes.md](shapes.md). `carpool check` shows the value of every setting and where it comes from. `carpool
schema` prints a JSON Schema for editors. A project's own file is laid over this one:
[workspaces.md](workspaces.md). [files.md](files.md) lists the places of state, logs and sockets, and the
variables that change them.

```jsonc
{
  "mcpServers": {
    "time": { "command": "uvx", "args": ["mcp-server-time"] },
    "github": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-github"],
      "env": { "GITHUB_TOKEN": "${GITHUB_TOKEN}" },
      "pool": { "max": 4 }, // a dot in the tables below is an object: pool.max
    },
  },
}
```
"""

_WORKSPACE = """\
## A workspace

Under `"workspaces": { NAME: { … } }`; NAME follows the rules for names of servers. Its `mcpServers` replace
those of the file with the same names; an entry may be just `{ "disabled": true }`
([workspaces.md](workspaces.md)). Other keys:

"""

_PROFILE = """\
## A profile

Under `"profiles": { NAME: { … } }`, in the user's own file only; NAME follows the rules for names of servers
([profiles.md](profiles.md)). The limits hold for one session, or for all sessions of one bearer token
together.

"""

_HOOK = """\
## A hook

In the list `"hooks": [ { … } ]`, in the user's own file only ([hooks.md](hooks.md)). Hooks run in the order
of the list.

"""

_TEMPLATES = """\
## `${VAR}`

| written | becomes |
|---|---|
| `${VAR}` | the variable; if it is not set, this one server is `unset` and the others run |
| `${VAR:-default}` | `default` if the variable is not set or empty |
| `${workspace}` | the workspace directory of the agent's session |
| `${cwd}` | the directory the agent runs in; the root of its workspace if the agent runs outside of it |
| `$${` | `${` itself |

`"${VAR}"` may also stand in place of a number or a switch, except for `pool.min` and settings of the file as
a whole. Values come from the agent's own environment, else from the `env_file`. Carpool asks agents only for
the names that the configuration uses, and keeps their values in memory. Two agents with different values
never share an instance.

A server of your own file with `"auto_connect": true` also gets values from the environment of an explicit
`carpool up` or `carpool restart --all` (a start by `carpool service install` is one). They rank after the
agent's own and before the `env_file`. Carpool takes exactly the names that such servers use at that start,
keeps the values in memory (also when a broker dies), and gives them to no other server. Agents without the
variable share the server that was connected this way. A carpool that an agent has started, also after the
launcher was killed, takes no such values.
"""

_ENVIRONMENT = """\
## The environment of a server

A configured server gets its `env` and these variables of the environment in which carpool was started:
"""

_SEARCH_PATH = """\
`PATH` begins with the directories of your login shell, in its order, followed by those of the `PATH` that
carpool was started with. Directories that are not absolute are left out, and of those that carpool was
started with also the ones in a project ([files.md](files.md#variables-and-projects)). What the login shell
says is your own, also in a git clone: `~/.nvm`, `~/.pyenv`, `~/.rbenv`, `~/.asdf`, `/opt/homebrew`.

carpool runs the login shell once, beside its own start: `SHELL`, else that of the account, as
`SHELL -i -l -c …`, in your home directory, with only `HOME`, `USER`, `LOGNAME` and `LANG` of its own
environment and `TERM=dumb`, for 5 s at most. Only the first start of a server waits for it. Carpool asks
again when it starts, and at `carpool start SERVER` and `carpool restart SERVER`. If the shell does not
answer, a line in `carpool logs --daemon` and in `carpool status` says so; an answer within a minute counts
from then on. `carpool status` also shows the directories.

An `"env": {"PATH": …}` of a server replaces all of this. With `"login_shell": false` carpool does not run the
shell.
"""

_VOLATILE = """\
The server of `carpool run` gets the whole environment of its caller. Two callers share it if command,
directory and environment are equal. The comparison ignores these names:
"""


def page() -> str:
    """The whole page as Markdown."""
    kept = "\n".join(f"- {why}: {_names(patterns)}" for why, patterns in KEPT)
    parts = [
        _HEAD,
        "## The file as a whole\n\nBeside `mcpServers`, `workspaces`, `profiles` and `hooks`:\n\n"
        + _table(FILE_SETTINGS),
        _WORKSPACE + _table(WORKSPACE_SETTINGS),
        '## One server\n\nUnder `"mcpServers": { NAME: { … } }`. NAME is letters, digits, hyphens and single '
        "underscores.\n\n" + _table(SERVER_SETTINGS),
        _PROFILE + _table(PROFILE_SETTINGS),
        _HOOK + _table(HOOK_SETTINGS),
        _TEMPLATES,
        _ENVIRONMENT + "\n" + kept + "\n",
        _SEARCH_PATH,
        _VOLATILE + "\n" + _names(VOLATILE) + ".\n",
    ]
    return "\n".join(parts)


def _table(settings: tuple[Setting, ...]) -> str:
    rows = [
        f"| `{setting.key}` | {_kind(setting)} | {_default(setting)} | {setting.text} |\n"
        for setting in settings
    ]
    return "| key | kind | default | what it does |\n|---|---|---|---|\n" + "".join(rows)


def _kind(setting: Setting) -> str:
    if setting.choices:
        return " or ".join(f'`"{choice}"`' for choice in setting.choices)
    return _KINDS[setting.kind]


def _default(setting: Setting) -> str:
    if setting.default is UNSET:
        return "required"
    if setting.kind.endswith("map"):
        return "`{}`"
    if setting.default is None:
        return "none"
    default = setting.default
    if setting.unit == "bytes" and isinstance(default, int):
        return f"`{default}` bytes ({default // MiB} MiB)"
    if isinstance(default, float):
        default = int(default) if default.is_integer() else default
    return f"`{json.dumps(default)}`" + (f" {setting.unit}" if setting.unit else "")


def _names(patterns: tuple[str, ...]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


if __name__ == "__main__":
    sys.stdout.write(page())
