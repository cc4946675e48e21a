"""Tools in the list formats of model APIs, and the names that models then say back into the tools' own.

Owns the table of names in both directions and the shape of each list. Sources: the package openai 3.54,
`FunctionDefinition` for chat completions (a name has at most 64 of A-Z, a-z, 0-9, underscore and dash) and
`FunctionTool` for the Responses API, where `strict` must be said (left out it was true); anthropic 2.12,
`ToolParam` (names match `^[a-zA-Z0-9_-]{1,64}$`: Messages API, "Define tools").

Invariants: shown names are legal and distinct, whatever the list; a name depends on no other tool unless two
fall on one (the rules are those of docs/names.md).

Knows nothing of: how a model is asked, who runs a call.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from carpool.adapters.arguments import with_legal_keys, without_nulls
from carpool.adapters.read_tools import ToolListError
from carpool.adapters.schema import as_object
from carpool.adapters.strict_schema import NotStrictError, strict
from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_name_resolver import NoSuchName, ResolvedName, Resolver, qualify_all

Json = dict[str, Any]

_NOBODY = ServerName("")
"""Names of a list are whole names already: nothing is put in front."""


class _Form(NamedTuple):
    """One tool's parameters as models are shown them."""

    parameters: Json
    keys: dict[str, str]
    """The own name of each parameter that is shown by another name, by the name shown."""
    lost: str


class ListedTool(Protocol):
    """A tool of the Python client."""

    def as_mcp(self) -> Mapping[str, Any]:
        """As in the answer to `tools/list`."""
        ...


class UnknownToolError(LookupError):
    """A model has said a name that is not in its list; the text is for the model."""


class Toolbox:
    """A list of tools as `tools/list` gives it (`name`, `description`, `inputSchema`), for model APIs.

    Also takes tools of the Python client. Of two that have the same name the first counts: carpool's lists
    have no such two. Raises `ToolListError` for a tool without a name.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any] | ListedTool]) -> None:
        self._tools: dict[str, Mapping[str, Any]] = {}
        for at, tool in enumerate(tools):
            found = tool if isinstance(tool, Mapping) else tool.as_mcp()
            name = found.get("name")
            if not isinstance(name, str):
                raise ToolListError(f"tool {at} of the list has no name")
            self._tools.setdefault(name, found)
        self._forms: dict[str, _Form] = {}
        self._shown = qualify_all(((_NOBODY, name) for name in self._tools), {_NOBODY: ""})
        self._resolver = Resolver(self._shown)

    @property
    def names(self) -> dict[str, str]:
        """The tools' own names and, for each, the one that models are shown."""
        return {own: shown for (_, own), shown in self._shown.items()}

    def openai(self, *, strict: bool = False, description_chars: int | None = None) -> list[Json]:
        """`tools` for chat completions: `{"type": "function", "function": {…}}` each.

        `strict`: the strict form for each tool that has one (`not_strict` names the others).
        `description_chars` cuts longer descriptions: some models and hosts refuse more than 1024.
        """
        return [
            {"type": "function", "function": self._function(name, description_chars, with_strict=strict)}
            for name in self._tools
        ]

    def openai_responses(self, *, strict: bool = False, description_chars: int | None = None) -> list[Json]:
        """`tools` for the Responses API: `{"type": "function", "name", …}` each, `strict` always said."""
        return [
            {
                "type": "function",
                "strict": False,
                **self._function(name, description_chars, with_strict=strict),
            }
            for name in self._tools
        ]

    def anthropic(self, *, description_chars: int | None = None) -> list[Json]:
        """`tools` for the Messages API: `{"name", "description", "input_schema"}` each."""
        found = []
        for name in self._tools:
            about = self._function(name, description_chars, with_strict=False)
            about["input_schema"] = about.pop("parameters")
            found.append(about)
        return found

    def not_strict(self) -> dict[str, str]:
        """The tools' own names of those that have no strict form, and why."""
        reasons = {}
        for name in self._tools:
            try:
                strict(self._form(name).parameters)
            except NotStrictError as error:
                reasons[name] = str(error)
        return reasons

    def original(self, name: str) -> str:
        """The tool's own name for one that models are shown. Raises `UnknownToolError`."""
        found = self._resolver.resolve(name)
        if isinstance(found, ResolvedName):
            return found.tool
        alike = found.suggestions if isinstance(found, NoSuchName) else found.candidates
        more = f" Did you mean {' or '.join(alike)}?" if alike else ""
        raise UnknownToolError(f"There is no tool of this name in the list.{more} Nothing was called.")

    def arguments(self, name: str, arguments: Mapping[str, Any]) -> Json:
        """Return the arguments that a model wrote, in the form of the tool's own schema. `name`: as shown.

        Parameters that were shown by another name have their own again; `null` that means "left out" is left
        out. Raises `UnknownToolError`.
        """
        own = self.original(name)
        keys = self._form(own).keys
        said = {keys.get(key, key): value for key, value in arguments.items()}
        return without_nulls(self._tools[own].get("inputSchema"), said)

    def _form(self, name: str) -> _Form:
        if name not in self._forms:
            schema, lost = as_object(self._tools[name].get("inputSchema"))
            self._forms[name] = _Form(*with_legal_keys(schema), lost)
        return self._forms[name]

    def _function(self, name: str, description_chars: int | None, *, with_strict: bool) -> Json:
        tool = self._tools[name]
        parameters, _, lost = self._form(name)
        said = tool.get("description") or tool.get("title")
        description = said if isinstance(said, str) else ""
        if lost:
            description = f"{description}\n\n{lost}".lstrip()
        if description_chars is not None and len(description) > description_chars:
            description = description[: max(0, description_chars - 1)] + "…"
        about: Json = {"name": self._shown[_NOBODY, name]}
        if description:
            about["description"] = description
        about["parameters"] = parameters
        if with_strict:
            with suppress(NotStrictError):  # then as it is: `not_strict` says why
                about |= {"parameters": strict(parameters), "strict": True}
        return about
