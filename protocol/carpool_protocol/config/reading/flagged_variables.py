"""Environment variables of a server that may change what its command does.

Owns the list of harmless names. A variable that a configuration sets is flagged unless its name is on that
list: programs read thousands of variables, and any of them may name a library, a start-up file or another
host. A harmless name is flagged too if the command itself reads it (`sh -c 'exec $RUN_TOKEN'`).

Example: `PATH`, `JAVA_HOME` and `ANTHROPIC_BASE_URL` are flagged, `GITHUB_TOKEN` and `TZ` are not.

Knows nothing of: values, trust, the text of the trust question.
"""

import re
from typing import Final

from carpool_protocol.config.schema.model import Config, ServerConfig

_HARMLESS: Final = re.compile(
    r"TOKEN|API_KEY|PASSWORD"
    r"|[A-Z][A-Z0-9_]*_(TOKEN|API_?KEY|ACCESS_KEY(_ID)?|SECRET_(ACCESS_)?KEY|SECRET|PASSWORD|USERNAME)"
    r"|[A-Z][A-Z0-9_]*_(CLIENT|PROJECT|TEAM|ORG|ORGANIZATION|ACCOUNT|WORKSPACE)_ID|AWS_(PROFILE|(DEFAULT_)?REGION)"
    r"|TZ|LANG|LC_(ALL|COLLATE|CTYPE|MESSAGES|MONETARY|NUMERIC|TIME)|NO_COLOR|FORCE_COLOR|LOG_?LEVEL|NODE_ENV|CI"
)
"""Credentials and their owners; language, time zone, and the level of logs."""

_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_PROGRAM: Final = re.compile(r"[\s$`;|&<>()]")
"""Characters that show that a word of a command may be program text, which can read variables by name."""


def flagged(server: ServerConfig) -> list[str]:
    """Names in the `env` of this server that may change what its command does, in the order of the file."""
    words = [word for word in (server.command or "", *server.args) if _PROGRAM.search(word)]
    read = {name for word in words for name in _NAME.findall(word)}
    return [name for name in server.env if _HARMLESS.fullmatch(name) is None or name in read]


def all_flagged(config: Config) -> list[tuple[str, str]]:
    """The flagged variables of all servers as (server, variable), sorted."""
    return sorted((name, each) for name, server in config.servers.items() for each in flagged(server))
