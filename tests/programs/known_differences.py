"""Differences between the arms that are faults and known. Each is an expected failure until it is mended.

A row that no longer fails turns the run red: take it out, record the program again
(`python -m tests.programs.record NAME`) and write the page again. First turns are judged in the record alone,
since a program's patience is wall time: a new record may show another number of pairs.

Knows nothing of: how a difference shows (`tests.programs.features`, `first_turns`, `bridge_places`).
"""

from dataclasses import dataclass
from typing import Final

ALL: Final = ("*",)


@dataclass(frozen=True)
class KnownDifference:
    """One fault, and the features of the programs or places of bridges that show it. `ALL` is everyone that
    has the feature.
    """

    reason: str
    features: tuple[str, ...]
    programs: tuple[str, ...] = ALL

    def covers(self, program: str, feature: str) -> bool:
        return feature in self.features and (self.programs == ALL or program in self.programs)


_DOOR: Final = "in front of the HTTP door"
_SERVER: Final = "as a server of carpool"
_CONNECT: Final = "around `carpool connect`"

KNOWN: Final = (
    KnownDifference(
        "the first agent that can be asked gets no instructions from a carpool that has run for a while: "
        "`initialize` is answered before the servers are greeted for agents that can be asked",
        ("instructions in the first session",),
        ("codex", "claude-code"),
    ),
    KnownDifference(
        "carpool is one server to Claude Code, which shows 2,048 characters of instructions per "
        "server: what does not fit is lost, and nothing says so",
        ("instructions",),
        ("claude-code",),
    ),
    KnownDifference(
        "a call that tells no progress gets 60 s from carpool (`timeout_s` of the server), also from a "
        "program that waits longer: the call is cancelled, and the model reads the reason",
        ("call of 70 s without progress",),
        ("codex", "claude-code", "gemini"),
    ),
    KnownDifference(
        "a session over HTTP that has not listed tools since it came back after `restart --all` is "
        "not told that they have changed",
        ("HTTP: lists that change after restart --all",),
        ("opencode", "kilo"),
    ),
    KnownDifference(
        "pydantic-ai speaks the protocol without sessions with carpool and does not subscribe to changes, "
        "while a server of the earlier protocol tells it of them unasked",
        ("lists that change",),
        ("pydantic-ai",),
    ),
    KnownDifference(
        "langchain-openai refuses an answer with a link, directly as well, and the run ends there",
        ("links and resources",),
        ("langchain",),
    ),
    KnownDifference(
        "langchain-mcp-adapters raises at an error of a request, directly as well, and the run ends there",
        ("error of a request",),
        ("langchain",),
    ),
    KnownDifference(
        "Cline CLI speaks a version of the protocol that has no links, and carpool writes a link as text "
        "for it",
        ("links and resources",),
        ("cline",),
    ),
    KnownDifference(
        "Cline CLI answers no question, so that the call ends by its timeout; carpool refuses the "
        "question at once",
        ("question to the user",),
        ("cline",),
    ),
    KnownDifference(
        "`carpool down` ends `carpool connect`, and the program does not start an entry again: after "
        "`carpool up` it is lost to carpool until it restarts",
        ("down and up between turns",),
        (
            "codex",
            "opencode",
            "kilo",
            "gemini",
            "cline",
            "continue",
            "openai-agents",
            "pydantic-ai",
            "strands",
        ),
    ),
    KnownDifference(
        "`carpool down` ends `carpool connect`, and mcp-use starts the entry again without greeting it: "
        "carpool refuses each call that comes before `initialize`",
        ("down and up between turns",),
        ("mcp-use",),
    ),
    KnownDifference(
        "`carpool down` ends `carpool connect`, and the program ends its run when its entry ends in a call",
        ("down and up in a call",),
        ("openai-agents",),
    ),
    KnownDifference(
        "Codex makes its first request before a carpool that is only starting has answered `initialize`, "
        "while servers of its own have answered by then",
        (
            "first turn: no carpool runs",
            "first turn: no carpool runs, one server greets after 3 s",
        ),
        ("codex",),
    ),
    KnownDifference(
        "on a busy machine Claude Code makes its first request before a carpool that is only starting has "
        "answered `initialize`, while servers of its own have answered by then",
        (
            "first turn: no carpool runs",
            "first turn: no carpool runs, one server greets after 3 s",
        ),
        ("claude-code",),
    ),
    KnownDifference(
        "Cline CLI waits less than three seconds for an entry, and on a busy machine a carpool that is only "
        "starting has not answered `initialize` by then",
        (
            "first turn: no carpool runs",
            "first turn: no carpool runs, one server greets after 3 s",
        ),
        ("cline",),
    ),
    KnownDifference(
        "pydantic-ai ends its run without a request when an entry is not ready in time, directly as well "
        "with a server of 16 s: on a busy machine a carpool that starts and waits for one late server is not",
        ("first turn: no carpool runs, one server greets after 3 s",),
        ("pydantic-ai",),
    ),
    KnownDifference(
        "carpool answers the first list of tools once every server has greeted, or after `list_wait_s`: one "
        "server that greets late holds back the tools of all others, and the program does not wait so long",
        ("first turn: carpool runs, one new server greets after 16 s",),
        ("codex", "claude-code"),
    ),
    KnownDifference(
        "sessions over HTTP do not survive `restart --all` or `down` and `up`, and the bridge does not greet "
        "again",
        ("restart --all in a call", "restart --all between calls", "down and up between calls"),
        (f"supergateway {_DOOR}", f"mcp-proxy {_DOOR}", f"mcpo {_DOOR}"),
    ),
    KnownDifference(
        "`carpool down` ends `carpool connect`, and the bridge does not start it again: after `carpool up` "
        "each call fails until the bridge is started again",
        ("down and up between calls",),
        (f"mcp-proxy {_CONNECT}",),
    ),
    KnownDifference(
        "carpool asks a server for its list again when the server tells of a change or starts, and the "
        "bridge does not tell of it",
        ("a client that asks again gets the new list",),
        (f"supergateway {_SERVER}", f"mcp-proxy {_SERVER}"),
    ),
    KnownDifference(
        "the bridge does not greet again when its HTTP server has forgotten its session, and carpool keeps "
        "the bridge's process, also for agents that come later, while directly each agent starts a bridge of "
        "its own",
        ("the next agent after that",),
        (f"supergateway {_SERVER}", f"mcp-proxy {_SERVER}"),
    ),
    KnownDifference(
        "supergateway numbers requests anew and passes a cancel on with the number of its client: it reaches "
        "the right call only where both count alike, as they do directly",
        ("cancel reaches the server",),
        (f"supergateway {_SERVER}",),
    ),
)


def reason(program: str, feature: str) -> str:
    """Why this difference is expected; empty where it is not."""
    return next((each.reason for each in KNOWN if each.covers(program, feature)), "")
