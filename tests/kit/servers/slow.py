# mypy: ignore-errors
"""Takes its time, concurrently: a thread for each call.

Tools: `sleep(seconds)`; `progress(times, delay_s)` sends that many progress notifications, then answers.
`notifications/cancelled` is heeded: the call ends unanswered, as the specification asks.
"""

import threading

from speak import answer, handle, lines, send, text

cancelled = {}


def work(name, arguments, request):
    gone = cancelled[request["id"]]
    token = (request["params"].get("_meta") or {}).get("progressToken")
    if name == "sleep":
        gone.wait(arguments.get("seconds", 0.2))
    times = arguments.get("times", 3) if name == "progress" else 0
    for at in range(times):
        if gone.wait(arguments.get("delay_s", 0.05)):
            break
        if token is not None:
            params = {"progressToken": token, "progress": at + 1, "total": times, "message": f"step {at + 1}"}
            send({"method": "notifications/progress", "params": params})
    if not cancelled.pop(request["id"]).is_set():
        answer(request, text(f"{name} done"))


def call(name, arguments, request):
    cancelled[request["id"]] = threading.Event()
    threading.Thread(target=work, args=(name, arguments, request), daemon=True).start()


for message in lines():
    if message.get("method") == "notifications/cancelled":
        event = cancelled.get(message["params"].get("requestId"))
        if event is not None:
            event.set()
    handle(message, {"sleep": "Sleeps.", "progress": "Tells its progress."}, call)
