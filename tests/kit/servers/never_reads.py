# mypy: ignore-errors
"""Greets and lists its tools, then never reads its stdin again."""

import time

from speak import handle, lines

for message in lines():
    handle(message, {"echo": "Never read."}, lambda *_: None)
    if message.get("method") == "tools/list":
        break
while True:
    time.sleep(3600)
