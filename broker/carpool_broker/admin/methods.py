"""The table of the `carpool/…` methods: name → who answers.

Owns how a method is found, how its params are read, and how a refusal is told. The other files of this folder
put their methods into the table. Operators' sessions may use all of them, others only what asks about
their own view (`inbound.LOOKS`): an agent that sends another one gets "method not found" like for any unknown
method.

Knows nothing of: what a method does, sockets, how an error is worded on the wire (`faults`).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from carpool_protocol.ids import RawJson, SessionId

P = TypeVar("P", bound=Struct)
Handler = Callable[[SessionId, RawJson], object]
"""Gives a result that can be told as JSON, or one that is to be waited for."""


class ControlError(Exception):
    """The request cannot be served. `slug` is a fault of `faults`, `server` the one it is about."""

    def __init__(self, slug: str, detail: str, server: str = "") -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.server = server


class Methods:
    """All methods of one broker."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, method: str, params: type[P], handler: Callable[[SessionId, P], object]) -> None:
        """`handler` answers this method, with params of this type."""
        self._handlers[method] = lambda session, raw: handler(session, _read(raw, params))

    def add_plain(self, method: str, handler: Callable[[SessionId], object]) -> None:
        """`handler` answers this method, which has no params: whatever comes as such is passed over."""
        self._handlers[method] = lambda session, _: handler(session)

    async def answer(self, session: SessionId, method: str, params: RawJson) -> RawJson:
        """The result of one request. Raises `ControlError`."""
        handler = self._handlers.get(method)
        if handler is None:
            raise ControlError("unknown_method", "")
        result = handler(session, params)
        return RawJson(msgspec.json.encode(await result if isinstance(result, Awaitable) else result))


def _read(params: RawJson, kind: type[P]) -> P:
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ControlError("bad_params", f"{error}.") from None
