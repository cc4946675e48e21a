"""`python -m carpool.http`: the door's process, started by the launcher.

Exit codes: 0 told to stop; the others are those of `carpool.launcher.http_door`.
"""

import sys

from carpool.http.log import log_line
from carpool.launcher.http_door import EXIT_CONFIG
from carpool_protocol.bootstrap.extras import install_command, is_installed


def main() -> int:
    """Serve until the lifeline says stop."""
    if not is_installed("http"):
        log_line(f"the HTTP door needs more than is installed: {install_command('http')}", "error")
        return EXIT_CONFIG
    from carpool.http.process import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
