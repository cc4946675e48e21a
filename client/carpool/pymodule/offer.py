"""A function as a tool of the official SDK.

Owns how a function becomes one: schema and description (the SDK's, from annotations and docstring), what is
done with a function that no schema can be made of, and what becomes of an exception: the agent gets its kind
and text as the tool's own error, stderr gets the traceback.

Knows nothing of: modules, which functions are offered, transports.
"""

import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.context_injection import find_context_parameter
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, func_metadata
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from carpool.pymodule.choose import Function, without_types
from carpool.pymodule.results import as_content, returns_bytes

THREADS = 256
"""Calls of functions that are no coroutines at once; as many as `max_in_flight` lets through by itself."""
_limiter: RunVar[CapacityLimiter] = RunVar("carpool threads")
TAGS, VERSION = "carpool/tags", "carpool/version"
"""Keys of a tool's `_meta`."""


class CannotOfferError(Exception):
    """No tool can be made of the function. The text says why."""


class _Anything(ArgModelBase):
    """Arguments that nothing is known of."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def tool_of(name: str, function: Function, *, tags: tuple[str, ...] = ()) -> Tool:
    """The tool. A parameter without a type makes it take any arguments. Raises `CannotOfferError`."""
    try:
        returned = inspect.signature(function, eval_str=True).return_annotation
        description, meta = inspect.cleandoc(function.__doc__ or ""), _meta(function, tags)
        # bytes go as what they are, not as text in a structure.
        structured = False if returns_bytes(returned) else None
        if without_types(function):
            tool = _of_anything(name, function, structured)
        else:
            tool = Tool.from_function(function, name=name, structured_output=structured)
    except Exception as error:  # noqa: BLE001 - whatever pydantic thinks of somebody's annotations
        raise CannotOfferError(f"{type(error).__name__}: {error}".partition("\n")[0]) from None
    tool.description, tool.meta = description, meta
    tool.fn, tool.is_async = _guarded(name, function, is_async=tool.is_async), True
    return tool


def _of_anything(name: str, function: Function, structured: bool | None) -> Tool:
    context = find_context_parameter(function)
    # The result's schema is made as ever.
    metadata = func_metadata(
        function, skip_names=list(inspect.signature(function).parameters), structured_output=structured
    ).model_copy(update={"arg_model": _Anything})
    return Tool(
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


def _guarded(name: str, function: Function, *, is_async: bool) -> Function:
    """The function as it is called: by the names of its parameters, in a thread unless it is a coroutine
    function, its exceptions told.
    """
    signature = inspect.signature(function)

    async def call(**arguments: Any) -> Any:
        args, kwargs = _bound(signature, arguments)
        if is_async:
            with _told():
                return as_content(name, await function(*args, **kwargs))

        def run() -> Any:
            with _told():
                return as_content(name, function(*args, **kwargs))

        return await to_thread.run_sync(run, limiter=_threads())

    return call


def _threads() -> CapacityLimiter:
    """Not the default ones: stdin and stdout are read and written in those, and must never wait for calls."""
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(made := CapacityLimiter(THREADS))
        return made


def _bound(
    signature: inspect.Signature, arguments: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in their places. Those of a function without types are looked at nowhere else."""
    rest = dict(arguments)
    placed = [
        rest.pop(each.name)
        for each in signature.parameters.values()
        if each.kind is each.POSITIONAL_ONLY and each.name in rest
    ]
    try:
        bound = signature.bind(*placed, **rest)
    except TypeError as error:
        raise ToolError(str(error)) from None
    return bound.args, bound.kwargs


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ToolError, ResourceError, MCPError):
        raise
    except (Exception, SystemExit) as error:
        # Whoever wrote the function wants the agent to read this; the SDK alone would keep it.
        traceback.print_exception(error)
        text = str(error)
        raise ToolError(f"{type(error).__name__}: {text}" if text else type(error).__name__) from error
