"""The script of a run: turns of the scripted model, with calls of tools and hooks between and during turns.

`Turn((ScriptedCall("odd", "pid"),), before=kill_broker)` kills the broker between the turn before and this
one.

Knows nothing of: how a model API says it (`tests.programs.model`), programs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Hook = Callable[[], None]


@dataclass(frozen=True)
class ScriptedCall:
    """One tool call of the model. Without `name` the model looks the tool up among those that it is
    offered.
    """

    server: str
    tool: str
    arguments: Json = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True)
class Turn:
    """One answer of the model: its calls, its text.

    `before` runs when the request for this turn has come, before it is answered. `during` runs in a thread of
    its own once the answer is sent, while the calls run.
    """

    calls: tuple[ScriptedCall, ...] = ()
    text: str = ""
    during: Hook | None = None
    before: Hook | None = None


Script = Sequence[Turn]


def turn(server: str, tool: str, /, **arguments: Any) -> Turn:
    """A turn that is one call."""
    return Turn(calls=(ScriptedCall(server, tool, arguments),))
