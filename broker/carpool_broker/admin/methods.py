"""The table of `carpool/…` methods: from the name of a method to its handler.

Owns the lookup of a method, the decoding of its params, and the exception of a refusal. The other files of
this folder register their methods here. Sessions of operators may use all methods. Other sessions may use
only the queries about their own view (`inbound.LOOKS`); any other method is "method not found" to them.
Owns also the outcome of an act, which is a request that changes what runs, as its answer tells it.

Knows nothing of: the effect of a method, sockets, the form of an error on the wire (`fault_answers`), the
audit.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from carpool_protocol.ids import RawJson, SessionId

P = TypeVar("P", bound=Struct)
ALL_SERVERS = "*"
"""The target of an act on every server."""


class Act(NamedTuple):
    """An act of an operator: a verb of the command line, and what it is about."""

    verb: str
    targets: list[str]
    for_session: str = ""
    """The only session that it concerns; empty: all."""


EndAct = Callable[[str, list[str]], None]
"""Takes the outcome of an act, and the targets that failed."""
BeginAct = Callable[[SessionId, Act], EndAct]


class _Method(NamedTuple):
    """One method. `params` is None if those that are sent are ignored."""

    handler: Callable[[SessionId, Any], object]
    """Returns a value that can be encoded as JSON, or an awaitable of one."""
    params: type[Struct] | None
    act: Callable[[Any], Act | None]
    """Returns the act that a request with these params is; None if it changes nothing."""


class ControlError(Exception):
    """The request cannot be served. `slug`: a code of `faults.kinds`; `server`: the server it is about."""

    def __init__(self, slug: str, detail: str, server: str = "") -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.server = server


class Methods:
    """All methods of one broker. `begin_act` is called before an act."""

    def __init__(self, begin_act: BeginAct = lambda _session, _act: lambda _outcome, _failed: None) -> None:
        self._methods: dict[str, _Method] = {}
        self._begin_act = begin_act

    def add(
        self,
        method: str,
        params: type[P],
        handler: Callable[[SessionId, P], object],
        act: Callable[[P], Act | None] = lambda _: None,
    ) -> None:
        """Register `handler` for this method, with params of this type."""
        self._methods[method] = _Method(handler, params, act)

    def add_plain(self, method: str, handler: Callable[[SessionId], object], act: Act | None = None) -> None:
        """Register `handler` for this method without params; params that are sent are ignored."""
        self._methods[method] = _Method(lambda session, _: handler(session), None, lambda _: act)

    async def answer(self, session: SessionId, method: str, params: RawJson) -> RawJson:
        """The result of one request. Raises `ControlError`."""
        found = self._methods.get(method)
        if found is None:
            raise ControlError("unknown_method", "")
        decoded = None if found.params is None else _read(params, found.params)
        act = found.act(decoded)
        if act is None:
            result = await _result(found.handler(session, decoded))
        else:
            result = await _result_of_act(
                self._begin_act(session, act), lambda: found.handler(session, decoded)
            )
        return RawJson(msgspec.json.encode(result))


async def _result(result: object) -> object:
    return await result if isinstance(result, Awaitable) else result


async def _result_of_act(end: EndAct, handler: Callable[[], object]) -> object:
    """Run the handler of an act, and tell the outcome however it ends.

    It is unknown if the operator leaves before the answer or the broker stops: `Cancelled`, also in a group.
    """
    outcome, failed = "unknown", list[str]()
    try:
        result = await _result(handler())
        outcome, failed = outcome_of(result)
    except ControlError as error:
        outcome = error.slug
        raise
    finally:
        end(outcome, failed)
    return result


def outcome_of(result: Any) -> tuple[str, list[str]]:
    """Return the outcome that an answer tells, `done`, `partly` or `refused`, and the targets that failed."""
    if not isinstance(result, dict):
        return "done", []
    rows = result.get("results", [])
    failed = [row["server"] for row in rows if not row["ok"]]
    if failed:
        return ("partly" if len(failed) < len(rows) else "refused"), failed
    is_refused = "refused" in result or result.get("ok") is False
    return ("refused" if is_refused else "done"), []


def _read(params: RawJson, kind: type[P]) -> P:
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ControlError("bad_params", f"{error}.") from None
