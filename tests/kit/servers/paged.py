# mypy: ignore-errors
"""2,500 tools in pages of 100. `--loop`: its cursor never ends, as some real ones do."""

import sys

from speak import answer, handle, lines, text, tool

COUNT, PAGE = 2500, 100

for message in lines():
    if message.get("method") != "tools/list":
        handle(message, {}, lambda name, arguments, request: text(name))
        continue
    start = int((message.get("params") or {}).get("cursor") or 0)
    page = {"tools": [tool(f"tool_{at:04}") for at in range(start, min(start + PAGE, COUNT))]}
    if "--loop" in sys.argv:
        page["nextCursor"] = str(start)
    elif start + PAGE < COUNT:
        page["nextCursor"] = str(start + PAGE)
    answer(message, page)
