# mypy: ignore-errors
"""Writes far more than anybody wants, `mib` MiB of it, and then answers properly.

Tools: `line` answers in one line of that size; `logs` sends log messages, `progress` progress notifications,
`strangers` answers to calls that nobody made, `junk` lines that are no JSON.
"""

import json

from speak import answer, send_bytes, serve, text

CHUNK = b"x" * (1 << 20)


def repeated(line, size):
    burst = line * max(1, (1 << 20) // len(line))
    while size > 0:
        send_bytes(burst)
        size -= len(burst)


def call(name, arguments, request):
    size = int(arguments.get("mib", 1024) * (1 << 20))
    words = b"w" * int(arguments.get("words", 800))
    if name == "line":
        id_ = json.dumps(request["id"]).encode()
        send_bytes(b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"' % id_)
        while size > 0:
            send_bytes(CHUNK[:size])
            size -= len(CHUNK)
        send_bytes(b'"}]}}\n')
        return
    if name == "logs":
        said = b'"method":"notifications/message","params":{"level":"error","data":"%s"}' % words
    elif name == "progress":
        token = json.dumps((request["params"].get("_meta") or {}).get("progressToken")).encode()
        head = b'"method":"notifications/progress","params":{"progressToken":%s' % token
        said = head + b',"progress":1,"message":"%s"}' % words
    elif name == "strangers":
        said = b'"id":987654321,"result":{"content":[],"words":"%s"}' % words
    if name == "junk":
        repeated(b"no JSON at all: %s\n" % words, size)
    else:
        repeated(b'{"jsonrpc":"2.0",%s}\n' % said, size)
    answer(request, text(name))


names = ("line", "logs", "progress", "strangers", "junk")
serve({name: "A flood." for name in names}, call)
