# mypy: ignore-errors
"""Answers that break the protocol or our decoder: `bad(kind)`, the kinds are the keys of `BODIES`."""

from speak import send_bytes, serve, text

BODIES = {
    "string": b'"result":"just a string"',
    "text": b'"result":{"text":"bare text"}',
    "result": b'"result":{"result":"nested"}',
    "number": b'"result":42',
    "null": b'"result":null',
    "list": b'"result":[1,2]',
    "content_string": b'"result":{"content":"no list"}',
    "no_result": b'"neither":1',
    "both": b'"result":{"content":[]},"error":{"code":1,"message":"both"}',
    "error_string": b'"error":"no object"',
    "error_no_code": b'"error":{"message":"no code"}',
    "surrogate": b'"result":{"content":[{"type":"text","text":"cut emoji \\ud83d"}]}',
    "nan": b'"result":{"content":[{"type":"text","text":"n"}],"structuredContent":{"n":NaN}}',
    "invalid_utf8": b'"result":{"content":[{"type":"text","text":"\xff\xfe"}]}',
    "depth": b'"result":{"content":[],"deep":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "control": b'"result":\r{"content":\t[{"type":"text","text":"white space"}]}',
    "huge_number": b'"result":{"content":[],"structuredContent":{"n":1e999,"m":' + b"9" * 5000 + b"}}",
}


def call(name, arguments, request):
    body = BODIES.get(arguments.get("kind"))
    if body is None:
        return text(" ".join(BODIES))
    send_bytes(b'{"jsonrpc":"2.0",' + body + b',"id":%d}\n' % request["id"])


serve({"bad": "A bad answer of some kind."}, call)
