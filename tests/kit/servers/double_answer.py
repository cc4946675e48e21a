# mypy: ignore-errors
"""Answers each call twice, differently; with `error: true` the second time is an error."""

from speak import answer, send, serve, text


def call(name, arguments, request):
    answer(request, text(arguments.get("text", "")))
    if arguments.get("error"):
        send({"id": request["id"], "error": {"code": 1, "message": "second answer"}})
    else:
        answer(request, text("second answer"))


serve({"echo": "Echoes, twice."}, call)
