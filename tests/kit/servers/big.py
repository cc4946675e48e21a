# mypy: ignore-errors
"""Answers with 16 MiB of text, or with `bytes` of it. `id` comes last, as the TypeScript SDK writes it."""

import json

from speak import send_bytes, serve


def call(name, arguments, request):
    size = arguments.get("bytes", 16 * 1024 * 1024)
    send_bytes(
        b'{"result":{"content":[{"type":"text","text":"'
        + b"x" * size
        + b'"}]},"jsonrpc":"2.0","id":'
        + json.dumps(request["id"]).encode()
        + b"}\n"
    )


serve({"big": "A big answer."}, call)
