"""Answers of a bridge that cannot do its work: each request is refused with the reason.

Owns these answers. `carpool status` shows the one to the greeting. Standard output and input only, so it
also works where the SDK is not installed.

Knows nothing of: the possible reasons.
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
