"""The Python client for programs without an event loop: `from carpool.sync import Carpool`.

Owns the thread in which the session lives. Every method is that of `carpool.Carpool` and waits for its end;
any thread may call. Callbacks run in threads of their own, so that they may call as well. None of these
threads keeps a program from ending that has not closed its session.

Refuses to know what the methods do.
"""

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from threading import Thread
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, overload

from anyio.from_thread import BlockingPortal

from carpool.api.callbacks import Tell, settle
from carpool.api.client import Carpool as _Agent
from carpool.api.client import Name
from carpool.api.results import Json, Result

P = ParamSpec("P")
T = TypeVar("T")


def _waits(
    method: Callable[Concatenate[_Agent, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Carpool", P], T]:
    """The same method, which returns when it is done."""

    @functools.wraps(method)
    def wait(self: "Carpool", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(functools.partial(method, self._agent, *args, **kwargs))

    return wait


_CALLBACKS: Final = ("on_sampling", "on_elicitation", "on_log", "on_tools_changed")


def _apart(callback: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """The same callback in a thread of its own: in the session's it could wait for nothing."""

    async def told(*said: Any) -> Any:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(callback(*said))
            except BaseException as error:  # noqa: BLE001 - it is raised where the callback is waited for
                done.set_exception(error)

        Thread(target=run, name="carpool callback", daemon=True).start()
        return await settle(await asyncio.wrap_future(done))

    return told


def _open_loop(stack: ExitStack) -> BlockingPortal:
    """An event loop in a thread that ends with the stack, or with the program (anyio's own portal would keep
    that from ending).
    """
    opened: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            opened.set_result(portal)
            await portal.sleep_until_stopped()

    thread = Thread(target=asyncio.run, args=(serve(),), name="carpool session", daemon=True)
    thread.start()
    portal = opened.result()
    stack.callback(thread.join)
    stack.callback(lambda: portal.call(portal.stop))
    return portal


class Carpool:
    """A session with carpool: `with Carpool() as carpool`. Takes what `carpool.Carpool` takes."""

    def __init__(self, **settings: Any) -> None:
        apart = {name: _apart(settings[name]) for name in _CALLBACKS if settings.get(name) is not None}
        self._agent = _Agent(**{**settings, **apart})
        self._portal: BlockingPortal | None = None
        self._pid = 0
        self._stack = ExitStack()

    def __enter__(self) -> "Carpool":
        with ExitStack() as stack:
            portal = _open_loop(stack)
            stack.enter_context(portal.wrap_async_context_manager(self._agent))
            self._stack = stack.pop_all()
        self._portal, self._pid = portal, os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        self._portal = None
        if self._pid == os.getpid():  # a child of this process has none of its threads
            self._stack.close()

    @property
    def session(self) -> str:
        """This session's id, as in `carpool status`."""
        return self._agent.session

    @property
    def instructions(self) -> str:
        """The instructions of the servers, and which servers are missing."""
        return self._agent.instructions

    @overload
    def call(
        self,
        name: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_progress: Tell | None = None,
        flat: Literal[False] = False,
    ) -> Result: ...

    @overload
    def call(
        self,
        name: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_progress: Tell | None = None,
        flat: Literal[True],
    ) -> Json: ...

    def call(self, name: Name, arguments: Mapping[str, Any] | None = None, **how: Any) -> Result | Json:
        """Call a tool. See `carpool.Carpool.call`."""
        if how.get("on_progress") is not None:
            how["on_progress"] = _apart(how["on_progress"])
        return self._run(functools.partial(self._agent.call, name, arguments, **how))

    servers = _waits(_Agent.servers)
    tools = _waits(_Agent.tools)
    shown = _waits(_Agent.shown)
    describe = _waits(_Agent.describe)
    resolve = _waits(_Agent.resolve)
    resources = _waits(_Agent.resources)
    resource_templates = _waits(_Agent.resource_templates)
    read = _waits(_Agent.read)
    prompts = _waits(_Agent.prompts)
    get_prompt = _waits(_Agent.get_prompt)
    ping = _waits(_Agent.ping)
    use_workspace = _waits(_Agent.use_workspace)
    start = _waits(_Agent.start)
    stop = _waits(_Agent.stop)
    start_all = _waits(_Agent.start_all)
    stop_all = _waits(_Agent.stop_all)
    enable = _waits(_Agent.enable)
    disable = _waits(_Agent.disable)

    def _run(self, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._portal is None:
            raise RuntimeError("this Carpool is not open; use `with Carpool() as carpool`")
        if self._pid != os.getpid():
            raise RuntimeError(
                "this Carpool is of the process that this one was forked from; open another one"
            )
        found: T = self._portal.call(what)
        return found
