"""Server-sent events of a model's streamed answer.

Knows nothing of: the events of an API.
"""

import json
from collections.abc import Iterable

from tests.programs.model.requests import ModelReply
from tests.programs.script import Json


def server_sent_events(events: Iterable[Json], *, named: bool = False, end: bytes = b"") -> ModelReply:
    """Write each event as a chunk of its own; `named` events have their type on a line before the data."""
    chunks = [
        (f"event: {event['type']}\n" if named else "").encode()
        + b"data: "
        + json.dumps(event).encode()
        + b"\n\n"
        for event in events
    ]
    return ModelReply("text/event-stream", (*chunks, end) if end else tuple(chunks))
