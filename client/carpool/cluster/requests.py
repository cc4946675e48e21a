"""Requests of `carpool cluster` to the node's process of this machine, over its socket.

Knows nothing of: what the process does about them.
"""

import socket
from typing import Final, Literal

import msgspec

from carpool_protocol.bootstrap import paths, peer_credentials

ANSWER_S: Final = 10.0
_NO_NODE: Final = (
    "this machine is in no cluster, or its node's process does not answer (`carpool logs --daemon`)"
)


class NodeRequestError(Exception):
    """The process refused, or is not there. The text says what to do."""


class _Answer(msgspec.Struct):
    said: str = ""
    refused: str = ""


def request(directory: str, act: Literal["drain", "undrain", "leave"], node: str) -> str:
    """Ask for one thing and return the answer, a sentence. `node`: empty for this one."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(paths.node_socket(directory))
            if not peer_credentials.is_ours(sock):
                raise NodeRequestError(f"nothing was said to the socket: {peer_credentials.NOT_OURS}")
            sock.sendall(msgspec.json.encode({"act": act, "node": node}) + b"\n")
            with sock.makefile("rb") as lines:
                answer = msgspec.json.decode(lines.readline(), type=_Answer)
    except (OSError, msgspec.MsgspecError):
        raise NodeRequestError(_NO_NODE) from None
    if answer.refused:
        raise NodeRequestError(answer.refused)
    return answer.said
