# mypy: ignore-errors
"""Answers calls, and writes lines to stdout for ever beside that (100 each half millisecond): junk, or log messages with `--log`."""

import sys
import threading
import time

from speak import send_bytes, serve, text

JUNK = b"Server running on stdio, and it has much to say\n" * 100
LOG = (
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"it goes on"}}\n'
    * 100
)


def babble():
    while True:
        send_bytes(LOG if "--log" in sys.argv else JUNK)
        time.sleep(0.0005)  # so that the answer to a call gets the lock


def call(name, arguments, request):
    return text(arguments.get("text", ""))


threading.Thread(target=babble, daemon=True).start()
serve({"echo": "Echoes, between its lines."}, call)
