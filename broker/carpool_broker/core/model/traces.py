"""The records of OpenTelemetry traces: what is known of the trace of a call, and its spans.

Knows nothing of: when a call is traced, how spans are exported.
"""

from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.ids import InstanceId

SpanKind = Literal["server", "internal", "client"]
"""The kinds of OpenTelemetry: carpool answers, waits, or asks a server."""


class CallTrace(Struct):
    """The trace of one open call."""

    trace: str
    """Its trace id, 32 hexadecimal digits; empty: the call is not sampled."""
    parent: str = ""
    """The span id that the agent gave, 16 digits; empty: the call begins its trace."""
    span: str = ""
    """The id of the span of the agent's request."""
    server_span: str = ""
    """The id of the span of the server's part, as the server got it; empty: no server has ended the call."""
    placed_at: float = 0.0
    """The time at which the call was handed to the server."""
    answered_at: float = 0.0
    instance: InstanceId = InstanceId(0)


UNSAMPLED: Final = CallTrace("")


class TracedSpan(Struct, frozen=True):
    """One span of a call that has ended."""

    name: str
    kind: SpanKind
    span: str
    parent: str
    """The id of its parent; empty: it is the root."""
    start_ago_s: float
    """How long before the end of the call it began."""
    end_ago_s: float
    attributes: dict[str, str | int]
    """Names, sizes and numbers, never values of arguments or results."""
    error: str = ""
    """Why it failed, a code; empty: it did not."""
