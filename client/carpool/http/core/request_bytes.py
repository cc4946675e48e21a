"""An HTTP request that was read, as bytes again: for a parser that is to read it anew.

Pure. Invariant: the bytes have one body of a stated length, however the request came (RFC 9112, 6).
Knows nothing of: who reads them.
"""

from collections.abc import Mapping
from typing import Final

from carpool.http.core.effects import HttpRequest

_OF_THE_BODY: Final = ("content-length", "transfer-encoding", "expect", "trailer")
"""They say how the body came, which is over."""


def head_bytes(method: bytes, url: bytes, version: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request with these headers."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", b""])


def request_bytes(request: HttpRequest, *, modern: bool) -> bytes:
    """Return a whole request. `modern`: it is of HTTP/1.1, otherwise of HTTP/1.0."""
    url = f"{request.path}?{request.query}" if request.query else request.path
    headers = {name: value for name, value in request.headers.items() if name not in _OF_THE_BODY}
    if request.body or any(name in request.headers for name in _OF_THE_BODY):
        headers["content-length"] = str(len(request.body))
    head = head_bytes(
        request.method.encode("latin-1"), url.encode("latin-1"), "1.1" if modern else "1.0", headers
    )
    return head + request.body
