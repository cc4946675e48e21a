"""The method `carpool/pin`, which `carpool pin` uses.

Owns the report about pinned servers and held tools, and the approval by an operator. The operator names the
digest of the definition that he has seen, so that a definition that has changed meanwhile is not approved.

Knows nothing of: how the report is shown, the effect of holding a tool (`approvals`, `view_builder`).
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from carpool_broker.admin.methods import Act, Methods
from carpool_broker.core.model.approval import PinId, server_of
from carpool_broker.core.model.events import PinsApproved
from carpool_broker.core.registry.approvals import INSTRUCTIONS
from carpool_broker.core.registry.registry import Registry
from carpool_broker.storage.approval_store import ApprovalStore
from carpool_protocol.ids import ServerName


class PinParams(Struct):
    """Params of `carpool/pin`."""

    verb: Literal["status", "approve"]
    server: str = ""
    """For `status`: only this server; empty: all."""
    pin: str = ""
    """For `approve`: the `pin` of a `status` answer."""
    tools: dict[str, str] = {}
    """For `approve`: digests of the seen definitions, by tool."""


def _act_of_approval(params: PinParams) -> Act | None:
    return None if params.verb == "status" else Act("approve", [server_of(PinId(params.pin)), *params.tools])


class ApprovalCommands:
    """Answers `carpool/pin`. `feed`: lets the core take an event and performs all that follows."""

    def __init__(
        self, registry: Registry, board: ApprovalStore, feed: Callable[[PinsApproved], None]
    ) -> None:
        self._registry = registry
        self._store = board
        self._feed = feed

    def register(self, methods: Methods) -> None:
        """Add `carpool/pin` to the table."""
        methods.add(
            "carpool/pin",
            PinParams,
            lambda _, params: self.answer(params),
            _act_of_approval,
        )

    def answer(self, params: PinParams) -> dict[str, Any]:
        """`{"pinned": [...]}`, or `{"approved": [tool]}`."""
        if params.verb == "status":
            return {
                "pinned": [
                    self.pin_status(pin)
                    for pin in sorted(self._registry.pinned_servers())
                    if not params.server or server_of(pin) == params.server
                ]
            }
        pin = PinId(params.pin)
        before = {(each.tool, each.digest) for each in self._registry.held_tools(pin)}
        self._feed(PinsApproved(pin, params.tools))
        after = {(each.tool, each.digest) for each in self._registry.held_tools(pin)}
        return {"approved": sorted(tool for tool, _ in params.tools.items() & (before - after))}

    def summary(self) -> dict[ServerName, dict[str, Any]]:
        """By server: the number of approved tools, and the held ones. The worst case of several servers of
        one name.
        """
        found: dict[ServerName, dict[str, Any]] = {}
        for each in self.answer(PinParams("status"))["pinned"]:
            held = [one["tool"] or "(instructions)" for one in each["held"]]
            before = found.get(each["server"])
            if before is None or len(held) > len(before["held"]):
                problem, approved = each["problem"], each["approved"]
                found[each["server"]] = {"approved": approved, "held": held, "problem": problem}
        return found

    def pin_status(self, pin: PinId) -> dict[str, Any]:
        """One pinned server, for `status` and for `carpool pin`."""
        approved = self._registry.approvals.approved.get(pin)
        return {
            "pin": pin,
            "server": server_of(pin),
            "met": approved is not None,
            "approved": 0 if approved is None else len(approved.tools.keys() - {INSTRUCTIONS}),
            "problem": self._store.problem.get(pin) or ("" if approved is None else approved.damaged),
            "held": [
                {
                    "what": "tool" if each.tool else "instructions",
                    "tool": each.tool,
                    "why": each.why,
                    "digest": each.digest,
                    "before": each.before,
                    "now": each.now,
                }
                for each in self._registry.held_tools(pin)
            ],
        }
