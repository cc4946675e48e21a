"""A bridge that cannot do its work, and says why to whoever asks.

Owns the answers of such a bridge: the greeting is refused with the reason, which `carpool status` then
shows; anything else likewise. Standard output and input only, so it also works where the SDK is not
installed.

Knows nothing of: which reason it is.
"""

import sys

from carpool.bridge.error_texts import RequestTrouble, answer_line, request_in


def refuse(trouble: RequestTrouble, server: str) -> None:
    """Answer every request until end of file."""
    for line in sys.stdin.buffer:
        asked = request_in(line)
        if asked is not None:
            sys.stdout.buffer.write(answer_line(*asked, trouble, server) + b"\n")
            sys.stdout.buffer.flush()
