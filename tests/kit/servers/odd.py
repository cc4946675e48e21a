# mypy: ignore-errors
"""A server of many oddities, for runs of real agent programs: everything that a program may treat in its own way.

Tools answer with 200 KB, an image, structure with and without text, links, errors of both kinds, their process
and environment; they take long with and without progress, ask the user, change the list of tools, and die.
Names, descriptions, a schema and the instructions are long and bear numbered marks. One tool is offered only to
clients that can be asked.

Options: `--log FILE` gets a JSON line for each start, request, notification and end of a call;
`--cold FILE` greets only once the file is there; `--cold-s SECONDS` greets that late; `--name NAME` is said in
the greeting and the marks; `--brief` has short instructions and none of the long tools; `--later` adds a tool
for clients that can be asked once they say that they are initialized.
"""

import base64
import json
import os
import sys
import threading
import time
import zlib

from speak import answer, greeting, lines, send, text


def option(name, otherwise=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


NAME = option("--name", "odd")
BRIEF = "--brief" in sys.argv
LOG = option("--log")
WORD = {"type": "string"}
NUMBER = {"type": "number"}
LONG_NAME = "a_tool_with_a_name_of_sixty_four_characters_as_the_longest_legal"
MARKS = 60
SCHEMA = {
    "type": "object",
    "$defs": {"point": {"type": "array", "prefixItems": [NUMBER, NUMBER]}},
    "properties": {
        "where": {"$ref": "#/$defs/point"},
        "kind": {"oneOf": [{"const": "near"}, {"const": "far"}]},
        "count": {"type": "integer", "exclusiveMinimum": 0},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["kind"],
}
lock = threading.Lock()
cancelled = {}
answers = {}
grown = 0
asks = 0
client = {}
initialized = False


def note(event, **more):
    if LOG:
        with lock, open(LOG, "a") as file:
            line = {"at": time.monotonic(), "pid": os.getpid(), "event": event, **more}
            file.write(json.dumps(line) + "\n")


def marked(what, size):
    """Text of about `size` characters, evenly marked from 1 to MARKS."""
    each = size // MARKS
    return "".join(f"[{NAME} {what} {at:02d}] ".ljust(each, ".") for at in range(1, MARKS + 1))


def png():
    def chunk(kind, data):
        whole = kind + data
        return len(data).to_bytes(4, "big") + whole + zlib.crc32(whole).to_bytes(4, "big")

    header = (8).to_bytes(4, "big") + (8).to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    rows = b"".join(b"\x00" + b"\xff\x00\x00" * 8 for _ in range(8))
    whole = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + whole).decode()


def tools():
    found = {
        "pid": ("The process of this server.", {}),
        "echo": ("The same text.", {"text": WORD}),
        "facts": ("Environment and directory of this server.", {}),
    }
    if not BRIEF:
        found |= {
            "large": ("A text of 200,000 characters.", {}),
            "image": ("A picture.", {}),
            "structured": ("Structure, with its text.", {}),
            "structured_alone": ("Structure without text.", {}),
            "links": ("A link to a resource and a resource itself.", {}),
            "fails": ("An error of the tool.", {}),
            "rejects": ("An error of the request.", {}),
            "slow": (
                "Answers late: after seconds, or once a file is there.",
                {"seconds": NUMBER, "until": WORD},
            ),
            "steps": ("Tells progress.", {"count": NUMBER, "seconds": NUMBER}),
            "asks_user": ("Asks the user.", {}),
            "grow": ("Adds a tool.", {}),
            "shrink": ("Takes the added tools away.", {}),
            "dies": ("Ends this process.", {}),
            "wordy": (marked("description", 5000), {}),
            LONG_NAME: ("A long name.", {}),
        }
    listed = [
        {"name": name, "description": said, "inputSchema": {"type": "object", "properties": properties}}
        for name, (said, properties) in found.items()
    ]
    if not BRIEF and "elicitation" in client:
        listed.append(
            {
                "name": "for_askable",
                "description": "Only there for clients that can be asked.",
                "inputSchema": {"type": "object"},
            }
        )
    if "--later" in sys.argv and initialized and "elicitation" in client:
        listed.append({"name": "added_later", "description": "Later.", "inputSchema": {"type": "object"}})
    if not BRIEF:
        listed.append({"name": "shaped", "description": "A schema of many forms.", "inputSchema": SCHEMA})
    return listed + [
        {"name": f"grown_{at}", "description": "Grown.", "inputSchema": {"type": "object"}}
        for at in range(1, grown + 1)
    ]


def call(name, arguments, request):
    """The result; `{"error": …}` for an error of the request; None: there shall be none."""
    global grown, asks
    token = (request["params"].get("_meta") or {}).get("progressToken")
    gone = cancelled[request["id"]]
    if name == "pid":
        return text(f"process {os.getpid()}")  # not a bare number, which one program reads as structure
    if name == "echo":
        return text(str(arguments.get("text", "")))
    if name == "facts":
        return text(json.dumps({"environ": dict(os.environ), "cwd": os.getcwd()}))
    if name == "large":
        return text("".join(f"{at:09d} " for at in range(20_000)))
    if name == "image":
        return {"content": [{"type": "image", "data": png(), "mimeType": "image/png"}]}
    if name == "structured":
        found = {"city": "Köln", "degrees": 7}
        return {"content": [{"type": "text", "text": json.dumps(found)}], "structuredContent": found}
    if name == "structured_alone":
        return {"content": [], "structuredContent": {"only": "structure"}}
    if name == "links":
        link = {"type": "resource_link", "uri": "odd://notes", "name": "notes", "mimeType": "text/plain"}
        inner = {"uri": "odd://inner", "mimeType": "text/plain", "text": "the resource itself"}
        return {"content": [link, {"type": "resource", "resource": inner}]}
    if name == "fails":
        return text("the tool failed on purpose", is_error=True)
    if name == "rejects":
        return {"error": {"code": -32602, "message": "the request was refused on purpose"}}
    if name == "slow":
        end = time.monotonic() + float(arguments.get("seconds") or (120 if arguments.get("until") else 1))
        while time.monotonic() < end and not os.path.exists(arguments.get("until") or ""):
            if gone.wait(0.02):
                return None
        return text("slow is done")
    if name == "steps":
        count = int(arguments.get("count") or 3)
        for at in range(1, count + 1):
            if token is not None:
                params = {"progressToken": token, "progress": at, "total": count, "message": f"step {at}"}
                send({"method": "notifications/progress", "params": params})
            if gone.wait(
                float(arguments.get("seconds") or 0.3) / count
            ):  # SDKs drop one that comes with the answer
                return None
        return text("steps are done" + (", told" if token is not None else ", not asked for"))
    if name == "asks_user":
        asks += 1
        ident, come = f"ask-{asks}", threading.Event()
        answers[ident] = (come, found := {})
        schema = {"type": "object", "properties": {"colour": WORD}, "required": ["colour"]}
        send(
            {
                "id": ident,
                "method": "elicitation/create",
                "params": {"message": "Which?", "requestedSchema": schema},
            }
        )
        while not come.wait(0.02):
            if gone.is_set():
                return None
        return text("the user said " + json.dumps(found.get("result") or found.get("error"), sort_keys=True))
    if name in {"grow", "shrink"}:
        grown = grown + 1 if name == "grow" else 0
        send({"method": "notifications/tools/list_changed"})
        return text(f"{grown} grown")
    if name == "dies":
        note("dies")
        os._exit(3)
    return text(f"{name} was called")


def serve_call(request):
    name = request["params"]["name"]
    arguments = request["params"].get("arguments") or {}
    note("call", tool=name, id=request["id"])
    result = call(name, arguments, request)
    note("answered", tool=name, id=request["id"], result=result is not None)
    if result is None:
        return
    if "error" in result:
        send({"id": request["id"], **result})
    else:
        answer(request, result)


def initialize(request):
    if late := option("--cold-s"):
        time.sleep(float(late))
    while (gate := option("--cold")) and not os.path.exists(gate):
        time.sleep(0.02)
    found = greeting(request, list_changed=True, name=NAME)
    found["instructions"] = f"Use {NAME} for tests." if BRIEF else marked("instruction", 3000)
    note("initialize", params=request["params"])
    client.update(request["params"].get("capabilities", {}))
    answer(request, found)


def handle(message):
    global initialized
    method = message.get("method")
    if method is None:
        come, found = answers.get(message.get("id"), (None, {}))
        if come is not None:
            found.update(message)
            come.set()
    elif method == "initialize":
        initialize(message)
    elif method == "tools/list":
        note("list")
        answer(message, {"tools": tools()})
    elif method == "tools/call":
        cancelled[message["id"]] = threading.Event()
        threading.Thread(target=serve_call, args=(message,), daemon=True).start()
    elif method == "notifications/initialized":
        initialized = True
        if "--later" in sys.argv:
            send({"method": "notifications/tools/list_changed"})
    elif method == "ping":
        answer(message, {})
    elif method == "notifications/cancelled":
        note("cancelled", id=message["params"].get("requestId"))
        cancelled.get(message["params"].get("requestId"), threading.Event()).set()
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": f"no method {method}"}})


note("start", argv=sys.argv[1:], environ=dict(os.environ), cwd=os.getcwd())
for line in lines():
    handle(line)
note("end")
