"""The requests that reach the scripted model, in one form for all model APIs, and the answers to them.

Knows nothing of: the wire form of an API (`chat`, `responses`, `messages`, `gemini`), scripts, sockets.
"""

import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tests.programs.script import Json, ScriptedCall

_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class OfferedTool:
    """A tool that a program offers to the model. Codex alone groups tools in namespaces."""

    name: str
    description: str = ""
    schema: Json = field(default_factory=dict, hash=False)
    namespace: str = ""
    deferred: bool = False
    """It stands in the instructions alone, and is offered once the model has searched for it."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class ToolResult:
    """The result of one call as a program passes it to the model."""

    id: str
    text: str
    is_error: bool | None
    """None where the API has no field for it."""
    images: int
    raw: Json


@dataclass(frozen=True)
class RequestReading:
    """The part of a request that all APIs have in common."""

    tools: tuple[OfferedTool, ...]
    instructions: str
    results: tuple[ToolResult, ...]


@dataclass
class ModelRequest:
    """One request that reached the model."""

    at: float
    """`time.monotonic()` when the request was read in full."""
    api: str
    """"chat", "responses", "messages", "gemini"; "other" for lists of models, counts of tokens and so on."""
    method: str
    path: str
    headers: dict[str, str]
    body: Json
    tools: tuple[OfferedTool, ...] = ()
    instructions: str = ""
    """All text for the system, joined, with the descriptions of namespaces."""
    results: tuple[ToolResult, ...] = ()
    """The results of the calls that the model made in the turn before."""
    missing: tuple[ScriptedCall, ...] = ()
    """Calls of the script whose tool is not among `tools`."""


@dataclass(frozen=True)
class ToolCall:
    """A call of an offered tool, as the model answers it."""

    id: str
    tool: OfferedTool
    arguments: Json


@dataclass(frozen=True)
class Answer:
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ModelReply:
    """The body of an HTTP answer. Several chunks are a stream."""

    content_type: str
    chunks: tuple[bytes, ...]


class Api(Protocol):
    """The wire form of one model API."""

    def read(self, body: Json, issued: Set[str]) -> RequestReading:
        """Find tools, instructions and the results of the calls with the ids `issued`."""

    def reply(self, path: str, body: Json, answer: Answer) -> ModelReply:
        """Write the answer, as a stream if the request asks for one."""


def offers_tools(request: ModelRequest) -> bool:
    """A turn of an agent's loop offers tools; a request for a title or a summary does not."""
    return bool(request.tools)


def offered_name(tools: Iterable[OfferedTool], server: str, tool: str) -> OfferedTool | None:
    """Find the tool of a server, whatever a program puts before its name.

    `mcp__carpool__odd__read-file`, `carpool_odd__read_file` and `read_file` are all `read_file` of `odd`. The
    shortest name wins.
    """
    wanted = _normal(f"{server}_{tool}")
    named = [
        offered
        for offered in tools
        if (name := _normal(offered.full_name)) in (wanted, _normal(tool)) or name.endswith(f"_{wanted}")
    ]
    with_server = [offered for offered in named if _normal(offered.full_name) != _normal(tool)]
    return min(with_server or named, key=lambda offered: len(offered.full_name), default=None)


def text_of(content: Any) -> str:
    """Join the text parts of a content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part.get("text"), str))


def each_image(value: Any, is_image: Callable[[Json], bool]) -> int:
    """Count the images anywhere in a JSON value."""
    if isinstance(value, list):
        return sum(each_image(part, is_image) for part in value)
    if not isinstance(value, dict):
        return 0
    return 1 if is_image(value) else sum(each_image(part, is_image) for part in value.values())


def _normal(name: str) -> str:
    return _SEPARATORS.sub("_", name.lower()).strip("_")
