# mypy: ignore-errors
"""Looks at what its client declares, as server-everything and the filesystem server do.

Tool `told`: this process and the roots it was given, as JSON; null where the client declared none. Roots are
asked for right after initialization, outside any call. `ask` is offered to clients that can be asked only.
"""

import json
import os
import sys

from speak import handle, lines, send, text

declared = {}
roots = None


def tools():
    return {"told": "", **({"ask": ""} if "sampling" in declared and "--ask" in sys.argv else {})}


def call(name, arguments, request):
    return text(json.dumps({"pid": os.getpid(), "roots": roots}))


for message in lines():
    if message.get("method") == "initialize":
        declared = message["params"].get("capabilities", {})
    if message.get("method") == "notifications/initialized" and "roots" in declared:
        send({"id": "its-roots", "method": "roots/list"})
    if message.get("id") == "its-roots":
        roots = [root["uri"] for root in message["result"]["roots"]]
    handle(message, tools, call)
