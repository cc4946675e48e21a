"""Tools that stand in the instructions by name and description until the model has searched for them.

Qwen Code writes `- "mcp__odd__pid": "the process"` into its system prompt, and offers the tool itself after
`tool_search {"query": "select:mcp__odd__pid"}`.

Knows nothing of: scripts, the wire form of an API.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from tests.programs.model.requests import OfferedTool
from tests.programs.script import Json

SEARCH: Final = "tool_search"
_HEADING: Final = "## Deferred Tools"
_LINE: Final = re.compile(r'^- ("(?:[^"\\]|\\.)*"): ("(?:[^"\\]|\\.)*")$', re.MULTILINE)


def deferred_tools(instructions: str, offered: Iterable[OfferedTool]) -> Iterator[OfferedTool]:
    """Find the tools of the last section of deferred tools that are not offered yet."""
    names = {tool.name for tool in offered}
    _, found, section = instructions.rpartition(_HEADING)
    if not found or SEARCH not in names:
        return
    for name, description in _LINE.findall(section):
        tool = OfferedTool(json.loads(name), json.loads(description), deferred=True)
        if tool.name not in names:
            yield tool


def search_for(tool: OfferedTool) -> tuple[OfferedTool, Json]:
    """The call that makes this tool an offered one."""
    return OfferedTool(SEARCH), {"query": f"select:{tool.full_name}"}
