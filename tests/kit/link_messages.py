"""Messages of the link for tests of its encoding, its peers and its transports.

Owns one example of each message that these tests send. Knows nothing of: what a test is about.
"""

from carpool_protocol.ids import CallId, Epoch, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import LINK_VERSION, Call, CallAnswered, Hello


def hello(name: str, epoch: str, version: int = LINK_VERSION) -> Hello:
    return Hello(version=version, epoch=Epoch(epoch), name=name, pid=1, release="0.1.0")


def call(number: int, size_bytes: int = 2, meta_bytes: int = 0) -> Call:
    return Call(
        call=CallId(number),
        key=PoolKey("echo:k"),
        session=SessionId("s1"),
        method="tools/call",
        target="echo",
        params=RawJson(b"x" * size_bytes),
        meta=RawJson(b"m" * meta_bytes),
        wants_progress=False,
    )


def answered(number: int, size_bytes: int = 2) -> CallAnswered:
    return CallAnswered(call=CallId(number), is_error=False, body=RawJson(b"y" * size_bytes))
