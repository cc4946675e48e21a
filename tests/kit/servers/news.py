# mypy: ignore-errors
"""Tells unasked: log messages and changes of resources, and what it was asked to tell."""

import json

from speak import answer, greeting, lines, send, text, tool

watched = set()
level = ""
names = ("touch", "log", "known")

for message in lines():
    method = message.get("method")
    params = message.get("params") or {}
    if method == "initialize":
        result = greeting(message)
        result["capabilities"] = {"tools": {}, "logging": {}, "resources": {"subscribe": True}}
        answer(message, result)
    elif method == "tools/list":
        answer(message, {"tools": [tool(name) for name in names]})
    elif method == "resources/list":
        answer(message, {"resources": [{"uri": uri, "name": uri} for uri in ("news:///a", "news:///b")]})
    elif method == "logging/setLevel":
        level = params["level"]
        answer(message, {})
    elif method == "resources/subscribe":
        watched.add(params["uri"])
        answer(message, {})
    elif method == "resources/unsubscribe":
        watched.discard(params["uri"])
        answer(message, {})
    elif method == "tools/call":
        arguments = params.get("arguments") or {}
        if params["name"] == "touch":
            send({"method": "notifications/resources/updated", "params": {"uri": arguments["uri"]}})
        elif params["name"] == "log":
            send(
                {
                    "method": "notifications/message",
                    "params": {"level": arguments["level"], "data": arguments["data"]},
                }
            )
        answer(message, text(json.dumps({"watched": sorted(watched), "level": level})))
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": f"no method {method}"}})
