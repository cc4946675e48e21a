"""What the call table tells other parts about a call, and what they answer.

Owns the two interfaces and `CallResult`. `call_table` calls them; `requests.stateless_call_handler` and
`hooks.hook_points` implement them and need the table in turn, which is why the interfaces stand apart.
Refuses to know: what the listeners do.
"""

from typing import Protocol

from msgspec import Struct

from carpool_broker.core.model.session import OpenCall
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import CallAnswered


class CallResult(Struct, frozen=True, gc=False):
    """The result of a call, as the agent gets it."""

    is_error: bool
    body: RawJson
    ttl_ms: int = -1
    public: bool = False
    task: str = ""
    """carpool's id of the task as which the call goes on; empty if it does not."""


class StatelessCallListener(Protocol):
    """Acts on what happens to calls of the stateless era."""

    def call_leaving(self, open_call: OpenCall) -> None:
        """The call is about to be sent, or its retry arrived, which may want another log level."""

    def call_closed(self, open_call: OpenCall) -> None:
        """The call is no longer in the table."""

    def parked_call_ended(self, open_call: OpenCall, outcome: CallResult) -> None:
        """The call ended while it was parked, when no request of the agent was open to be answered."""

    def urls_required(self, open_call: OpenCall, urls: tuple[RawJson, ...], now: float) -> bool:
        """The server wants its user to visit these pages first. False: the agent cannot be asked."""

    def task_created(self, open_call: OpenCall, answer: CallAnswered, now: float) -> CallResult | None:
        """The server has begun a task. Returns the agent's answer, or None if the agent knows no tasks."""

    def task_lost(self, open_call: OpenCall) -> None:
        """The task that the call is about no longer exists."""


class HookPoints(Protocol):
    """Runs hooks on calls and their answers."""

    def hold_call(self, open_call: OpenCall, now: float) -> bool:
        """The call is about to be sent. True: hooks get it first, and `Admission.admit_again` follows."""

    def hold_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> bool:
        """The server has answered. True: hooks get the answer first, and it is given again when they are
        done.
        """

    def concerns(self, open_call: OpenCall) -> bool:
        """True if a hook gets the call or its answer."""

    def concerns_answer(self, open_call: OpenCall) -> bool:
        """True if a hook gets the answer."""

    def call_failed(self, open_call: OpenCall, slug: str) -> None:
        """The call ends with an error of ours, which the agent gets whatever hooks say."""

    def call_closed(self, open_call: OpenCall) -> None:
        """The call is no longer in the table."""
