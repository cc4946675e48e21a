# mypy: ignore-errors
"""Pings the client: once right after it was initialized, and during each call, which it answers with what
the ping brought. Also sends a log message and a request that no client knows."""

import json

from speak import answer, handle, lines, send, text

waiting = {}


def call(name, arguments, request):
    waiting[f"ping-{request['id']}"] = request
    send({"method": "notifications/message", "params": {"level": "info", "data": "pinging"}})
    send({"id": "odd", "method": "no/such_method", "params": {}})
    send({"id": f"ping-{request['id']}", "method": "ping"})


for message in lines():
    if message.get("method") == "notifications/initialized":
        send({"id": "hello", "method": "ping"})
    if "method" not in message and message.get("id") in waiting:
        got = {key: message[key] for key in ("result", "error") if key in message}
        answer(waiting.pop(message["id"]), text(json.dumps(got)))
    else:
        handle(message, {"ping_me": "Pings back."}, call)
