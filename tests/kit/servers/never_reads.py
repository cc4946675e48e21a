# mypy: ignore-errors
"""Greets and lists its tools, then never reads its stdin again; it ends when that is closed."""

import select

from speak import handle, lines

for message in lines():
    handle(message, {"echo": "Never read."}, lambda *_: None)
    if message.get("method") == "tools/list":
        break
poll = select.poll()
poll.register(0, 0)  # a hang-up is told all the same
poll.poll()
