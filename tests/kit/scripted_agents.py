"""Agents of both eras that play the same steps, and say what they saw in the same words.

Owns what is of an era and not of the server: envelopes, where questions come from and how they are answered,
the members of a result and the codes of an error that only one era has. Each is checked to be there, or not
to be, and taken out; so reports of two eras can be compared. Knows nothing of daemons.

A step is `{method, params}`, with `progress` (asks for it) or `unknown` (who refuses it does so in words of
its own).
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from tests.kit.line_agent import Json, LineAgent
from tests.kit.stateless_agent import MODERN, PREFIX, Stateless

ASKABLE: Final[Json] = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
HINTED: Final = frozenset(
    {"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
    | {"resources/read"}
)
"""Results that must say how long they are good, and for whom (2026-07-28 server/utilities/caching)."""
ONLY_STATELESS: Final = (b'"resultType"', b'"ttlMs"', b'"cacheScope"', b'"requestState"', b'"inputRequests"')
NOT_FOUND: Final = "resource not found"


class ScriptedAgent(Protocol):
    """One agent of some era."""

    async def do(self, step: Json) -> Json:
        """Play one step; `{answer | error, asks, progress}`."""
        ...


def said_by(name: str, method: str, params: Json) -> Json:
    """What an agent of this name answers to a question: it names both, so a mix-up shows."""
    if method == "elicitation/create":
        if params.get("mode") == "url":
            return {"action": "accept"}
        properties = params["requestedSchema"]["properties"]
        said = {key: _filled(name, params["message"], each) for key, each in properties.items()}
        return {"action": "accept", "content": said}
    if method == "roots/list":
        return {"roots": [{"uri": f"file:///home/{name}"}]}
    text = {"type": "text", "text": f"{name} on {params['messages'][0]['content']['text']}"}
    return {"role": "assistant", "content": text, "model": name}


def _filled(name: str, message: str, schema: Json) -> Any:
    if "default" in schema:
        return schema["default"]
    match schema.get("type"):
        case "boolean":
            return True
        case "integer" | "number":
            return 7
        case "array":
            items = schema["items"]
            return [items["enum"][0] if "enum" in items else items["anyOf"][0]["const"]]
        case _:
            pass
    if choices := schema.get("enum") or [each["const"] for each in schema.get("oneOf", [])]:
        return choices[0]
    return f"{name} on {message}"


def asked(method: str, params: Json | None) -> list[Any]:
    """A question without what only its era says."""
    params = {key: each for key, each in (params or {}).items() if key not in ("_meta", "elicitationId")}
    if method == "elicitation/create":
        params.setdefault("mode", "form")
    return [method, params]


def _progress(notices: Sequence[Json], tokens: Sequence[object]) -> list[list[Any]]:
    told = [each["params"] for each in notices if each["method"] == "notifications/progress"]
    return [
        [each["progress"], each.get("total"), each.get("message")]
        for each in told
        if each["progressToken"] in tokens
    ]


def _report(
    answer: Json, result: Json | None, asks: list[list[Any]], progress: list[list[Any]], *, missing: bool
) -> Json:
    # One server may send its questions one by one, another in one round, whose order means nothing.
    report: Json = {"asks": sorted(asks, key=str), "progress": progress}
    if result is None:
        error = answer["error"]
        return {**report, "error": NOT_FOUND if missing else error["code"]}
    return {**report, "answer": result}


class ScriptedHandshakeAgent:
    """An agent of the handshake era. `greet` it first."""

    def __init__(self, agent: LineAgent, name: str, *, through: bool) -> None:
        self.agent, self.name, self._through = agent, name, through
        self._next = 0
        agent.says = lambda ask: {"result": said_by(name, ask["method"], ask.get("params", {}))}

    async def greet(self, version: str = "2025-11-25", capabilities: Json | None = None) -> Json:
        return await self.agent.greet(version, ASKABLE if capabilities is None else capabilities)

    async def do(self, step: Json) -> Json:
        agent, method, params = self.agent, step["method"], dict(step["params"])
        asks_before, notices_before, lines_before = len(agent.asks), len(agent.notices), len(agent.lines)
        self._next += 1
        token = f"{self.name}-{self._next}"
        if step.get("progress"):
            params["_meta"] = {"progressToken": token}
        answer = await agent.ask(method, params)
        if self._through:
            for line in agent.lines[lines_before:]:
                assert not [sign for sign in ONLY_STATELESS if sign in line], line
        questions = [asked(each["method"], each.get("params")) for each in agent.asks[asks_before:]]
        missing = answer.get("error", {}).get("code") == -32002
        return _report(
            answer,
            answer.get("result"),
            questions,
            _progress(agent.notices[notices_before:], [token]),
            missing=missing,
        )


class ScriptedStatelessAgent:
    """An agent of the stateless era."""

    def __init__(
        self, agent: LineAgent, name: str, *, through: bool, capabilities: Json | None = None
    ) -> None:
        declared = ASKABLE if capabilities is None else capabilities
        self.agent = agent
        self.stateless = Stateless(agent, capabilities=declared, name=name)
        self.stateless.says = lambda each: said_by(name, each["method"], each.get("params", {}))
        self.name, self._through = name, through
        self._next = 0

    async def do(self, step: Json) -> Json:
        agent, method = self.agent, step["method"]
        notices_before, asks_before = len(agent.notices), len(agent.asks)
        self._next += 1
        token = f"{self.name}-{self._next}"
        done = await self.stateless.rounds(
            method, step["params"], token=token if step.get("progress") else None
        )
        assert len(agent.asks) == asks_before, "a stateless agent is never sent a request"
        wanted = [each for of_round in done.wanted for each in of_round.values()]
        for each in wanted:
            assert not {"elicitationId", "_meta"} & each.get("params", {}).keys(), each
        questions = [asked(each["method"], each.get("params")) for each in wanted]
        result = plain(method, done.answer["result"], own=self._through) if "result" in done.answer else None
        error = done.answer.get("error", {})
        assert error.get("code") not in (-32002, -32042), error
        missing = method == "resources/read" and error.get("code") == -32602
        return _report(
            done.answer,
            result,
            questions,
            _progress(agent.notices[notices_before:], [token]),
            missing=missing,
        )


def plain(method: str, result: Json, *, own: bool) -> Json:
    """A result without what only this era says, which must be there; `own`: and said by carpool."""
    result = dict(result)
    assert result.pop("resultType", None) == "complete", result
    ttl_ms, scope = result.pop("ttlMs", None), result.pop("cacheScope", None)
    if method in HINTED:
        assert type(ttl_ms) is int, (method, ttl_ms)
        assert ttl_ms >= 0
        assert scope in ("public", "private"), (method, scope)
    meta = dict(result.pop("_meta", {}))
    info = meta.pop(f"{PREFIX}serverInfo", None)
    if own:
        assert info is not None, (method, "says no serverInfo")
        assert info["name"] == "carpool", info
    if meta:
        result["_meta"] = meta
    return result


__all__ = [
    "ASKABLE",
    "MODERN",
    "ScriptedAgent",
    "ScriptedHandshakeAgent",
    "ScriptedStatelessAgent",
    "said_by",
]
