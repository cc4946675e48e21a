# mypy: ignore-errors
"""It answers each method with the text that a file has for it: `recorded.py FILE`, a JSON object of texts."""

import json
import sys

from speak import lines, send_bytes

with open(sys.argv[1], encoding="utf-8") as file:
    told = json.load(file)

for request in lines():
    if "id" in request and "method" in request:
        result = told.get(request["method"], "{}")
        send_bytes(
            b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (json.dumps(request["id"]).encode(), result.encode())
        )
