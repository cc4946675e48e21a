# mypy: ignore-errors
"""Sends `sampling/createMessage` during a call of `ask`, and reports the answer it got as the result.

Asks one at a time and answers several calls at once: which ask belongs to which call, only it knows.
"""

import itertools
import json

from speak import answer, handle, lines, send, text

waiting = {}
ids = itertools.count(1)


def call(name, arguments, request):
    ask = f"ask-{next(ids)}"
    waiting[ask] = request
    content = {"type": "text", "text": arguments.get("text", "")}
    params = {"messages": [{"role": "user", "content": content}], "maxTokens": 10}
    send({"id": ask, "method": "sampling/createMessage", "params": params})


for message in lines():
    if "method" not in message and message.get("id") in waiting:
        got = {key: message[key] for key in ("result", "error") if key in message}
        answer(waiting.pop(message["id"]), text(json.dumps(got)))
    else:
        handle(message, {"ask": "Asks the client's model."}, call)
