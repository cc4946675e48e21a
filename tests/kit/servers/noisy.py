# mypy: ignore-errors
"""Writes junk to stdout between its answers: banners, blank lines, no UTF-8, JSON that is no message."""

from speak import send_bytes, serve, text

JUNK = (
    b"Server running on stdio\n\n\r\n\x1b[32mgreen\x1b[0m\n\xff\xfe\x00broken\n"
    b'42\n"words"\n[]\n{}\n{"jsonrpc":"2.0"}\n{"jsonrpc":"2.0","id":\n' + b"[" * 3000 + b"\n"
)


def call(name, arguments, request):
    send_bytes(JUNK)
    return text(arguments.get("text", ""))


send_bytes(JUNK)
serve({"echo": "Echoes, noisily."}, call)
