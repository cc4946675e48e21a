# mypy: ignore-errors
"""Takes its time, concurrently, and numbers its calls in the order in which they reach it.

Tools: `take(seconds)` answers with its number and how many have come by now; `keep(seconds, load)` the same,
whatever the size of `load`.
"""

import heapq
import os
import select
import sys
import time

from speak import answer, handle, text

waiting = []
numbers = 0


def call(name, arguments, request):
    global numbers
    numbers += 1
    due = time.monotonic() + arguments.get("seconds", 0.2)
    heapq.heappush(waiting, (due, numbers, {"id": request["id"]}))


import json

rest = b""
while True:
    wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
    if select.select([0], [], [], wait)[0]:
        data = os.read(0, 1 << 20)
        if not data:
            sys.exit()
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            handle(json.loads(line), {"take": "Takes its time.", "keep": "Takes a load."}, call)
    while waiting and waiting[0][0] <= time.monotonic():
        _, number, request = heapq.heappop(waiting)
        answer(request, text(f"{number} {numbers}"))
