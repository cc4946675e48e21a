# mypy: ignore-errors
"""Before each right answer: answers with ids nobody gave, or of another JSON type, or with none."""

from speak import send, serve, text


def call(name, arguments, request):
    wrong = text("for somebody else")
    for id_ in (987654321, str(request["id"]), request["id"] + 0.5, "x", None, True, [1], {"a": 1}):
        send({"id": id_, "result": wrong})
    send({"id": -1, "error": {"code": 1, "message": "for somebody else"}})
    return text(arguments.get("text", ""))


serve({"echo": "Echoes, after nonsense."}, call)
