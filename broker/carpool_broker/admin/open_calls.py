"""Operators' requests about open calls: `carpool/calls` and `carpool/cancel`.

Owns the rows about open calls: the state that operators see, made of the broker's stage of a call and of the
supervisor's answer about its place. Calls of the command line itself are listed like all others.

Knows nothing of: how a call is cancelled (`core.requests.dispatch`), the layout of the rows (the verb).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from carpool_broker.admin.methods import Act, ControlError, Methods
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.events import CallCancelledByOperator
from carpool_broker.core.model.session import OpenCall
from carpool_protocol.ids import CallId, ServerName, call_name, call_named
from carpool_protocol.link.messages import CallPlace, CallsLocated, EndCall, LocateCalls

LOCATE_TIMEOUT_S: Final = 5.0
MAX_ROWS: Final = 1000

CallState = Literal["waiting", "running", "asking"]

NO_SUCH_CALL: Final = "No call with this id is open; `carpool calls` lists the open calls."

ENDED_MEANWHILE: Final = "This call has just ended by itself, so it was not cancelled."

_CANCEL_NOT_CONFIRMED: Final = (
    "Nothing tells that the call was cancelled: it may have ended, and may go on. See `carpool calls`."
)

RETURNING: Final = "The agent of this call is just coming back from an earlier broker; try again in a moment."

_WAITS_FOR: Final = {
    "returning": "the record of the supervisor",
    "unresolved": "the list of its server",
    "waiting": "its turn in the session",
    "hooked": "hooks, before it is sent",
    "told": "hooks, with its answer",
}
"""What a call in a stage of the broker waits for."""


class OpenCallsParams(Struct):
    """Params of `carpool/calls`. Empty: any."""

    server: str = ""
    session: str = ""
    state: Literal["", "waiting", "running", "asking"] = ""
    limit: int = MAX_ROWS


class CancelParams(Struct):
    """Params of `carpool/cancel`."""

    call: str


class OpenCallCommands:
    """Answers requests about the open calls of one broker. `clock`: the time of the core."""

    def __init__(
        self,
        core: BrokerCore,
        inquiries: SupervisorQueries,
        clock: Callable[[], float],
        follow: Callable[[Sequence[CallCancelledByOperator]], None],
    ) -> None:
        self._core = core
        self._inquiries = inquiries
        self._clock = clock
        self._apply = follow

    def register(self, methods: Methods) -> None:
        """Add the methods about open calls to the table."""
        methods.add("carpool/calls", OpenCallsParams, lambda _, params: self.list_calls(params))
        methods.add(
            "carpool/cancel",
            CancelParams,
            lambda _, params: self.cancel(params),
            lambda params: Act("cancel", [params.call]),
        )

    async def list_calls(self, params: OpenCallsParams) -> dict[str, Any]:
        """`{"calls": [row], "total"}`, oldest first. `total` also counts rows past the limit. If the
        supervisor does not answer, the places of calls at servers are unknown.
        """
        wanted = [each for each in self._core.call_table.calls.values() if _is_wanted(each, params)]
        places = await self._locate(wanted)
        still_open = [each for each in wanted if each.call in self._core.call_table.calls]
        paused = self._core.sources.paused_servers
        rows = list(open_call_rows(still_open, places, self._clock(), paused))
        if params.state:
            rows = [row for row in rows if row["state"] == params.state]
        rows.sort(key=lambda row: -row["age_s"])
        return {"calls": rows[: max(0, min(params.limit, MAX_ROWS))], "total": len(rows)}

    async def cancel(self, params: CancelParams) -> dict[str, Any]:
        """Cancel a call. Returns `{"call", "server", "tool", "delivered"}`. Raises `ControlError`."""
        call = call_named(params.call)
        if call is None:
            raise ControlError("bad_params", "A call is named as in `carpool calls`: c17, or c1.17.")
        open_call = self._core.call_table.calls.get(call)
        if open_call is None:
            raise ControlError("not_found", NO_SUCH_CALL)
        if open_call.stage == "returning":
            raise ControlError("bad_params", RETURNING)
        return {
            "call": call_name(call),
            "server": open_call.server,
            "tool": open_call.tool,
            "delivered": await self._end(open_call),
        }

    async def _end(self, open_call: OpenCall) -> Literal["no", "maybe"]:
        """End a call and return whether its server may have read it. Raises `ControlError`."""
        call = open_call.call
        if open_call.stage != "sent":
            was_waiting = call_state(open_call, None)[0] == "waiting"
            self._apply([CallCancelledByOperator(call)])
            return "no" if was_waiting else "maybe"
        ended = await self._inquiries.query_by(
            lambda token: self._apply([CallCancelledByOperator(call, token)]),
            LOCATE_TIMEOUT_S,
            EndCall(call),
        )
        if not isinstance(ended, CallsLocated):
            raise ControlError("supervisor_away", _CANCEL_NOT_CONFIRMED)
        if not ended.places:
            raise ControlError("not_found", ENDED_MEANWHILE)
        return "no" if ended.places[0].state == "waiting" else "maybe"

    async def _locate(self, calls: Iterable[OpenCall]) -> Mapping[CallId, CallPlace]:
        """Ask the supervisors where these calls are. Without those of one that does not answer."""
        sent = [each.call for each in calls if each.stage == "sent"]
        if not sent:
            return {}
        found = await self._inquiries.query_all(lambda token: LocateCalls(token, sent), LOCATE_TIMEOUT_S)
        answers = [each for each in found.values() if isinstance(each, CallsLocated)]
        return {place.call: place for each in answers for place in each.places}


def _is_wanted(open_call: OpenCall, params: OpenCallsParams) -> bool:
    return params.server in ("", open_call.server) and params.session in ("", open_call.session.id)


def open_call_rows(
    calls: Iterable[OpenCall],
    places: Mapping[CallId, CallPlace],
    now: float,
    paused: Container[ServerName] = (),
) -> Iterable[dict[str, Any]]:
    """Yield one row for each of these calls. `places`: the supervisor's answer about those that were sent;
    `paused`: the servers that operators have paused.
    """
    for open_call in calls:
        session, place = open_call.session, places.get(open_call.call)
        state, waits_for = call_state(open_call, place)
        if state == "waiting" and open_call.stage == "sent" and open_call.server in paused:
            waits_for = f"`carpool resume {open_call.server}`"
        yield {
            "call": call_name(open_call.call),
            "server": open_call.server,
            "tool": open_call.tool or open_call.asked.name,
            "method": open_call.asked.agent_method,
            "session": session.id,
            "agent": session.agent,
            "principal": session.principal,
            "profile": session.profile,
            "state": state,
            "waits_for": waits_for,
            "age_s": round(max(0.0, now - open_call.since), 3),
            "instance": None if place is None or not place.instance else int(place.instance),
            "pid": None if place is None or not place.pid else place.pid,
            "node": "" if place is None else place.node,
        }


def call_state(open_call: OpenCall, place: CallPlace | None) -> tuple[CallState, str]:
    """Return the state of a call, and what it waits for. `place` is None if the supervisor does not say."""
    if open_call.is_parked:
        return "asking", "its agent"
    if open_call.stage != "sent":
        return ("running" if open_call.stage == "told" else "waiting"), _WAITS_FOR[open_call.stage]
    if place is None or place.state == "running":
        return "running", ""
    return place.state, "its agent" if place.state == "asking" else "an instance"
