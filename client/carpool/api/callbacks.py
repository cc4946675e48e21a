"""The callbacks: they answer the servers' questions to this agent and take news from outside any call.

Owns which of MCP's client features are declared, by the callbacks that are there, and what each question is
answered with. A callback may be a function or a coroutine function. One that raises answers the server with
an error that says no more than that; the exception goes to the log.

Source: MCP 2025-11-25, client/sampling, client/elicitation, client/roots. Refuses to know sockets and ids.
"""

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from carpool.api.results import Json

log = logging.getLogger("carpool.client")

T = TypeVar("T")
Ask = Callable[[Json], Json | Awaitable[Json | None] | None]
"""Gets the params of a server's request and gives its result; None declines."""
Tell = Callable[..., object]

INTERNAL_ERROR: Final = -32603
METHOD_NOT_FOUND: Final = -32601
USER_REJECTED: Final = -1
"""MCP 2025-11-25, client/sampling, "Error Handling"."""


class AskedError(Exception):
    """A callback raises it to answer the server with this error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Callbacks(Struct, frozen=True, kw_only=True):
    """The callbacks of this agent."""

    on_sampling: Ask | None = None
    on_elicitation: Ask | None = None
    roots: tuple[str, ...] | None = None
    """The URIs of its roots; None if it has none."""
    on_tools_changed: Tell | None = None
    on_log: Tell | None = None

    def capabilities(self) -> Json:
        """Return the capabilities that `initialize` declares."""
        found: Json = {}
        if self.on_sampling is not None:
            found["sampling"] = {}
        if self.on_elicitation is not None:
            found["elicitation"] = {"form": {}, "url": {}}
        if self.roots is not None:
            found["roots"] = {}
        return found

    async def answer(self, method: str, params: Json) -> bytes:
        """Return the result of a server's request, as JSON. Raises `AskedError`."""
        match method:
            case "ping":
                return b"{}"
            case "roots/list" if self.roots is not None:
                return msgspec.json.encode({"roots": [{"uri": uri} for uri in self.roots]})
            case "sampling/createMessage" if self.on_sampling is not None:
                found = await _call(self.on_sampling, params)
                if found is None:
                    raise AskedError(USER_REJECTED, "The agent declined to sample.")
                return found
            case "elicitation/create" if self.on_elicitation is not None:
                return await _call(self.on_elicitation, params) or b'{"action":"decline"}'
            case _:
                raise AskedError(METHOD_NOT_FOUND, "This agent does not answer that.")

    async def hear(self, method: str, params: Json) -> None:
        """Handle a notification that belongs to no call."""
        try:
            if method == "notifications/tools/list_changed" and self.on_tools_changed is not None:
                await settle(self.on_tools_changed())
            elif method == "notifications/message" and self.on_log is not None:
                await settle(self.on_log(params))
        except Exception:  # the callback is the user's: what it does wrong must not end the session
            log.exception("the callback for %s failed", method)


def as_uris(roots: Sequence[str | os.PathLike[str]] | None) -> tuple[str, ...] | None:
    """Return directories and URIs as URIs."""
    if roots is None:
        return None
    return tuple(
        each if isinstance(each, str) and "://" in each else Path(os.path.abspath(each)).as_uri()
        for each in roots
    )


async def settle(found: T | Awaitable[T]) -> T:
    """Return what a callback gave, awaited if it is a coroutine."""
    return await found if inspect.isawaitable(found) else found


async def _call(ask: Ask, params: Json) -> bytes | None:
    """Call a callback and return its result as JSON, which may be what JSON cannot carry."""
    try:
        found = await settle(ask(params))
        return None if found is None else msgspec.json.encode(found)
    except AskedError:
        raise
    except Exception:
        log.exception("a callback that answers servers failed")
        raise AskedError(INTERNAL_ERROR, "The agent failed to answer.") from None
