# mypy: ignore-errors
"""Stateful: `increment` counts calls of this process, `read` tells the count."""

from speak import serve, text

count = 0


def call(name, arguments, request):
    global count
    count += name == "increment"
    return text(str(count))


serve({"increment": "One more.", "read": "How many."}, call)
