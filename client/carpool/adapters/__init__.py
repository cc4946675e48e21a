"""Between MCP and the function calling of model APIs: plain JSON in, plain JSON out.

Owns nothing itself; each file says what it owns. All of it but `answers` is pure: no I/O, no clock, and no
package of a model's provider. Nothing that is given is changed; what comes back may share parts with it.

A text of a result is wanted often and alone, so the rest is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from carpool.adapters.text import as_success, flatten

if TYPE_CHECKING:
    from carpool.adapters.answers import Caller, answer_anthropic, answer_openai
    from carpool.adapters.calls import ModelCall, answered, anthropic_calls, failure, openai_calls
    from carpool.adapters.read_tools import ToolListError, mcp_tools
    from carpool.adapters.tools import Toolbox, UnknownToolError

__all__ = [
    "Caller",
    "ModelCall",
    "ToolListError",
    "Toolbox",
    "UnknownToolError",
    "answer_anthropic",
    "answer_openai",
    "answered",
    "anthropic_calls",
    "as_success",
    "failure",
    "flatten",
    "mcp_tools",
    "openai_calls",
]

_HOMES = {
    **dict.fromkeys(("Caller", "answer_anthropic", "answer_openai"), "answers"),
    **dict.fromkeys(("ModelCall", "answered", "anthropic_calls", "failure", "openai_calls"), "calls"),
    **dict.fromkeys(("ToolListError", "mcp_tools"), "read_tools"),
    **dict.fromkeys(("Toolbox", "UnknownToolError"), "tools"),
}


def __getattr__(name: str) -> object:
    """PEP 562: what is in another file of this package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
