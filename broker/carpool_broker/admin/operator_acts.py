"""Acts of operators in the audit: control requests that change what runs (docs/audit.md).

Owns who an operator is: the process and user at the socket, and the token's name over HTTP. Each handler says
which of its requests are acts, and `methods` reads the outcome from the answer. Acts on nodes are done by the
node's process, which reports them (`carpool/node_act`).

Knows nothing of: the effect of an act, the file (`storage.audit_log`).
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, structs

from carpool_broker.admin.methods import Act, EndAct, Methods
from carpool_broker.core.broker import BrokerCore
from carpool_broker.storage.audit_log import AuditLog, OperatorAct
from carpool_protocol.ids import SessionId

MAX_TARGETS = 100
MAX_TARGET_CHARS = 128
MORE = "…"
"""Stands for the targets past the bound, and for the rest of a long one."""


class NodeActParams(Struct):
    """Params of `carpool/node_act`."""

    act: Literal["drain", "undrain", "leave"]
    node: str
    """The node that it is about."""
    outcome: Literal["done", "refused", "unknown"]
    by: str = ""
    """The other node that asked for it; empty: a command on this machine."""
    pid: int = 0
    """The process of the command on this machine; the node's process has it from its socket."""
    times: int = 1
    """Greater than 1: it stands for this number of refused requests."""


class RefusedClientRow(Struct):
    """Requests of one address that the HTTP door refused for a wrong secret."""

    address: str
    why: Literal["wrong_token", "wrong_code"]
    times: int


class RefusedClientsParams(Struct):
    """Params of `carpool/refused_clients`."""

    refused: list[RefusedClientRow]


class OperatorActs:
    """Writes the acts of one broker. `peer_uid`: returns the user at the other end of a session's socket."""

    def __init__(
        self, core: BrokerCore, audit: AuditLog | None, peer_uid: Callable[[SessionId], int | None]
    ) -> None:
        self._core = core
        self._audit = audit
        self._peer_uid = peer_uid

    def register(self, methods: Methods) -> None:
        """Put `carpool/node_act` and `carpool/refused_clients` into the table."""
        methods.add("carpool/node_act", NodeActParams, self.add_node_act)
        methods.add("carpool/refused_clients", RefusedClientsParams, self.add_refused_clients)

    def add_node_act(self, session: SessionId, params: NodeActParams) -> dict[str, Any]:
        """Write the audit line of an act on a node. Returns an empty object.

        The user is the one at the socket of the node's process, which takes requests of its own user only.
        """
        if self._audit is not None:
            self._audit.add_act(
                OperatorAct(
                    act=params.act,
                    targets=_bounded([params.node]),
                    for_session="",
                    session=session,
                    pid=params.pid,
                    uid=None if params.by else self._peer_uid(session),
                    via="node" if params.by else "cli",
                    principal=params.by[:MAX_TARGET_CHARS],
                    outcome=params.outcome,
                    times=params.times,
                )
            )
        return {}

    def add_refused_clients(self, session: SessionId, params: RefusedClientsParams) -> dict[str, Any]:
        """Write an audit line for each address from which wrong tokens came. Returns an empty object."""
        if self._audit is None:
            return {}
        for each in params.refused[:MAX_TARGETS]:
            self._audit.add_act(
                OperatorAct(
                    act="enter",
                    targets=_bounded([each.address]),
                    for_session="",
                    session=session,
                    pid=0,
                    uid=None,
                    via="http",
                    principal="",
                    outcome=each.why,
                    times=each.times,
                )
            )
        return {}

    def begin(self, session: SessionId, act: Act) -> EndAct:
        """Note who asks, who may be gone when the act ends. Returns the function that writes the line."""
        operator = self._core.sessions.get(session)
        begun = OperatorAct(
            act=act.verb,
            targets=_bounded(act.targets),
            for_session=act.for_session[:MAX_TARGET_CHARS],
            session=session,
            pid=0 if operator is None else operator.pid,
            uid=self._peer_uid(session),
            via="" if operator is None else operator.carrier,
            principal="" if operator is None else operator.principal,
        )

        def end(outcome: str, failed: list[str]) -> None:
            if self._audit is not None:
                self._audit.add_act(structs.replace(begun, outcome=outcome, failed=_bounded(failed)))

        return end


def _bounded(names: list[str]) -> list[str]:
    shown = [
        name if len(name) <= MAX_TARGET_CHARS else name[:MAX_TARGET_CHARS] + MORE
        for name in names[:MAX_TARGETS]
    ]
    return [*shown, MORE] if len(names) > MAX_TARGETS else shown
