"""Findings of `carpool check` about names: names that are cut, with their bound, and unused prefixes.

Owns the words for both. The tools of servers are known from the carpool that runs here, if one does. Knows
nothing of: terminals, how the files were read, the daemon.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.problems import ConfigProblem, render_path
from carpool_protocol.wire.tool_name_resolver import NamePrefixes, legalise, qualify

Facts = dict[str, Any]

PREFIXED_CHARS: Final = 50
"""The bound for agents in programs that put a prefix before names: of 64, Claude Code needs 14 characters
for `mcp__carpool__`.
"""
_NAMED = 5


def shortened(tools: Iterable[Facts], config: Config) -> list[Facts]:
    """Return `{server, tool, name, length}` for each tool whose name is cut to that length.

    The bounds are that of the file, and that of agents in programs with a prefix. The longest bound comes
    first.
    """
    known = [(each["server"], each["tool"]) for each in tools]
    found: list[Facts] = []
    for most in sorted({config.tool_name_length, PREFIXED_CHARS}, reverse=True):
        for server, tool in known:
            written = config.servers.get(server)
            prefix = written.tools_prefix if written is not None else None
            head = "" if prefix == "" else (prefix or server) + config.separator
            if len(legalise(head + tool)) > most:
                name = qualify(server, tool, config.separator, prefix, most=most)
                found.append({"server": server, "tool": tool, "name": name, "length": most})
    return found


def name_lines(found: Iterable[Facts]) -> list[str]:
    """Return the cut names as text for people, one line for each bound."""
    by_length: dict[int, list[str]] = {}
    for each in found:
        by_length.setdefault(each["length"], []).append(each["name"])
    said: list[str] = []
    for length, names in by_length.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        whose = f" (`carpool connect --tool-name-length {length}`)" if length == PREFIXED_CHARS else ""
        counted = "1 name is" if len(names) == 1 else f"{len(names)} names are"
        said.append(f"{counted} cut to {length} characters{whose}: {', '.join(names[:_NAMED])}{more}")
    return said


def unused_prefixes(config: Config) -> list[str]:
    """Return a warning for each `tools_prefix` that reads as a name of another server."""
    return [problem.render() for problem in _unused(config)]


def _unused(config: Config) -> Iterator[ConfigProblem]:
    heads = NamePrefixes({name: each.tools_prefix for name, each in config.servers.items()}, config.separator)
    for name, server in config.servers.items():
        if server.tools_prefix and not heads.may_mean(server.tools_prefix + config.separator, name):
            line = server.lines.get(("tools_prefix",), server.lines[()])
            where = render_path((*server.under, "tools_prefix"))
            why = "it reads as a name of another server, so the name of this server is used instead"
            yield ConfigProblem(server.file, line, where, why)
