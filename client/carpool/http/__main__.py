"""`python -m carpool.http`: the door's process, started by the launcher.

Exit codes: 0 told to stop; the others are those of `carpool.door_watch`.
"""

import sys
from importlib.util import find_spec

from carpool.door_watch import EXIT_CONFIG

NO_EXTRA = "the HTTP door needs more than is installed: `pip install 'carpool[http]'`"


def main() -> int:
    """Serve until the lifeline says stop."""
    if find_spec("httptools") is None:
        print(NO_EXTRA, file=sys.stderr)
        return EXIT_CONFIG
    from carpool.http.process import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
