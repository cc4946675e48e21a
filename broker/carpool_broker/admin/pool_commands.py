"""Operators' commands and questions about the pools of servers: `carpool/operate`, `why`, `testify`.

Owns which pools the name of a server stands for, and the sentences about a server without pools.

Knows nothing of: the supervisor's reaction, overrides (`override_commands`).
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import trio
from msgspec import Struct

from carpool_broker.admin.methods import ALL_SERVERS, Act, ControlError, Methods
from carpool_broker.admin.status import freshness_by_pool
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.config.configuration import Configuration
from carpool_broker.core.broker import BrokerCore
from carpool_protocol.config.text.problems import no_such_server
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import (
    ExplainSharing,
    Operate,
    OperationEnded,
    ReportProbe,
    SharingExplained,
)

EXPLAIN_TIMEOUT_S = 5.0
OPERATE_TIMEOUT_S = 310.0
"""A first start may install packages for minutes."""
MAX_DETAIL_CHARS = 500

_NOT_DONE: Final[dict[str, str]] = {
    "start": "it has not started",
    "stop": "it has not stopped",
    "restart": "it has not restarted",
}
"""By verb: what an operator reads of a server that has not done it within the limit."""

_SUPERVISOR_AWAY: Final = (
    "the supervisor that runs it is not connected, and carpool starts it; see `carpool status`, then "
    "repeat the command"
)
_SUPERVISOR_LOST: Final = (
    "the supervisor died before it answered, and carpool starts the next one; see `carpool status`, then "
    "repeat the command"
)

NO_AGENT_CONNECTED: Final = "This server belongs to a workspace in which no agent is connected."

OperateVerb = Literal["start", "stop", "restart"]


class OperateParams(Struct):
    """Params of `carpool/operate`. Without servers: all."""

    verb: OperateVerb
    servers: list[str] | None = None
    within_s: float = OPERATE_TIMEOUT_S
    """The longest wait for the result. What has begun goes on."""


class ExplainParams(Struct):
    """Params of `carpool/why`."""

    server: str


class ReportProbeParams(Struct):
    """Params of `carpool/testify`."""

    server: str
    kind: Literal["probe_diverged", "probe_agreed"]
    detail: str = ""


class PoolCommands:
    """Answers operators' requests about pools. `told_at`: returns when a pool last sent its lists."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        inquiries: SupervisorQueries,
        told_at: Callable[[PoolKey], str],
    ) -> None:
        self._core = core
        self._configuration = configuration
        self._supervisor_queries = inquiries
        self._told_at = told_at

    def register(self, methods: Methods) -> None:
        """Add the methods about pools to the table."""
        methods.add(
            "carpool/operate",
            OperateParams,
            lambda _, params: self.operate(params),
            lambda params: Act(params.verb, [ALL_SERVERS] if params.servers is None else params.servers),
        )
        methods.add("carpool/why", ExplainParams, lambda _, params: self.explain(params))
        methods.add(
            "carpool/testify",
            ReportProbeParams,
            lambda _, params: self.report_probe(params),
            lambda params: Act("probe", [params.server]),
        )

    async def operate(self, params: OperateParams) -> dict[str, Any]:
        """Run a verb. Returns `{"results": [{"server", "ok", "text"}]}`, in the order of the request."""
        self._supervisor_queries.require_supervisor()
        pools = self._pools()
        names = (
            [ServerName(name) for name in params.servers]
            if params.servers is not None
            else sorted({*pools, *(self._unstartable() if params.verb == "start" else ())})
        )
        answers: dict[PoolKey, tuple[bool, str]] = {}
        limit_s = max(0.0, min(params.within_s, OPERATE_TIMEOUT_S))

        async def operate_pool(key: PoolKey) -> None:
            answers[key] = await self._operate_pool(key, params.verb, limit_s)

        async with trio.open_nursery() as nursery:
            for key in {key for name in names for key in pools.get(name, [])}:
                nursery.start_soon(operate_pool, key)
        rows = [
            _result_row(name, [answers[key] for key in pools[name]])
            if name in pools
            else {"server": name, "ok": False, "text": self._without_pool(name)}
            for name in names
        ]
        return {"results": rows}

    def _unstartable(self) -> set[ServerName]:
        """Servers that a start of all must report: unset or misconfigured ones. An untrusted one waits for
        its user.
        """
        problems = self._core.sources.problems()
        return {*problems.misconfigured} - {*problems.untrusted}

    async def _operate_pool(self, key: PoolKey, verb: OperateVerb, limit_s: float) -> tuple[bool, str]:
        """Run a verb on one pool. Returns whether it succeeded, and what the operator reads."""
        answer = await self._supervisor_queries.query(lambda token: Operate(token, key, verb), limit_s)
        match answer:
            case OperationEnded():
                return answer.ok, answer.text
            case "lost":
                return False, _SUPERVISOR_LOST
            case "away":
                return False, _SUPERVISOR_AWAY
            case _:
                return False, f"{_NOT_DONE[verb]} after {limit_s:g} s; see `carpool status`"

    def _without_pool(self, name: ServerName) -> str:
        slug, text = self._why_no_pool(name) or ("", no_such_server(name, self._known_servers()))
        more = f" `carpool enable {name}` enables it." if slug == "disabled" else ""
        return (f"{slug}: {text}" if slug else text) + more

    async def explain(self, params: ExplainParams) -> dict[str, Any]:
        """The sharing mode and its reasons: `{"server", "pools": [{"key", "mode", "verified", "source",
        "lines"}]}`.
        """
        pools: list[dict[str, Any]] = []
        lists = freshness_by_pool(self._core, self._told_at)
        for key in self._pools_of(params.server):
            answer = await self._supervisor_queries.query(
                lambda token, key=key: ExplainSharing(token, key),  # type: ignore[misc]
                EXPLAIN_TIMEOUT_S,
            )
            if not isinstance(answer, SharingExplained):
                raise ControlError("supervisor_away", "It did not answer in time.")
            of_lists = lists[key].sentence() if key in lists else ""
            pools.append(
                {
                    "key": key,
                    "mode": answer.mode,
                    "verified": answer.verified,
                    "source": answer.source,
                    "lines": [*answer.lines, *([of_lists] if of_lists else [])],
                }
            )
        return {"server": params.server, "pools": pools}

    def report_probe(self, params: ReportProbeParams) -> dict[str, Any]:
        """Send the finding of a probe to the supervisor, for the evidence of every pool of the server."""
        for key in self._pools_of(params.server):
            self._supervisor_queries.send(ReportProbe(key, params.kind, params.detail[:MAX_DETAIL_CHARS]))
        return {}

    def _pools_of(self, server: str) -> list[PoolKey]:
        """The pools of a server by its name. Raises `ControlError`."""
        self._supervisor_queries.require_supervisor()
        pools = self._pools()
        name = ServerName(server)
        if name in pools:
            return pools[name]
        if found := self._why_no_pool(name):
            raise ControlError(*found, name)
        text = no_such_server(server, self._known_servers())
        raise ControlError("not_found", f"{text[:1].upper()}{text[1:]}")

    def _known_servers(self) -> set[str]:
        """All server names that an operator may use."""
        return {*self._pools(), *self._configuration.layers.server_names()}

    def _pools(self) -> dict[ServerName, list[PoolKey]]:
        """Every wanted pool, by server: one for each environment and each class of agents."""
        pools: dict[ServerName, list[PoolKey]] = {}
        for spec in self._core.sources.wanted_pools().pools:
            pools.setdefault(spec.server, []).append(spec.key)
        return pools

    def _why_no_pool(self, name: ServerName) -> tuple[str, str] | None:
        """Why a server has no pool: (fault code, sentence). None: there is no such server."""
        problems = self._core.sources.problems()
        if why := problems.misconfigured.get(name):
            if name in problems.untrusted:
                return "untrusted", f"{why}."
            return "unset" if name in problems.unset else "misconfigured", f"{why}."
        layers, switches = self._configuration.layers, self._configuration.overrides
        server = switches.apply(layers.configured_servers()).get(name)
        if server is not None and server.disabled:
            return "disabled", switches.disabled_reason(server)
        return ("unavailable", NO_AGENT_CONNECTED) if name in layers.server_names() else None


def _result_row(name: ServerName, of_pools: list[tuple[bool, str]]) -> dict[str, Any]:
    """Return the row of one server, made of the results of its pools."""
    texts = dict.fromkeys(text for _, text in of_pools)
    return {"server": name, "ok": all(ok for ok, _ in of_pools), "text": "; ".join(texts)}
