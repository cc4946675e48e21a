# mypy: ignore-errors
"""Ignores SIGTERM, SIGINT, SIGHUP and the end of its stdin. Only KILL ends it."""

import signal
import time

from speak import serve, text

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
serve({"echo": "Echoes."}, lambda name, arguments, request: text(arguments.get("text", "")))
while True:
    time.sleep(3600)
