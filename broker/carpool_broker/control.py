"""What the command line may ask of a running broker: the `carpool/…` methods.

Owns these methods and the questions to the supervisor that they need. Control sessions only, but for what a
session may ask about its own view (`hosting.LOOKS`): an agent that sends another one gets "method not found"
like for any unknown method.

Knows nothing of: sockets, how answers are shown to people.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import trio
from msgspec import Struct

from carpool_broker import own_view, profile_report
from carpool_broker.audit_log import AuditLog
from carpool_broker.configuration import Configuration, Followed
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.events import PinsApproved
from carpool_broker.core.routing import HELD, kept_back
from carpool_broker.core.view import Denied, Held, View, ViewTool
from carpool_broker.known_lists import known_lists
from carpool_broker.pin_board import PinBoard
from carpool_broker.pinning import Pinning, PinParams
from carpool_broker.recounting import StoryOf, recounted
from carpool_broker.status import Facts, page
from carpool_broker.switching import CannotSwitchError, Switching, SwitchParams
from carpool_protocol.config.problems import did_you_mean
from carpool_protocol.ids import PoolKey, RawJson, ServerName, SessionId, call_name, call_named
from carpool_protocol.messages import (
    AnyMessage,
    Discover,
    Explain,
    Explained,
    Operate,
    Operated,
    Recount,
    Recounted,
    Survey,
    Surveyed,
    Testify,
)
from carpool_protocol.names import Ambiguous

P = TypeVar("P", bound=Struct)
Told = Surveyed | Operated | Explained | Recounted
"""What the supervisor answers to questions of operators."""

SURVEY_S = 5.0
EXPLAIN_S = 5.0
OPERATE_S = 310.0
"""A first start may install for minutes."""
MAX_DETAIL_CHARS = 500


class ControlError(Exception):
    """The request cannot be served. `slug` is a fault of `faults`, `server` the one it is about."""

    def __init__(self, slug: str, detail: str, server: str = "") -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.server = server


class _ToolsParams(Struct):
    name: str | None = None
    offline: bool = False
    """Only what is known: nothing is started or waited for."""


class _ResolveParams(Struct):
    name: str


class _OperateParams(Struct):
    verb: Literal["start", "stop", "restart"]
    servers: list[str] | None = None


class _WhyParams(Struct):
    server: str


class _StoryParams(Struct):
    call: str


class _TestifyParams(Struct):
    server: str
    kind: Literal["probe_diverged", "probe_agreed"]
    detail: str = ""


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
        control_sessions: Callable[[], set[SessionId]],
        reload: Callable[[], list[str]],
        follow: Callable[[Sequence[Followed | PinsApproved]], None],
        audit: AuditLog | None = None,
        pins: PinBoard | None = None,
        story: StoryOf = lambda _subject, _kind: [],
        told_at: Callable[[PoolKey], str] = lambda _: "",
    ) -> None:
        """`told_at`: when a pool last told its lists."""
        self._core = core
        self._configuration = configuration
        self._send = send
        self._release = release
        self._restarts = restarts
        self._supervisors = supervisors
        self._control_sessions = control_sessions
        self._reload = reload
        self._told_at = told_at
        self._audit = audit
        self._story_of = story
        self._pinning = Pinning(core.registry, pins or PinBoard(""), lambda event: follow([event]))
        self._switching = Switching(configuration, follow, reload)
        self.hooks: Callable[[], list[dict[str, Any]]] = list
        """What `status` says of the hooks."""
        self._began_at = trio.current_time()
        self._tokens = 0
        self._asked: dict[int, tuple[trio.Event, list[Told]]] = {}

    def heard(self, message: Told) -> None:
        """An answer of the supervisor; one that nobody waits for any more is dropped."""
        waiting = self._asked.get(message.token)
        if waiting is not None:
            waiting[1].append(message)
            waiting[0].set()

    def supervisor_went(self) -> None:
        """No answer comes any more."""
        for event, _ in self._asked.values():
            event.set()

    async def answer(self, session: SessionId, method: str, params: RawJson) -> RawJson:
        """The result of one control request. Raises `ControlError`."""
        match method:
            case "carpool/status":
                result: object = await self._status()
            case "carpool/tools" | "carpool/resolve" | "carpool/servers":
                result = await self._look(session, method, params)
            case "carpool/profiles":
                result = profile_report.page(self._core, self._configuration.config)
            case "carpool/operate":
                result = await self._operate(_decode(params, _OperateParams))
            case "carpool/why":
                result = await self._why(_decode(params, _WhyParams))
            case "carpool/testify":
                result = self._testify(_decode(params, _TestifyParams))
            case "carpool/story":
                result = await self._story(_decode(params, _StoryParams))
            case "carpool/pin":
                result = self._pinning.answer(_decode(params, PinParams))
            case "carpool/reload":
                problems = self._reload()
                result = {"ok": not problems, "problems": problems}
            case "carpool/switch":
                result = self._switch(_decode(params, SwitchParams))
            case _:
                raise ControlError("unknown_method", "")
        return RawJson(msgspec.json.encode(result))

    async def _look(self, session: SessionId, method: str, params: RawJson) -> object:
        """What a session may ask about its own view."""
        if method == "carpool/tools":
            return await self._tools(session, _decode(params, _ToolsParams))
        if method == "carpool/resolve":
            return await self._resolve(session, _decode(params, _ResolveParams))
        mine, view = self._core.sessions[session], self._core.view_of(session)
        return {"servers": own_view.servers(self._core.outlook, mine, view)}

    async def _ask(self, make: Callable[[int], AnyMessage], limit_s: float) -> Told | None:
        self._tokens += 1
        token = self._tokens
        event = trio.Event()
        answers: list[Told] = []
        self._asked[token] = (event, answers)
        try:
            self._send(make(token))
            with trio.move_on_after(limit_s):
                await event.wait()
        finally:
            del self._asked[token]
        return answers[0] if answers else None

    # --- status ----------------------------------------------------------------------------------------

    async def _status(self) -> dict[str, Any]:
        core = self._core
        operators = self._control_sessions()
        sessions = [session for session in core.sessions.values() if session.id not in operators]
        shims = [session.pid for session in sessions if session.carrier in ("shim", "run") and session.pid]
        launcher = os.getppid()
        surveyed = None
        if self._supervisors():
            pids = [os.getpid(), launcher, *shims]
            surveyed = await self._ask(lambda token: Survey(token, pids), SURVEY_S)
        waiting: dict[PoolKey, int] = {}
        for session in sessions:
            for owed in session.waiting:
                waiting[owed.key] = waiting.get(owed.key, 0) + 1
        config = self._configuration.config
        switches = self._configuration.switches
        known = switches.over(self._configuration.layers.known())
        servers = {name: "disabled" if server.disabled else "" for name, server in known.items()}
        untrusted: set[ServerName] = set()
        for source in core.sources.sources.values():
            for name, why in source.goal.misconfigured.items():
                servers[name] = servers.get(name) or why
            untrusted |= source.goal.untrusted
        return page(
            Facts(
                broker_pid=os.getpid(),
                launcher_pid=launcher,
                release=self._release,
                uptime_s=trio.current_time() - self._began_at,
                restarts=self._restarts,
                supervisors=self._supervisors(),
                surveyed=surveyed if isinstance(surveyed, Surveyed) else None,
                sessions=sessions,
                left_out={each.id: core.view_of(each.id).left_out for each in sessions},
                calls=core.ledger.opened,
                lists=known_lists(core, self._told_at),
                servers=servers,
                sharing={name: server.policy.sharing for name, server in known.items()},
                tags={name: server.tags for name, server in known.items()},
                untrusted=frozenset(untrusted),
                workspaces=self._configuration.layers.places(),
                places={each.id: self._configuration.whereabouts(each.id) for each in sessions},
                config_file=config.file,
                config_problem=self._configuration.problem,
                switches=switches.everyone,
                switches_of=switches.sessions,
                disabled_in={name: self._configuration.layers.disabled_in(name) for name in known},
                waiting=waiting,
                hooks=self.hooks(),
                audit=self._audit_facts(),
                pinned=self._pinning.summary(),
            )
        )

    def _audit_facts(self) -> dict[str, Any]:
        audit = self._audit
        on = self._core.ledger.trail is not None
        if audit is None:
            return {"on": on, "file": "", "problem": "", "missed": 0}
        return {"on": on, "file": audit.path, "problem": audit.problem, "missed": audit.missed}

    # --- tools -----------------------------------------------------------------------------------------

    async def _tools(self, session: SessionId, params: _ToolsParams) -> dict[str, Any]:
        view = self._known_view(session, params) if params.offline else await self._settled_view(session)
        own = self._core.registry.own_tools(view.scope)
        if params.name is None:
            return {"tools": [own_view.described(view, tool, own[tool.key]) for tool in view.tools]}
        found = view.resolve(params.name)
        if isinstance(found, ViewTool):
            return {"tools": [own_view.described(view, found, own[found.key])]}
        if isinstance(found, Held):
            raise ControlError("quarantined", HELD[found.why], found.server)
        if isinstance(found, Denied):
            raise ControlError("not_permitted", kept_back(found.profile), found.server)
        if isinstance(found, Ambiguous):
            names = ", ".join(found.candidates)
            raise ControlError("unknown_tool", f"More than one server has it; say which: {names}.")
        if (off := self._core.outlook.off(self._core.sessions[session], params.name)) is not None:
            server, slug, why = off
            raise ControlError(slug, why, server)
        suggestions = getattr(found, "suggestions", ())
        raise ControlError("unknown_tool", f"Did you mean {', '.join(suggestions)}?" if suggestions else "")

    async def _resolve(self, session: SessionId, params: _ResolveParams) -> dict[str, Any]:
        view = self._core.view_of(session)
        if own_view.is_unknown(view, params.name):  # perhaps of a server that has not told its tools
            view = await self._settled_view(session)
        found = own_view.meaning(self._core.outlook, self._core.sessions[session], view, params.name)
        if isinstance(found, own_view.Refusal):
            raise ControlError(*found)
        return found

    def _known_view(self, session: SessionId, params: _ToolsParams) -> View:
        """What is known now; that of other agents where a name is known there only (rule 12)."""
        core = self._core
        view = core.view_of(session)
        plain = core.registry.view(core.sources.scope(core.sessions[session].source))
        found_there = params.name is not None and isinstance(plain.resolve(params.name), ViewTool)
        if found_there and not isinstance(view.resolve(params.name or ""), ViewTool):
            return plain
        return view

    async def _settled_view(self, session: SessionId) -> View:
        """What the session sees once every server has told its tools, or the patience for that is over."""
        with trio.move_on_after(self._core.requests.list_wait_s):
            asked: set[PoolKey] = set()
            while True:
                view = self._core.view_of(session)
                missing = {key for key in view.unknown if not self._core.outlook.is_settled(key)}
                if not missing:
                    break
                if self._supervisors():  # what is sent to nobody is lost, and it is not sent twice
                    for key in sorted(missing - asked):
                        self._send(Discover(key))
                    asked |= missing
                await trio.sleep(0.02)
        return self._core.view_of(session)

    # --- operate ---------------------------------------------------------------------------------------

    async def _operate(self, params: _OperateParams) -> dict[str, Any]:
        self._need_supervisor()
        pools = self._pools()
        names = [ServerName(name) for name in params.servers] if params.servers is not None else sorted(pools)
        results: dict[ServerName, dict[str, Any]] = {}

        async def one(name: ServerName) -> None:
            results[name] = await self._operate_one(name, params.verb, pools.get(name, []))

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
        return {"results": [results[name] for name in names]}

    async def _operate_one(
        self, name: ServerName, verb: Literal["start", "stop", "restart"], keys: list[PoolKey]
    ) -> dict[str, Any]:
        if not keys:
            return {"server": name, "ok": False, "text": self._why_not(name)}
        texts: list[str] = []
        ok = True
        for key in keys:
            answer = await self._ask(lambda token, key=key: Operate(token, key, verb), OPERATE_S)  # type: ignore[misc]
            if isinstance(answer, Operated):
                ok = ok and answer.ok
                texts.append(answer.text)
            else:
                ok = False
                texts.append("the supervisor did not answer in time")
        return {"server": name, "ok": ok, "text": "; ".join(dict.fromkeys(texts))}

    def _switch(self, params: SwitchParams) -> dict[str, Any]:
        try:
            return self._switching.turn(params, self._core.sessions.keys() - self._control_sessions())
        except CannotSwitchError as error:
            return {"server": params.server, "refused": str(error)}

    # --- sharing modes ---------------------------------------------------------------------------------

    async def _why(self, params: _WhyParams) -> dict[str, Any]:
        """`{"server", "pools": [{"key", "mode", "verified", "source", "lines"}]}`."""
        pools: list[dict[str, Any]] = []
        lists = known_lists(self._core, self._told_at)
        for key in self._pools_of(params.server):
            answer = await self._ask(lambda token, key=key: Explain(token, key), EXPLAIN_S)  # type: ignore[misc]
            if not isinstance(answer, Explained):
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

    # --- one call --------------------------------------------------------------------------------------

    async def _story(self, params: _StoryParams) -> dict[str, Any]:
        """`{"call", "run", "broker", "supervisor", "pids"}`: what both journals hold still."""
        call = call_named(params.call)
        if call is None:
            raise ControlError("bad_params", "A call is named as in errors and in the audit: c17, or c1.17.")
        found = (
            await self._ask(lambda token: Recount(token, call), EXPLAIN_S) if self._supervisors() else None
        )
        told = found if isinstance(found, Recounted) else Recounted(0, RawJson(b"[]"))
        return {
            "call": call_name(call),
            "run": "" if self._audit is None else self._audit.run,
            "broker": recounted(self._story_of, call),
            "supervisor": msgspec.Raw(told.entries),
            "pids": {str(instance): pid for instance, pid in told.pids.items()},
        }

    def _testify(self, params: _TestifyParams) -> dict[str, Any]:
        """What a probe has found out is kept with the evidence of every pool of the server."""
        for key in self._pools_of(params.server):
            self._send(Testify(key, params.kind, params.detail[:MAX_DETAIL_CHARS]))
        return {}

    def _pools_of(self, server: str) -> list[PoolKey]:
        """The pools of a server that is said to be there. Raises `ControlError`."""
        self._need_supervisor()
        pools = self._pools()
        name = ServerName(server)
        if name in pools:
            return pools[name]
        known = sorted({*pools, *self._configuration.layers.known()})
        if name in known or self._misconfigured(name):
            slug = "misconfigured" if self._misconfigured(name) else "stopped"
            raise ControlError(slug, f"The server {server} has no pool: {self._why_not(name)}.")
        meant = did_you_mean(server, known)
        hint = f"Did you mean {meant}?" if meant else f"There are: {', '.join(known) or 'none'}."
        raise ControlError("bad_params", f"There is no server of this name in the configuration. {hint}")

    def _pools(self) -> dict[ServerName, list[PoolKey]]:
        """Every pool that is wanted, by server: one for each environment and each class of agents."""
        pools: dict[ServerName, list[PoolKey]] = {}
        for spec in self._core.sources.wanted().pools:
            pools.setdefault(spec.server, []).append(spec.key)
        return pools

    def _need_supervisor(self) -> None:
        if not self._supervisors():
            raise ControlError("supervisor_away", "")

    def _misconfigured(self, name: ServerName) -> str:
        for source in self._core.sources.sources.values():
            if name in source.goal.misconfigured:
                return source.goal.misconfigured[name]
        return ""

    def _untrusted(self, name: ServerName) -> bool:
        return any(name in source.goal.untrusted for source in self._core.sources.sources.values())

    def _why_not(self, name: ServerName) -> str:
        why = self._misconfigured(name)
        if why:
            return f"{'awaits trust' if self._untrusted(name) else 'misconfigured'}: {why}"
        switches = self._configuration.switches
        server = switches.over(self._configuration.layers.known()).get(name)
        if server is not None and server.disabled:
            return f"disabled: {switches.why_off(server)} `carpool enable {name}` switches it on"
        return "no such server in the configuration"


def _decode(params: RawJson, kind: type[P]) -> P:
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ControlError("bad_params", f"{error}.") from None
