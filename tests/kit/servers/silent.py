# mypy: ignore-errors
"""Greets and lists, but never answers a call. Still answers pings; with `--dead` not even those."""

import sys

from speak import handle, lines

for message in lines():
    if "--dead" in sys.argv and message.get("method") == "ping":
        continue
    handle(message, {"wait": "Never answers."}, lambda *_: None)
