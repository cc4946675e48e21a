# mypy: ignore-errors
"""Writes down what it executes: `tally.py LEDGER [--greet-when FILE]`. Any number of calls at once.

Every call of `run` adds its `mark` as a line to LEDGER before anything else, so that a reader of the file knows
what was executed, how often, whatever became of this process. Then, as `how` says: `at once`; `nap` answers after
`nap_s`; `hold` once `gate` (a file) is there; `half` writes half of its answer, and the rest (before any other
line) once the gate is there; `ask` samples first, adds `MARK in` to LEDGER and answers with what was said. Heeds
no cancel. The text of an answer is `MARK COUNT`, COUNT being the calls of this process so far, and with `bytes` so
much more text.
"""

import json
import os
import sys
import threading
import time

from speak import _lock, answer, handle, lines, send, text

ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
door = sys.argv[sys.argv.index("--greet-when") + 1] if "--greet-when" in sys.argv else ""
asked = {}
count = 0


def note(line):
    os.write(ledger, line.encode() + b"\n")


def until(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def napped(request, said, nap_s):
    time.sleep(nap_s)
    answer(request, text(said))


def held(request, said, gate):
    until(gate)
    answer(request, text(said))


def halved(request, said, gate, mark):
    data = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": text(said)}).encode() + b"\n"
    with _lock:
        os.write(1, data[: len(data) // 2])
        note(f"{mark} half")
        until(gate)
        os.write(1, data[len(data) // 2 :])


def call(name, arguments, request):
    global count
    count += 1
    mark, gate = arguments["mark"], arguments.get("gate", "")
    note(mark)
    said = f"{mark} {count}" + arguments.get("bytes", 0) * "x"
    how = arguments.get("how", "at once")
    if how == "at once":
        return text(said)
    if how == "ask":
        asked[mark] = request
        content = {"type": "text", "text": mark}
        params = {"messages": [{"role": "user", "content": content}], "maxTokens": 10}
        send({"id": mark, "method": "sampling/createMessage", "params": params})
        return None
    target, more = {
        "nap": (napped, (arguments.get("nap_s"),)),
        "hold": (held, (gate,)),
        "half": (halved, (gate, mark)),
    }[how]
    threading.Thread(target=target, args=(request, said, *more), daemon=True).start()


for message in lines():
    if "method" not in message:
        request = asked.pop(message.get("id"), None)
        if request is not None:
            said = message["result"]["content"]["text"] if "result" in message else "an error"
            answer(request, text(f"{request['params']['arguments']['mark']} {said}"))
        continue
    if message.get("method") == "initialize" and door:
        until(door)
    handle(message, {"run": "Adds the mark to the ledger."}, call)
