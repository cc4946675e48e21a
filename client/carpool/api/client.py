"""`Carpool`: an agent in this process. What an agent may do, and what people do with `carpool` verbs.

Owns the words: which request each method is, and which value its answer becomes. Everything that concerns
only what this session sees goes over its own connection; `start`, `stop`, `enable` and `disable` are an
operator's and go over one of their own.

Refuses to know how a connection is kept (`connection`) and who waits for what (`session`).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, overload

from carpool import errors
from carpool.api.attach import AttachTarget, attach_line, directory_of, workspace_of
from carpool.api.callbacks import Ask, Callbacks, Tell, as_uris
from carpool.api.results import Json, Outcome, Result, Server, Tool, Workspace, read, tool_of
from carpool.api.session import AgentSession
from carpool.errors import BadCall, Lost, Unavailable, UnknownName
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.faults.fault_answers import as_sentence

VERSION: Final = "2025-11-25"
"""The MCP version of the session: the last one of the handshake era."""
OPERATE_S: Final = 320.0
"""The wait for operator commands: a first start may install for minutes; the broker's own limit is 310 s."""

Name = str | tuple[str, str]
"""A name in any spelling (docs/names.md), or the pair (server, tool) of the server's own names."""
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class Carpool:
    """A session with carpool: `async with Carpool() as carpool`. Under asyncio and trio; many calls at once.

    `profile`, `workspace`, `cwd`: what this session sees, as for `carpool connect`. `name`: what people see
    in `carpool status`. `tool_name_length`: the bound on names of tools (32 to 64), for a program that puts
    something before them; 0: as the configuration says. `runtime_dir`: which carpool. `start`: bring it up
    where it does not run. `environ`: the environment that `${VAR}` in the configuration is read from; this
    process's own unless given.

    `on_sampling(params)` and `on_elicitation(params)` answer servers' questions with the result that MCP
    wants; None says no. `roots`: directories that this agent names. `on_tools_changed()` and `on_log(params)`
    are told what happens, of tools once `tools` was asked for; `log_level` is from where on. Each may be a
    coroutine function.

    When the broker dies the session goes on with the next one. Raises `NotRunning` where none can be reached,
    `BadCall` for what the broker refuses at the door.
    """

    def __init__(
        self,
        *,
        profile: str = "",
        workspace: str | os.PathLike[str] = "",
        cwd: str | os.PathLike[str] | None = None,
        name: str = "python",
        tool_name_length: int = 0,
        runtime_dir: str | os.PathLike[str] | None = None,
        start: bool = True,
        environ: Mapping[str, str] | None = None,
        on_sampling: Ask | None = None,
        on_elicitation: Ask | None = None,
        roots: Sequence[str | os.PathLike[str]] | None = None,
        on_tools_changed: Callable[[], object] | None = None,
        on_log: Tell | None = None,
        log_level: Level = "info",
    ) -> None:
        self._place = AttachTarget(runtime_dir, environ)
        self._start = start
        self._name = name
        self._log_level = log_level
        self._callbacks = Callbacks(
            on_sampling=on_sampling,
            on_elicitation=on_elicitation,
            roots=as_uris(roots),
            on_tools_changed=on_tools_changed,
            on_log=on_log,
        )
        self._way: dict[str, Any] = {
            "profile": profile,
            "workspace": workspace_of(workspace) if workspace else "",
            "cwd": directory_of(cwd),
            "agent": name,
            "tool_name_length": tool_name_length,
            "config": _real(paths.expected_config_file(self._place.environ)),
        }
        self._open: AgentSession | None = None
        self.instructions = ""
        """The instructions of the servers, and which servers are missing."""

    async def __aenter__(self) -> "Carpool":
        if self._open is not None:
            raise RuntimeError("this Carpool is open already; make another one for another session")
        session = AgentSession(
            self._place, attach_line(control=False, **self._way), self._callbacks, start=self._start
        )
        await session.__aenter__()
        try:
            greeting = {
                "protocolVersion": VERSION,
                "capabilities": self._callbacks.capabilities(),
                "clientInfo": {"name": self._name, "version": RELEASE},
            }
            greeted = _object(await session.request("initialize", greeting))
            self.instructions = str(greeted.get("instructions") or "")
            session.notify("notifications/initialized")
            if self._callbacks.on_log is not None:
                await session.request("logging/setLevel", {"level": self._log_level})
        except BaseException:
            await session.__aexit__(None, None, None)
            raise
        self._open = session
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._open = self._open, None
        if session is not None:
            await session.__aexit__(None, None, None)

    @property
    def session(self) -> str:
        """This session's id, as in `carpool status`."""
        return self._session().id

    # --- calling ---------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        name: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_progress: Tell | None = None,
        flat: Literal[False] = False,
    ) -> Result: ...

    @overload
    async def call(
        self,
        name: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_progress: Tell | None = None,
        flat: Literal[True],
    ) -> Json: ...

    async def call(
        self,
        name: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_progress: Tell | None = None,
        flat: bool = False,
    ) -> Result | Json:
        """Call a tool. One that says that it failed gives a `Result` with `is_error`; whatever else goes
        wrong is raised (`carpool.errors`).

        `timeout_s`: cancel the call and raise `TimedOut` after so long; without it the limits of the server's
        configuration hold. `on_progress(progress)` gets each `Progress`, in the task that calls. `flat`: give
        `{"success", "output"}` with the result as one text.
        """
        if not (arguments is None or isinstance(arguments, (dict, Mapping))):  # a dict is told in no time
            raise TypeError(f"arguments are a mapping of names and values, not {type(arguments).__name__}")
        said = dict(arguments or {})
        if isinstance(name, str):
            result = await self._call(name, said, timeout_s, on_progress)
        else:
            server, tool = _pair(name)
            try:
                result = await self._call(f"mcp:{server}:{tool}", said, timeout_s, on_progress)
            except UnknownName:
                # Another tool may be written in the same way; the list tells them apart.
                found = await self._tool(server, tool)
                result = await self._call(found.name, said, timeout_s, on_progress)
        return result.as_success() if flat else result

    async def _call(
        self, name: str, arguments: Json, timeout_s: float | None, on_progress: Tell | None
    ) -> Result:
        params = {"name": name, "arguments": arguments}
        raw = await self._session().request(
            "tools/call", params, timeout_s=timeout_s, on_progress=on_progress
        )
        result = Result(_object(raw))
        if result.is_error and (error := errors.of_result(result.raw)) is not None:
            raise error
        return result

    # --- looking ---------------------------------------------------------------------------------------

    async def servers(self) -> list[Server]:
        """Return every server of this session, also those that cannot be used."""
        found = await self._ask("carpool/servers", {})
        return [
            Server(each["name"], each["state"], each["why"], tuple(each["tags"]), tuple(each["tools"]))
            for each in found["servers"]
        ]

    async def tools(
        self, *, tags: Iterable[str] | str | None = None, server: str | None = None
    ) -> list[Tool]:
        """Return all tools that this session may call; only those with one of `tags`, only those of
        `server`.
        """
        if self._callbacks.on_tools_changed is not None:
            # Changes are told to who has asked for this list. Before the other one: none is missed.
            await self._session().request("tools/list", {})
        found = [tool_of(each) for each in (await self._ask("carpool/tools", {}))["tools"]]
        if tags is not None:
            wanted = {tags} if isinstance(tags, str) else set(tags)
            found = [tool for tool in found if wanted.intersection(tool.tags)]
        return [tool for tool in found if server is None or tool.server == server]

    async def shown(self) -> list[Json]:
        """Return the tools as a model of this profile reads them: `tools/list`, with what its `show` and
        `max_tools` leave (docs/search.md). They are MCP definitions under qualified names.
        """
        return await self._listed("tools/list", "tools")

    async def describe(self, name: Name) -> Tool:
        """Return the tool that a name means. Raises `UnknownName`."""
        server, tool = await self.resolve(name) if isinstance(name, str) else _pair(name)
        return await self._tool(server, tool)

    async def resolve(self, name: str) -> tuple[str, str]:
        """Return (server, tool) for any spelling of docs/names.md. Raises `UnknownName` with `candidates`,
        and `TypeError` for a name that is no text: a pair is resolved already.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name must be a str, not {type(name).__name__}: a pair needs no resolving")
        found = await self._ask("carpool/resolve", {"name": name})
        if "tool" in found:
            return found["server"], found["tool"]
        names = tuple(found["candidates"])
        if found["ambiguous"]:
            text = f"More than one server has it; say which: {', '.join(names)}."
        else:
            meant = f" Did you mean {', '.join(names)}?" if names else ""
            text = f"There is no tool of this name here.{meant}"
        raise UnknownName(text, candidates=names, kind="unknown_tool")

    async def resources(self) -> list[Json]:
        """Return the resources that servers list, in the form of MCP, each with its `server`."""
        return await self._owned("resources")

    async def resource_templates(self) -> list[Json]:
        """Return the URI templates of further resources, each with its `server`."""
        return await self._owned("templates")

    async def read(self, uri: str, *, timeout_s: float | None = None) -> Json:
        """Read a resource. Returns the whole result, with `contents`."""
        return _object(await self._session().request("resources/read", {"uri": uri}, timeout_s=timeout_s))

    async def prompts(self) -> list[Json]:
        """Return the prompts that servers list, under their qualified names."""
        return await self._listed("prompts/list", "prompts")

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout_s: float | None = None
    ) -> Json:
        """Return a prompt with its arguments filled in: the whole result, with `messages`."""
        params = {"name": name, "arguments": dict(arguments or {})}
        return _object(await self._session().request("prompts/get", params, timeout_s=timeout_s))

    async def ping(self, *, timeout_s: float | None = None) -> None:
        """Return when carpool answers."""
        await self._session().request("ping", {}, timeout_s=timeout_s)

    async def use_workspace(self, workspace: str | os.PathLike[str]) -> Workspace:
        """Move to another workspace (docs/workspaces.md)."""
        found = await self._ask("carpool/use_workspace", {"workspace": workspace_of(workspace)})
        return Workspace(str(found["name"]), str(found["root"]))

    # --- operating -------------------------------------------------------------------------------------

    async def start(self, server: str) -> str:
        """Start a server now, for all agents, also one that was stopped or has given up. Returns what was
        done.
        """
        return await self._operate("start", server)

    async def stop(self, server: str) -> str:
        """Stop a server, for all agents, until it is started again. Returns what was done."""
        return await self._operate("stop", server)

    async def start_all(self) -> list[Outcome]:
        """Start every server, for all agents. A server that cannot start raises nothing: its outcome has the
        reason.
        """
        return await self._operate_all("start")

    async def stop_all(self) -> list[Outcome]:
        """Stop every server, for all agents, until it is started again. No single failure raises."""
        return await self._operate_all("stop")

    async def enable(self, server: str, *, only_here: bool = False) -> None:
        """Enable a server until carpool stops, for all agents or for this session alone."""
        await self._switch(server, on=True, only_here=only_here)

    async def disable(self, server: str, *, only_here: bool = False) -> None:
        """Disable a server until carpool stops, for all agents or for this session alone."""
        await self._switch(server, on=False, only_here=only_here)

    async def _operate(self, verb: str, server: str) -> str:
        params = {"verb": verb, "servers": [server]}
        (done,) = (await self._operator("carpool/operate", params, OPERATE_S))["results"]
        if not done["ok"]:
            raise Unavailable(
                f"The server {server} was not {_DONE[verb]}: {as_sentence(done['text'])}", server=server
            )
        return str(done["text"])

    async def _operate_all(self, verb: str) -> list[Outcome]:
        done = await self._operator("carpool/operate", {"verb": verb, "servers": None}, OPERATE_S)
        return [Outcome(each["server"], each["ok"], each["text"]) for each in done["results"]]

    async def _switch(self, server: str, *, on: bool, only_here: bool) -> None:
        params = {"server": server, "on": on, "session": self.session if only_here else ""}
        done = await self._operator("carpool/switch", params)
        if "refused" in done:
            raise BadCall(str(done["refused"]), kind="bad_params", server=server)

    async def _operator(self, method: str, params: Json, timeout_s: float = 30.0) -> Json:
        """Send one operator request, over a connection of its own."""
        self._session()
        line = attach_line(control=True, **self._way)
        async with AgentSession(self._place, line, Callbacks(), start=False, keeps=False) as operator:
            return _object(await operator.request(method, params, timeout_s=timeout_s))

    # --- of all of them --------------------------------------------------------------------------------

    def _session(self) -> AgentSession:
        if self._open is None:
            raise RuntimeError("this Carpool is not open; use `async with Carpool() as carpool`")
        return self._open

    async def _ask(self, method: str, params: Json) -> Any:
        return _object(await self._session().request(method, params))

    async def _tool(self, server: str, tool: str) -> Tool:
        for each in await self.tools(server=server):
            if each.tool == tool:
                return each
        raise UnknownName(
            f"The server {server} has no tool of this name here.", kind="unknown_tool", server=server
        )

    async def _owned(self, key: str) -> list[Json]:
        """Return a list of `carpool/resources`."""
        found: list[Json] = (await self._ask("carpool/resources", {}))[key]
        return found

    async def _listed(self, method: str, key: str) -> list[Json]:
        """Return every page of a list; empty if no server offers such things."""
        found: list[Json] = []
        params: Json = {}
        while True:
            try:
                page = _object(await self._session().request(method, params))
            except BadCall as error:
                if error.kind == "unknown_method":  # what no server has is not announced
                    return found
                raise
            found += page[key]
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}


_DONE: Final = {"start": "started", "stop": "stopped"}


def _pair(name: object) -> tuple[str, str]:
    """Check the pair, because not every program's types are checked."""
    match name:
        case (str() as server, str() as tool):
            return server, tool
        case _:
            raise TypeError(f"a tool is named by a string or by (server, tool), not by {type(name).__name__}")


def _object(raw: bytes) -> Json:
    """Return a result that is an object. Raises `Lost` for one that cannot be read."""
    try:
        found = read(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Lost(
            "The answer cannot be read. The call has probably run: look at what it changed.",
            kind="bad_answer",
            delivered="maybe",
            whose="server",
        )
    return found


def _real(path: str) -> str:
    return os.path.realpath(path) if path else ""
