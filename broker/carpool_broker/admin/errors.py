"""Why a request of the command line, or one about a session's own view, is not served.

Knows nothing of: the requests, how an error is worded on the wire (`faults`).
"""


class ControlError(Exception):
    """The request cannot be served. `slug` is a fault of `faults`, `server` the one it is about."""

    def __init__(self, slug: str, detail: str, server: str = "") -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.server = server
