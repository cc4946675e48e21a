"""Calls the function of a tool, and turns its end or its return value into a result.

Owns where it runs (a coroutine function in the loop, any other in a thread), which argument goes to which
parameter, what is waited for or collected (an awaitable; a generator), and that no function ends more than
its own call, whatever it raises: it becomes the tool's own error, with its kind and text, and stderr gets the
traceback. A process that the function has forked ends where the function does. Bytes that a function returned
are content of their own, an image where they begin like one; every other result is the SDK's.

Knows nothing of: schemas, modules.
"""

import base64
import inspect
import os
import sys
import traceback
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from types import GeneratorType, UnionType
from typing import Any, Union, get_args, get_origin

from anyio import CapacityLimiter, current_effective_deadline, get_cancelled_exc_class, to_thread
from anyio.lowlevel import RunVar
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import BlobResourceContents, EmbeddedResource, ImageContent
from pydantic import ValidationError

from carpool.pymodule.function_choice import Function

_RULES_WITH_VALUES = {
    "value_error": "is refused by its validator",
    "assertion_error": "is refused by its validator",
    "union_tag_invalid": "fits none of the alternatives",
}
"""Kinds of pydantic's whose message repeats the value, or may."""
THREADS = 256
"""Calls of functions that are no coroutines at once; as many as `max_in_flight` lets through by itself."""
_limiter: RunVar[CapacityLimiter] = RunVar("carpool threads")


def call_wrapper(function: Function, *, is_async: bool) -> Function:
    """The function as it is called: by the names of its parameters, where it belongs, its exceptions told."""
    signature = inspect.signature(function)

    async def call(**arguments: Any) -> Any:
        args, kwargs = _bound(signature, arguments)

        def run() -> Any:
            with _told(in_loop=False):
                result = function(*args, **kwargs)
                return list(result) if isinstance(result, GeneratorType) else result

        with _told(in_loop=True):
            result = await function(*args, **kwargs) if is_async else await _in_thread(run)
            # Of a function that is no coroutine function, too: most decorators make one of one.
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, AsyncGenerator):
                result = [each async for each in result]
            return result

    return call


async def _in_thread(run: Function) -> Any:
    """Run a function in a thread of its own limit: reads of stdin and writes of stdout wait for no call."""
    try:
        limiter = _limiter.get()
    except LookupError:
        _limiter.set(limiter := CapacityLimiter(THREADS))
    return await to_thread.run_sync(run, limiter=limiter)


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
def _told(*, in_loop: bool) -> Iterator[None]:
    """Turn an exception of the function into a tool error that the agent can read: the SDK alone would
    withhold its text. This includes `BaseException`s, with which the SDK's task group would end all calls.
    """
    process = os.getpid()
    try:
        yield
    except (ToolError, ResourceError, MCPError):
        raise
    except BaseException as error:
        if os.getpid() != process:
            _leave(error)
        if in_loop and _from_outside(error):
            raise
        print_failure(error)
        raise ToolError(exception_text(error)) from error
    finally:
        if os.getpid() != process:
            _leave(None)


def exception_text(error: BaseException) -> str:
    """Kind and text of an exception."""
    try:
        text = validation_text(error) if isinstance(error, ValidationError) else str(error)
    except Exception:  # noqa: BLE001 - its own `__str__` raises
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def validation_text(error: ValidationError) -> str:
    """Parameters and rules, never a value: `n: Input should be a valid integer`.

    Of a nested place the parameter and positions are named, no keys: a mapping's are part of the value.
    """
    told: list[str] = []
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        parameter, *inner = each["loc"] or ("",)
        place = str(parameter) + "".join(f"[{at}]" if isinstance(at, int) else "[…]" for at in inner)
        rule = _RULES_WITH_VALUES.get(each["type"], each["msg"])
        told.append(f"{place}: {rule}" if place else rule)
    return "; ".join(dict.fromkeys(told))


def print_failure(error: BaseException) -> None:
    """Write the tracebacks of an exception and of its causes to stderr, the oldest first."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    for each in reversed(chain):
        trace = "".join(traceback.format_tb(each.__traceback__))
        print(f"Traceback (most recent call last):\n{trace}{exception_text(each)}", file=sys.stderr)


def _from_outside(error: BaseException) -> bool:
    """True if the call was cancelled, or its coroutine closed. Otherwise the function has raised this itself,
    as when it waits for a task that it has cancelled.
    """
    if isinstance(error, get_cancelled_exc_class()):
        return current_effective_deadline() == float("-inf")
    return isinstance(error, GeneratorExit)


def _leave(error: BaseException | None) -> None:
    """End a process that the function has forked: what follows is the parent's, its messages above all."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        print_failure(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


_PLAIN = "application/octet-stream"
_STARTS = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def returns_bytes(annotation: Any) -> bool:
    """True if this return annotation allows bytes: the tool then promises no structured result."""
    arms = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return bytes in arms


def as_content(name: str, result: Any) -> Any:
    """The result of the tool `name`, for the SDK."""
    if not isinstance(result, bytes):
        return result
    data, kind = base64.b64encode(result).decode(), _kind(result)
    if kind != _PLAIN:
        return ImageContent(type="image", data=data, mime_type=kind)
    contents = BlobResourceContents(uri=f"carpool:{name}", blob=data, mime_type=kind)
    return EmbeddedResource(type="resource", resource=contents)


def _kind(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _STARTS if data.startswith(start)), _PLAIN)
