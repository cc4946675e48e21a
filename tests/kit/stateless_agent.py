"""An agent of the stateless era (2026-07-28), for tests under trio, on top of the agent that speaks lines.

Owns what every request carries in `_meta`, the rounds of a call that wants input, and listens. It says
nothing that a client of that era must not say: no greeting, no answers. Knows nothing of daemons.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from tests.kit.line_agent import Json, LineAgent

MODERN: Final = "2026-07-28"
PREFIX: Final = "io.modelcontextprotocol/"
SUBSCRIPTION: Final = f"{PREFIX}subscriptionId"
ROUNDS: Final = 10


class RequestOutcome(Struct):
    """How a request ended, and what was wanted on the way."""

    answer: Json
    """The last whole message: `{result}` or `{error}`."""
    ids: list[bytes]
    """The ids of all requests that it took, in order."""
    wanted: list[Json] = []
    """`inputRequests` of each round."""
    states: list[str | None] = []
    """`requestState` of each round."""


class Listen:
    """One open `subscriptions/listen`."""

    def __init__(self, agent: LineAgent, id_: bytes) -> None:
        self._agent = agent
        self.id = id_

    def heard(self, method: str = "") -> list[Json]:
        """What came on it, in order; `method`: only those."""
        id_ = json.loads(self.id)
        return [
            each
            for each in self._agent.notices
            if each.get("params", {}).get("_meta", {}).get(SUBSCRIPTION) == id_
            and method in ("", each["method"])
        ]

    async def acknowledged(self) -> Json:
        """What is honoured; fails when something else came first."""
        await self._agent.until(self.heard, f"listen {self.id!r} is acknowledged")
        first = self.heard()[0]
        assert first["method"] == "notifications/subscriptions/acknowledged", first
        found: Json = first["params"]["notifications"]
        return found

    async def notice(self, method: str, since: int = 0) -> Json:
        """The first `method` on it among those after the first `since` of that method."""
        await self._agent.until(lambda: len(self.heard(method)) > since, f"{method} on {self.id!r}")
        return self.heard(method)[since]

    async def end(self) -> None:
        await self._agent.cancel(self.id)


class Stateless:
    """A stateless agent that speaks over `agent`. What it declares is said with each request anew."""

    def __init__(self, agent: LineAgent, *, capabilities: Json | None = None, name: str = "live") -> None:
        self.agent = agent
        self.capabilities: Json = capabilities or {}
        self.name = name
        self.says: Callable[[Json], Json | None] = lambda _: None
        """The bare result for one input request, `{method, params}`; None: it is left out of the retry."""

    def meta(self, *, level: str | None = None, token: object = None, **more: Any) -> Json:
        """The envelope of a request."""
        found: Json = {
            f"{PREFIX}protocolVersion": MODERN,
            f"{PREFIX}clientInfo": {"name": self.name, "version": "1"},
            f"{PREFIX}clientCapabilities": self.capabilities,
            **({f"{PREFIX}logLevel": level} if level is not None else {}),
            **({"progressToken": token} if token is not None else {}),
        }
        return found | more

    async def request(
        self, method: str, params: Json | None = None, *, id_: object = None, **meta: Any
    ) -> bytes:
        """Send a request; the bytes of its id. `meta`: as for `meta()`."""
        return await self.agent.request(method, {**(params or {}), "_meta": self.meta(**meta)}, id_=id_)

    async def ask(self, method: str, params: Json | None = None, **more: Any) -> Json:
        """A request and its answer, whatever that is; the whole message."""
        return await self.agent.answer(await self.request(method, params, **more))

    async def result(self, method: str, params: Json | None = None, **more: Any) -> Json:
        answer = await self.ask(method, params, **more)
        assert "result" in answer, answer
        found: Json = answer["result"]
        return found

    async def rounds(self, method: str, params: Json, **more: Any) -> RequestOutcome:
        """A request, and its retries for as long as input is wanted and `says` gives some."""
        done = RequestOutcome(answer={}, ids=[])
        given: Json = {}
        for _ in range(ROUNDS):
            done.ids.append(await self.request(method, {**params, **given}, **more))
            done.answer = await self.agent.answer(done.ids[-1])
            result = done.answer.get("result", {})
            if result.get("resultType") != "input_required":
                return done
            done.wanted.append(result.get("inputRequests", {}))
            done.states.append(result.get("requestState"))
            given = self.retry(result)
            if "inputResponses" in given and not given["inputResponses"] and done.wanted[-1]:
                return done
        raise AssertionError(f"still wants input after {ROUNDS} rounds: {done.answer}")

    def retry(self, result: Json) -> Json:
        """What a retry says of a result that wants input."""
        said = {key: self.says(asked) for key, asked in result.get("inputRequests", {}).items()}
        return {
            "inputResponses": {key: each for key, each in said.items() if each is not None},
            **({"requestState": result["requestState"]} if "requestState" in result else {}),
        }

    async def text(self, name: str, arguments: Json | None = None, **more: Any) -> str:
        """The text of a tool call that worked."""
        done = await self.rounds("tools/call", {"name": name, "arguments": arguments or {}}, **more)
        result = done.answer.get("result", {})
        assert result.get("resultType") == "complete", done.answer
        assert not result.get("isError"), done.answer
        said: str = result["content"][0]["text"]
        return said

    async def listen(self, *, id_: object = None, **wanted: Any) -> Listen:
        """Open a listen for `toolsListChanged=True`, `resourceSubscriptions=[…]` and so on."""
        return Listen(
            self.agent, await self.request("subscriptions/listen", {"notifications": wanted}, id_=id_)
        )
