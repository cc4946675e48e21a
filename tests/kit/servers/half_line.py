# mypy: ignore-errors
"""Dies in the middle of writing the answer to a call."""

import os

from speak import send_bytes, serve


def call(name, arguments, request):
    send_bytes(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"te' % request["id"])
    os._exit(1)


serve({"die": "Dies in mid-line."}, call)
