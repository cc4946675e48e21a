"""The Python client for programs without an event loop: `from carpool.sync import Carpool`.

Owns the thread in which the session lives. Every method is that of `carpool.Carpool` and waits for its end;
any thread may call. Callbacks run in the session's own thread.

Refuses to know what the methods do.
"""

import functools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from carpool.api.asked import Tell
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


class Carpool:
    """A session with carpool: `with Carpool() as carpool`. Takes what `carpool.Carpool` takes."""

    def __init__(self, **settings: Any) -> None:
        self._agent = _Agent(**settings)
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Carpool":
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal("asyncio"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._agent))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._portal = None
        self._stack.close()

    @property
    def session(self) -> str:
        """This session's id, as in `carpool status`."""
        return self._agent.session

    @property
    def instructions(self) -> str:
        """What the servers say of themselves, and which are missing."""
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
    enable = _waits(_Agent.enable)
    disable = _waits(_Agent.disable)

    def _run(self, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._portal is None:
            raise RuntimeError("this Carpool is not open; use `with Carpool() as carpool`")
        found: T = self._portal.call(what)
        return found
