# mypy: ignore-errors
"""Its tool list changes, with a notification: `grow` adds a tool, `shrink` takes the last one away."""

from speak import send, serve, text

count = 0


def tools():
    return {
        "grow": "One more tool.",
        "shrink": "One less.",
        **{f"grown_{at}": "Grown." for at in range(count)},
    }


def call(name, arguments, request):
    global count
    if name in {"grow", "shrink"}:
        count = max(count + (1 if name == "grow" else -1), 0)
        send({"method": "notifications/tools/list_changed"})
    return text(str(count))


serve(tools, call, list_changed=True)
