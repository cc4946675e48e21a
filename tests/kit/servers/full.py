# mypy: ignore-errors
"""Prompts, resources, templates and completions on the standard library: `full.py NAME`.

Everything it says has NAME in it, so a reader knows whose answer it got. `shared://doc` and the template
`shared://doc/{part}` are listed by every copy. Prompts: `tell(who)`; `rich` with every kind of content;
`hang`, which answers only after `open`. Resources: `shared://doc`, `NAME://own`, and `NAME://hang`.
A progress token gets one progress first. Tools: `change(family)` offers one more of a family and says so;
`seen` tells what came; `open` lets what hangs go on; `rich`.
`--mute METHOD` never answers that method.
"""

import json
import sys

from speak import answer, greeting, handle, lines, send, text

name = sys.argv[1]
muted = {sys.argv[at + 1] for at, word in enumerate(sys.argv) if word == "--mute"}
more = {"prompts": 0, "resources": 0}
hanging = []
seen = []
RICH = [
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "shared://doc", "name": "doc", "description": "The document."},
    {"type": "resource", "resource": {"uri": "shared://doc", "mimeType": "text/plain", "text": name}},
    {"type": "text", "text": name},
]


def contents(uri):
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"{name} has {uri}"}]}


def prompt(params):
    if params["name"] == "rich":
        return {"messages": [{"role": "user", "content": block} for block in RICH]}
    said = f"{name} tells {params['name']} {json.dumps(params.get('arguments'))}"
    return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}


def lists(method):
    if method == "prompts/list":
        names = ["tell", "rich", "hang", *(f"more_{at}" for at in range(more["prompts"]))]
        who = [{"name": "who", "required": True}]
        return {"prompts": [{"name": it, "description": name, "arguments": who} for it in names]}
    if method == "resources/list":
        grown = [f"{name}://more/{at}" for at in range(more["resources"])]
        uris = ["shared://doc", f"{name}://own", f"{name}://hang", *grown]
        return {"resources": [{"uri": uri, "name": name} for uri in uris]}
    templates = ["shared://doc/{part}", f"{name}://parts/{{part}}"]
    return {"resourceTemplates": [{"uriTemplate": it, "name": name} for it in templates]}


def call(tool, arguments, request):
    if tool == "change":
        more[arguments["family"]] += 1
        send({"method": f"notifications/{arguments['family']}/list_changed"})
    elif tool == "open":
        while hanging:
            serve(hanging.pop())
    elif tool == "rich":
        return {"content": RICH}
    return text(json.dumps(seen))


def serve(message):
    params = message.get("params") or {}
    if message["method"] == "prompts/get":
        answer(message, prompt(params))
    elif params["uri"].endswith("nothing"):
        send({"id": message["id"], "error": {"code": -32002, "message": f"{name} has no such resource"}})
    else:
        answer(message, contents(params["uri"]))


for message in lines():
    method, params = message.get("method"), message.get("params") or {}
    seen.append([method, params.get("requestId", message.get("id"))])
    if method in muted:
        continue
    if method == "initialize":
        greeted = greeting(message, list_changed=True, name=name)
        flags = {family: {"listChanged": True} for family in ("prompts", "resources")}
        greeted["capabilities"] |= {**flags, "completions": {}}
        answer(message, greeted)
    elif method in {"prompts/list", "resources/list", "resources/templates/list"}:
        answer(message, lists(method))
    elif method == "completion/complete":
        values = [name, json.dumps(params["ref"]), params["argument"]["value"]]
        answer(message, {"completion": {"values": values}})
    elif method in {"prompts/get", "resources/read"}:
        token = (params.get("_meta") or {}).get("progressToken")
        if token is not None:
            told = {"progressToken": token, "progress": 1, "message": name}
            send({"method": "notifications/progress", "params": told})
        if (params.get("name") or params.get("uri")).endswith("hang"):
            hanging.append(message)
        else:
            serve(message)
    else:
        handle(message, {"change": "", "seen": "", "open": "", "rich": ""}, call)
