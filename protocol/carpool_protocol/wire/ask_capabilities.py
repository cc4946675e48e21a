"""What an agent must have declared for a question that a server asks.

Owns the rules by which params ask for more than their method says (MCP 2025-11-25, client/sampling and
client/elicitation). Read once, where the question comes in: on the link it is said beside the params, which
stay opaque to both cores, and so to their journals.

Takes legal JSON that is free of control bytes; no bytes raise. Knows nothing of: which agent is asked, what
it declared, versions.
"""

from typing import Final

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Need
from carpool_protocol.wire.content import text_of, value_of

_NO_TOOLS: Final = frozenset({None, b"[]", b"null"})
_NO_CHOICE: Final = frozenset({None, b"{}", b"null"})

_MODES: Final[dict[str, list[Need]]] = {"form": ["elicitation.form"], "url": ["elicitation.url"]}


def needs_of(method: str, params: RawJson) -> list[Need]:
    """What an agent must have declared, all of it; empty where nothing that an agent can declare is enough.

    Sampling needs `sampling.tools` where there are tools or a choice among them. Elicitation needs its mode,
    and is of forms where it says none. There are two modes: of a third the specification says nothing, so no
    agent can have declared it and no server can have been told of it.
    """
    if method == "sampling/createMessage":
        if value_of(params, "tools") in _NO_TOOLS and value_of(params, "toolChoice") in _NO_CHOICE:
            return ["sampling"]
        return ["sampling", "sampling.tools"]
    if method == "elicitation/create":
        return _MODES.get(text_of(params, "mode") or "form", [])[:]
    return []
