"""A function as a tool of the official SDK.

Owns how a function becomes one: schema and description (the SDK's, from annotations and docstring), and what
is done with a function that no schema can be made of.

Knows nothing of: how a function is called, modules, which functions are offered, transports.
"""

import inspect
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.context_injection import find_context_parameter
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, func_metadata
from pydantic import ConfigDict, ValidationError

from carpool.pymodule.call import (
    as_content,
    call_wrapper,
    exception_text,
    print_failure,
    returns_bytes,
    validation_text,
)
from carpool.pymodule.function_choice import Function, without_types

TAGS, VERSION = "carpool/tags", "carpool/version"
"""Keys of a tool's `_meta`."""


class CannotOfferError(Exception):
    """Raised if no tool can be made of a function. The text says why."""


class _Anything(ArgModelBase):
    """Arguments that nothing is known of."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class _Tool(Tool):
    """The SDK's, but for its words: it says why a result cannot be written, and repeats no argument."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> Any:
        try:
            return await super().run(arguments, context, convert_result)
        except UnexpectedToolError as error:
            if error.__cause__ is None:
                raise
            print_failure(error.__cause__)
            raise ToolError(f"{error}: {exception_text(error.__cause__)}") from error.__cause__
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            # The SDK's text repeats the values of the arguments.
            raise ToolError(f"{self.name}: {validation_text(error.__cause__)}") from None


def tool_of(name: str, function: Function, *, tags: tuple[str, ...] = ()) -> Tool:
    """The tool. A parameter without a type makes it take any arguments. Raises `CannotOfferError`."""
    try:
        returned = inspect.signature(function, eval_str=True).return_annotation
        description, meta = inspect.cleandoc(function.__doc__ or ""), _meta(function, tags)
        # bytes go as what they are, not as text in a structure; of a generator its items are the result.
        plain = returns_bytes(returned) or _generates(function)
        try:
            tool = _tool(name, function, None if not plain else False)
        except Exception:  # noqa: BLE001 - of the return type, else it is raised again
            tool = _tool(name, function, False)
    except Exception as error:  # noqa: BLE001 - whatever pydantic thinks of somebody's annotations
        raise CannotOfferError(f"{type(error).__name__}: {error}".partition("\n")[0]) from None
    call = call_wrapper(function, is_async=tool.is_async)

    async def called(**arguments: Any) -> Any:
        return as_content(name, await call(**arguments))

    return tool.model_copy(update={"fn": called, "is_async": True, "description": description, "meta": meta})


def _tool(name: str, function: Function, structured: bool | None) -> Tool:
    if without_types(function):
        return _of_anything(name, function, structured)
    return _Tool.from_function(function, name=name, structured_output=structured)


def _generates(function: Function) -> bool:
    bare = inspect.unwrap(function)
    return inspect.isgeneratorfunction(bare) or inspect.isasyncgenfunction(bare)


def _of_anything(name: str, function: Function, structured: bool | None) -> Tool:
    context = find_context_parameter(function)
    # The result's schema is made as ever.
    metadata = func_metadata(
        function, skip_names=list(inspect.signature(function).parameters), structured_output=structured
    ).model_copy(update={"arg_model": _Anything})
    return _Tool(
        fn=function,
        name=name,
        title=None,
        description="",
        annotations=None,
        parameters={"type": "object"},
        fn_metadata=metadata,
        is_async=inspect.iscoroutinefunction(function),
        context_kwarg=context,
    )


def _meta(function: Function, tags: tuple[str, ...]) -> dict[str, Any] | None:
    """`__tags__` and `__version__` of the function, after the tags of its module."""
    all_tags = dict.fromkeys((*tags, *read_tags(function)))
    version = getattr(function, "__version__", None)
    meta = {TAGS: list(all_tags)} if all_tags else {}
    return ({**meta, VERSION: version} if isinstance(version, str) else meta) or None


def read_tags(owner: object) -> tuple[str, ...]:
    """The texts in `__tags__` of a module or a function."""
    found = getattr(owner, "__tags__", ())
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list | tuple) else ()
