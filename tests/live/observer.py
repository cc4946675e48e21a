"""A good server that tells what it has seen, so that tests need no clocks. Standard library only.

Tools: `echo(text)`; `wait(gate)` answers when `open(gate)` was called, also after a cancel (late, then),
unless `obeys`; `hold(seconds, party, until)` waits until `party` calls are inside, then so long, then until
there is a file `until`; `steps(count, text, delay_s, until)` sends progress, so often or until there is that
file, and answers; `environ(name)`; `say(text)` writes to stderr; `seen()` tells everything counted so far.
Options: `--greet-when FILE` greets only once the file is there; `--tool NAME` offers one more;
`--order FILE` gets a line for each call, with its `text`.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from itertools import count
from typing import Any

Json = dict[str, Any]
TOOLS = ["echo", "wait", "open", "hold", "steps", "environ", "say", "seen"]
lock = threading.Lock()
gates: dict[str, threading.Event] = {}
parties: dict[int, threading.Barrier] = {}
cancelled: dict[Any, threading.Event] = {}
inside = 0
most = 0
methods: Counter[str] = Counter()
order: list[str] = []
cancels: list[Any] = []
ids: list[Any] = []


def send(message: Json) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with lock:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def gate(name: str) -> threading.Event:
    with lock:
        return gates.setdefault(name, threading.Event())


def there(arguments: Json) -> bool:
    """The file that the call waits for, if it waits for one: also where nobody is let in to open a gate."""
    return "until" not in arguments or os.path.exists(arguments["until"])


def work(name: str, arguments: Json, token: Any, gone: threading.Event) -> str | None:
    """The text of the answer; None: there shall be none."""
    if name == "wait":
        gates_open = gate(arguments.get("gate", ""))
        if arguments.get("obeys"):
            while not gates_open.wait(0.01):
                if gone.is_set():
                    return None
        gates_open.wait(120)
        return "opened"
    if name == "hold":
        party = int(arguments.get("party", 1))
        with lock:
            barrier = parties.setdefault(party, threading.Barrier(party))
        barrier.wait(60)
        time.sleep(arguments.get("seconds", 0.2))
        while not there(arguments):
            time.sleep(0.01)
        return "held"
    for at in count() if "until" in arguments else range(int(arguments.get("count", 3))):
        if "until" in arguments and there(arguments):
            break
        if arguments.get("delay_s") and gone.wait(arguments["delay_s"]):
            return None
        if token is not None:
            told = {"progressToken": token, "progress": at + 1, "message": arguments.get("text", "")}
            send({"method": "notifications/progress", "params": told})
    return str(arguments.get("text", "stepped"))


def busy(request: Json, name: str, arguments: Json, gone: threading.Event) -> None:
    global inside, most
    with lock:
        inside += 1
        most = max(most, inside)
    said = work(name, arguments, (request["params"].get("_meta") or {}).get("progressToken"), gone)
    with lock:
        inside -= 1
    if said is not None:
        answer(request, said)


def answer(request: Json, said: str) -> None:
    send({"id": request["id"], "result": {"content": [{"type": "text", "text": said}], "isError": False}})


def call(request: Json) -> None:
    name, arguments = request["params"]["name"], request["params"].get("arguments") or {}
    ids.append((request["params"].get("_meta") or {}).get("carpool/call"))
    order.append(str(arguments.get("text", name))[:100])
    if "--order" in sys.argv and name != "seen":
        with open(sys.argv[sys.argv.index("--order") + 1], "a") as file:
            file.write(order[-1] + "\n")
    if name in {"wait", "hold", "steps"}:
        gone = cancelled[request["id"]] = threading.Event()
        threading.Thread(target=busy, args=(request, name, arguments, gone), daemon=True).start()
        return
    said = str(arguments.get("text", name))
    if name == "open":
        gate(arguments.get("gate", "")).set()
    elif name == "environ":
        said = os.environ.get(arguments["name"], "")
    elif name == "say":
        print(said, file=sys.stderr, flush=True)
    elif name == "seen":
        with lock:
            facts = {"pid": os.getpid(), "inside": inside, "most": most, "methods": dict(methods)}
        said = json.dumps({**facts, "order": order, "cancels": cancels, "ids": ids, "cwd": os.getcwd()})
    answer(request, said)


def handle(message: Json) -> None:
    method = message.get("method", "")
    methods[method] += 1
    if method == "notifications/cancelled":
        cancels.append(message["params"]["requestId"])
        cancelled.get(message["params"]["requestId"], threading.Event()).set()
    if "id" not in message or not method:
        return
    if method == "initialize":
        while "--greet-when" in sys.argv and not os.path.exists(sys.argv[sys.argv.index("--greet-when") + 1]):
            time.sleep(0.01)
        version = message["params"]["protocolVersion"]
        who = {"name": "observer", "version": "1"}
        result: Json = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": who}
    elif method == "tools/call":
        call(message)
        return
    elif method == "tools/list":
        more = [sys.argv[at + 1] for at, word in enumerate(sys.argv) if word == "--tool"]
        schema = {"type": "object"}
        listed = [
            {"name": name, "description": f"{name}.", "inputSchema": schema} for name in [*TOOLS, *more]
        ]
        result = {"tools": listed}
    else:
        result = {}
    send({"id": message["id"], "result": result})


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        handle(json.loads(line))
