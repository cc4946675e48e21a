"""What the command line may ask of a running broker: the `carpool/…` methods.

Owns which methods there are, who answers each, and the facts for `status` and `story`. Control sessions
only, but for what a session may ask about its own view (`inbound.LOOKS`): an agent that sends another one
gets "method not found" like for any unknown method.

Knows nothing of: sockets, how answers are shown to people, what is done with pools (`pool_commands`).
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import Struct

from carpool_broker.admin import profile_report
from carpool_broker.admin.approval_commands import Pinning, PinParams
from carpool_broker.admin.call_story import StoryOf, recounted
from carpool_broker.admin.errors import ControlError
from carpool_broker.admin.override_commands import CannotSwitchError, Switching, SwitchParams
from carpool_broker.admin.pool_commands import OperateParams, Operating, TestifyParams, WhyParams
from carpool_broker.admin.session_view import Looking, ResolveParams, ToolsParams
from carpool_broker.admin.status import Facts, known_lists, page
from carpool_broker.admin.supervisor_queries import Inquiries
from carpool_broker.config.configuration import DAEMON, Configuration, Followed
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.events import PinsApproved
from carpool_broker.storage.approval_store import PinBoard
from carpool_broker.storage.audit_log import AuditLog
from carpool_protocol.ids import PoolKey, RawJson, SessionId, call_name, call_named
from carpool_protocol.link.messages import AnyMessage, Recount, Recounted, Survey, Surveyed

P = TypeVar("P", bound=Struct)

SURVEY_S = 5.0
"""How long `status` waits for the supervisor where its asker names no shorter time."""
RECOUNT_S = 5.0


class _StatusParams(Struct):
    within_s: float = SURVEY_S
    """The asker waits no longer for the supervisor."""


class _StoryParams(Struct):
    call: str


class Control:
    """Answers control requests. `send` puts a message on the link and flushes it."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        send: Callable[[AnyMessage], None],
        *,
        release: str,
        restarts: int,
        supervisors: Callable[[], list[tuple[str, int]]],
        reload: Callable[[], Awaitable[list[str]]],
        follow: Callable[[Sequence[Followed | PinsApproved]], None],
        audit: AuditLog | None = None,
        pins: PinBoard | None = None,
        story: StoryOf = lambda _subject, _kind: [],
        told_at: Callable[[PoolKey], str] = lambda _: "",
        hooks: Callable[[], list[dict[str, Any]]] = list,
        doors: Callable[[], list[int]] = list,
    ) -> None:
        """`told_at`: when a pool last told its lists. `hooks`: what `status` says of the hooks. `doors`: the
        pids of what carries many sessions on one connection.
        """
        self._core = core
        self._configuration = configuration
        self._release = release
        self._restarts = restarts
        self._reload = reload
        self._told_at = told_at
        self._audit = audit
        self._story_of = story
        self.inquiries = Inquiries(send, supervisors)
        self._looking = Looking(core, self.inquiries)
        self._operating = Operating(core, configuration, self.inquiries, told_at)
        self._pinning = Pinning(core.registry, pins or PinBoard(""), lambda event: follow([event]))
        self.switching = Switching(configuration, follow)
        self._hooks = hooks
        self._doors = doors
        self._began_at = trio.current_time()
        self._surveyed: Surveyed | None = None
        """The last answer of the supervisors in `_surveyed_of`."""
        self._surveyed_of: list[tuple[str, int]] = []
        self._silent_since: float | None = None
        """When the supervisor was first asked a survey that it has not answered."""

    async def answer(  # noqa: C901 - an arm per method
        self, session: SessionId, method: str, params: RawJson
    ) -> RawJson:
        """The result of one control request. Raises `ControlError`."""
        match method:
            case "carpool/status":
                result: object = await self._status(_decode(params, _StatusParams))
            case "carpool/tools":
                result = await self._looking.tools(session, _decode(params, ToolsParams))
            case "carpool/resolve":
                result = await self._looking.resolve(session, _decode(params, ResolveParams))
            case "carpool/resources":
                result = await self._looking.resources(session)
            case "carpool/servers":
                result = self._looking.servers(session)
            case "carpool/profiles":
                result = profile_report.page(self._core, self._configuration.config)
            case "carpool/operate":
                result = await self._operating.operate(_decode(params, OperateParams))
            case "carpool/why":
                result = await self._operating.why(_decode(params, WhyParams))
            case "carpool/testify":
                result = self._operating.testify(_decode(params, TestifyParams))
            case "carpool/story":
                result = await self._story(_decode(params, _StoryParams))
            case "carpool/pin":
                result = self._pinning.answer(_decode(params, PinParams))
            case "carpool/reload":
                problems = await self._reload()
                result = {"ok": not problems, "problems": problems}
            case "carpool/switch":
                result = await self._switch(_decode(params, SwitchParams))
            case _:
                raise ControlError("unknown_method", "")
        return RawJson(msgspec.json.encode(result))

    def _operators(self) -> set[SessionId]:
        """Sessions that may use all `carpool/…` methods; they are nobody's agents."""
        return {each.id for each in self._core.sessions.values() if each.control}

    # --- status ----------------------------------------------------------------------------------------

    async def _status(self, params: _StatusParams) -> dict[str, Any]:
        core = self._core
        operators = self._operators()
        sessions = [session for session in core.sessions.values() if session.id not in operators]
        shims = [session.pid for session in sessions if session.carrier in ("shim", "run") and session.pid]
        launcher, doors = os.getppid(), self._doors()
        hooks = [hook["pid"] for hook in self._hooks() if hook["pid"]]
        pids = [os.getpid(), launcher, *doors, *hooks, *shims]
        surveyed, silent_s = await self._survey(pids, max(0.0, min(params.within_s, SURVEY_S)))
        sessions = [each for each in sessions if each.id in core.sessions]  # some may have left meanwhile
        waiting: dict[PoolKey, int] = {}
        for session in sessions:
            for owed in session.waiting:
                waiting[owed.key] = waiting.get(owed.key, 0) + 1
        config = self._configuration.config
        switches = self._configuration.switches
        known = switches.over(self._configuration.layers.known())
        servers = {name: "disabled" if server.disabled else "" for name, server in known.items()}
        operators = self._operators()  # some may have come meanwhile
        of_agents = {each.source for each in core.sessions.values() if each.id not in operators} | {DAEMON}
        of_operators = core.sources.sources.keys() - of_agents
        amiss = core.sources.amiss(of_operators)
        for name, why in amiss.misconfigured.items():
            servers[name] = servers.get(name) or why
        return page(
            Facts(
                broker_pid=os.getpid(),
                launcher_pid=launcher,
                release=self._release,
                uptime_s=trio.current_time() - self._began_at,
                restarts=self._restarts,
                supervisors=self.inquiries.supervisors(),
                surveyed=surveyed,
                silent_s=silent_s,
                states=[
                    (spec.key, spec.server, core.states[spec.key].state)
                    for spec in core.sources.wanted().pools
                    if spec.key in core.states
                ],
                wanted=core.sources.wanted_by_agents(of_operators),
                sessions=sessions,
                left_out={each.id: core.view_of(each.id).left_out for each in sessions},
                calls=core.ledger.opened,
                lists=known_lists(core, self._told_at),
                servers=servers,
                sharing={name: server.policy.sharing for name, server in known.items()},
                tags={name: server.tags for name, server in known.items()},
                untrusted=amiss.untrusted,
                unset=amiss.unset,
                workspaces=self._configuration.layers.places(),
                places={each.id: self._configuration.whereabouts(each.id) for each in sessions},
                config_file=config.file,
                config_problem=self._configuration.problem,
                switches=switches.everyone,
                switches_of=switches.sessions,
                disabled_in={name: self._configuration.layers.disabled_in(name) for name in known},
                waiting=waiting,
                hooks=self._hooks(),
                doors=doors,
                audit=self._audit_facts(),
                pinned=self._pinning.summary(),
            )
        )

    async def _survey(self, pids: list[int], limit_s: float) -> tuple[Surveyed | None, float | None]:
        """The supervisor's last answer, and for how long it has been silent (None: it has answered now)."""
        linked = self.inquiries.supervisors()
        if linked != self._surveyed_of:  # what another supervisor said is true no more
            self._surveyed, self._surveyed_of, self._silent_since = None, linked, None
        if not linked:
            return None, None
        began = trio.current_time()
        found = await self.inquiries.ask(lambda token: Survey(token, pids), limit_s)
        if linked != self.inquiries.supervisors():
            return None, None
        if isinstance(found, Surveyed):
            self._surveyed, self._silent_since = found, None
            return found, None
        if self._silent_since is None:
            self._silent_since = began
        return self._surveyed, trio.current_time() - self._silent_since

    def _audit_facts(self) -> dict[str, Any]:
        audit = self._audit
        on = self._core.ledger.trail is not None
        if audit is None:
            return {"on": on, "file": "", "problem": "", "missed": 0}
        return {"on": on, "file": audit.path, "problem": audit.problem, "missed": audit.missed}

    async def _switch(self, params: SwitchParams) -> dict[str, Any]:
        problems = await self._reload() if params.on is None else []
        agents = self._core.sessions.keys() - self._operators()
        try:
            return self.switching.turn(params, agents, problems)
        except CannotSwitchError as error:
            return {"server": params.server, "refused": str(error)}

    # --- one call --------------------------------------------------------------------------------------

    async def _story(self, params: _StoryParams) -> dict[str, Any]:
        """`{"call", "run", "broker", "supervisor", "pids"}`: what both journals hold still."""
        call = call_named(params.call)
        if call is None:
            raise ControlError("bad_params", "A call is named as in errors and in the audit: c17, or c1.17.")
        found = None
        if self.inquiries.supervisors():
            found = await self.inquiries.ask(lambda token: Recount(token, call), RECOUNT_S)
        told = found if isinstance(found, Recounted) else Recounted(0, RawJson(b"[]"))
        return {
            "call": call_name(call),
            "run": "" if self._audit is None else self._audit.run,
            "broker": recounted(self._story_of, call),
            "supervisor": msgspec.Raw(told.entries),
            "pids": {str(instance): pid for instance, pid in told.pids.items()},
        }


def _decode(params: RawJson, kind: type[P]) -> P:
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ControlError("bad_params", f"{error}.") from None
