# mypy: ignore-errors
"""Tools that model APIs have trouble with: names, schemas and results. Answers with the arguments it was given.

`look.up (now)`: a name no model API takes; refuses `null`, as servers that validate do. `either`: a union at the
top. `picture`: text, an image, a resource. `meet(count)`: answers once so many of its calls are inside.
"""

import json

from speak import answer, greeting, handle, lines, text

LONG = "a_name_that_is_longer_than_any_model_api_takes_by_a_good_piece_of_text"
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "unit": {"enum": ["C", "F"], "default": "C"},
        "$in detail": {"type": "boolean"},
        "days": {"type": "array", "items": {"$ref": "#/$defs/Day"}},
    },
    "required": ["city"],
    "$defs": {"Day": {"type": "object", "properties": {"at": {"type": ["integer", "string"]}}}},
}
EITHER = {
    "anyOf": [
        {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
        {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    ]
}
COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
TOOLS = {
    "look.up (now)": {"description": "Looks.", "inputSchema": CITY},
    "either": {"description": "Takes one of two.", "inputSchema": {"type": "object", **EITHER}},
    "picture": {"inputSchema": {"type": "object"}},
    "meet": {"inputSchema": COUNT},
    LONG: {"inputSchema": {"type": "object"}},
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
PICTURE = [
    {"type": "text", "text": "a dot"},
    {"type": "image", "mimeType": "image/png", "data": PNG},
    {"type": "resource_link", "uri": "file:///dot.png", "name": "dot"},
]
meeting = []


def call(name, arguments, request):
    if name == "picture":
        return {"content": PICTURE}
    if name == "meet":
        meeting.append(request)
        if len(meeting) == arguments["count"]:
            for each in meeting:
                answer(each, text("met"))
            meeting.clear()
        return None
    if None in arguments.values():
        return text("null is not of type 'string'", is_error=True)
    return text(json.dumps([name, arguments]))


for message in lines():
    if message.get("method") == "initialize":
        answer(message, greeting(message))
    elif message.get("method") == "tools/list":
        answer(message, {"tools": [{"name": name, **about} for name, about in TOOLS.items()]})
    else:
        handle(message, TOOLS, call)
