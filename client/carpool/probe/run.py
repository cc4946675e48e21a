"""The divergence probe's experiment: a server on private instances, then one instance for two sessions.

Owns the private carpool and the order of calls. Invariants: only the calls that are asked for are made;
every wait is bounded, all of them together by `LIMIT_S`; argument values are in no error.
Knows nothing of: what the answers mean (`judge`), which calls are worth making, the user's own
carpool.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError
from carpool.probe.config import ALONE, SHARED
from carpool.probe.judge import ROUNDS, ComparedAnswer, compared_answer, shared_order
from carpool.terminal import display
from carpool_protocol.wire.json_scan import read_despite_half_pairs

LIMIT_S = 420.0
CALL_S = 60.0
APART_S = 1.1
"""Between private runs: enough for a clock that tells seconds to show that it is one."""
_MOST_PAGES = 1000


class ProbeError(Exception):
    """The experiment came to no end; the text says why."""


class ProbedTool(Struct, frozen=True):
    """A tool, as far as it matters here."""

    name: str
    """The server's own."""
    reads: bool
    """True if the tool says that it changes nothing (`readOnlyHint`, MCP 2025-03-26, server/tools)."""
    bare: bool
    """True if the tool needs no argument."""


class ProbeCall(Struct, frozen=True):
    """One call that the experiment makes."""

    tool: str
    arguments: Raw = Raw(b"{}")


class _Schema(Struct):
    required: list[Any] = []


class _Annotations(Struct):
    read_only: bool = msgspec.field(name="readOnlyHint", default=False)


class _Definition(Struct):
    name: str = ""
    schema: _Schema = msgspec.field(name="inputSchema", default_factory=_Schema)
    annotations: _Annotations | None = None


class _Page(Struct):
    tools: list[Raw] = []
    next_cursor: str | None = msgspec.field(name="nextCursor", default=None)


_read_page = msgspec.json.Decoder(_Page).decode


class ProbeRun:
    """One experiment. `close` it in any case; the others raise `ProbeError`."""

    def __init__(self, logins: str, say: Callable[[str], None]) -> None:
        """`logins`: the directory of the user's logins to servers over a URL. `say` hears of each round that
        begins, for calls may take their time.
        """
        self._say = say
        self._alone = 0
        """Private instances so far."""
        self._private = PrivateCarpool("carpool-probe-")
        self._private.use_logins(logins)
        self._deadline_s = time.monotonic() + LIMIT_S
        self._names: dict[tuple[str, str], str] = {}
        """By server and the server's own name of a tool: what agents call it."""

    def close(self) -> list[str]:
        """End everything; what did not go as it should, in sentences."""
        return self._private.close()

    def open(self, config: str) -> list[ProbedTool]:
        """Start the private carpool with this configuration; the tools that each instance has."""
        self._private.write_config(config)
        with _explained():
            self._private.up()
            for arm in (ALONE, SHARED):
                with self._door(arm, control=True) as door:
                    listed = self._request(door, "carpool/tools")["tools"]
                    if not listed:
                        raise ProbeError(self._why_no_tools(door, arm))
                    self._names |= {(arm, each["tool"]): each["name"] for each in listed}
            self._drop_uncommon_tools()
            with self._agent(ALONE) as agent:
                return self._tools(agent)

    def _drop_uncommon_tools(self) -> None:
        """Drop tools that only one of two instances offers: they cannot be compared."""
        tools = {arm: {tool for each, tool in self._names if each == arm} for arm in (ALONE, SHARED)}
        if odd := tools[ALONE] ^ tools[SHARED]:
            self._names = {key: name for key, name in self._names.items() if key[1] not in odd}
            self._say(f"leaving out {', '.join(sorted(odd))}: of two instances only one offers them")

    def run_private(self, tries: Sequence[ProbeCall], runs: int) -> list[list[ComparedAnswer]]:
        """Make `runs` private runs, one after the other. All sessions stay open, each with its instance."""
        transcripts: list[list[ComparedAnswer]] = []
        with _explained(), contextlib.ExitStack() as stack:
            for run in range(runs):
                time.sleep(APART_S if run else 0)
                agent = stack.enter_context(self._agent(ALONE))
                self._alone += 1
                transcripts.append([])
                for number in range(ROUNDS):
                    self._say(f"private instance {self._alone}, round {number + 1} of {ROUNDS}")
                    transcripts[-1] += [self._called(agent, ALONE, each) for each in tries]
        return transcripts

    def run_shared(self, tries: Sequence[ProbeCall]) -> list[list[ComparedAnswer]]:
        """Two sessions on one instance."""
        with _explained(), self._agent(SHARED) as one, self._agent(SHARED) as other:
            transcripts: tuple[list[ComparedAnswer], list[ComparedAnswer]] = ([], [])
            for session, call in shared_order(len(tries)):
                if call == 0:
                    number = len(transcripts[session]) // len(tries) + 1
                    self._say(f"shared instance, session {session + 1}, round {number} of {ROUNDS}")
                transcripts[session].append(self._called((one, other)[session], SHARED, tries[call]))
            return list(transcripts)

    # --- talking to the private carpool ---------------------------------------------------------------------

    def _door(self, arm: str, *, control: bool) -> ControlClient:
        return ControlClient(self._private.directory, control=control, profile=arm)

    def _agent(self, arm: str) -> ControlClient:
        agent = self._door(arm, control=False)
        agent.initialize()
        return agent

    def _left_s(self, most_s: float = LIMIT_S) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise ProbeError(f"the probe was not done within {LIMIT_S:g} s")
        return min(left_s, most_s)

    def _request(self, client: ControlClient, method: str) -> dict[str, Any]:
        answer = msgspec.json.decode(client.request(method, {}, self._left_s()))
        assert isinstance(answer, dict)
        return answer

    def _why_no_tools(self, client: ControlClient, arm: str) -> str:
        server = self._request(client, "carpool/status")["servers"][arm]
        why = display.one_line(server.get("last_error") or "", 300)
        return f"the server offers no tools ({server['state']}){': ' if why else ''}{why}"

    def _tools(self, agent: ControlClient) -> list[ProbedTool]:
        own = {name: tool for (server, tool), name in self._names.items() if server == ALONE}
        found: list[ProbedTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            page = read_despite_half_pairs(_read_page, agent.request("tools/list", params, self._left_s()))
            for raw in page.tools:
                each = _definition(raw)
                if each.name in own:
                    reads = each.annotations is not None and each.annotations.read_only
                    found.append(ProbedTool(own[each.name], reads, bare=not each.schema.required))
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    def _called(self, agent: ControlClient, server: str, each: ProbeCall) -> ComparedAnswer:
        """Make one call and return the server's own answer."""
        params = {"name": self._names[server, each.tool], "arguments": each.arguments}
        try:
            answer = agent.request("tools/call", params, self._left_s(CALL_S))
            result = read_despite_half_pairs(msgspec.json.decode, answer)
        except AnsweredError as error:
            refusal = read_despite_half_pairs(msgspec.json.decode, error.error)
            data = refusal.get("data")
            if isinstance(data, dict) and "delivered" in data:
                raise ProbeError(f"{each.tool} was not answered: {error}") from None
            return compared_answer(refusal, refused=True)
        meta = result.get("_meta") if isinstance(result, dict) else None
        if isinstance(meta, dict) and "carpool/error" in meta:
            text = " ".join(str(block.get("text", "")) for block in result.get("content", []))
            raise ProbeError(f"{each.tool} was not answered: {text}")
        return compared_answer(result)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise failures between us and the private carpool as `ProbeError`."""
    try:
        yield
    except PrivateCarpoolError as error:
        raise ProbeError(str(error)) from None
    except (ControlClientError, AnsweredError) as error:
        raise ProbeError(f"the probe's own carpool: {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProbeError("an answer of the server or of the probe's own carpool is not understood") from None


def _definition(raw: Raw) -> _Definition:
    """A tool's definition; one of another shape is not chosen by itself, but may be named."""
    try:
        return msgspec.json.decode(raw, type=_Definition)
    except msgspec.ValidationError:
        name = msgspec.json.decode(raw).get("name")
        return _Definition(name=str(name), schema=_Schema(required=[None]))
