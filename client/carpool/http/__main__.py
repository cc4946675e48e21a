"""`python -m carpool.http`: the door's process, started by the launcher.

Exit codes: 0 told to stop; the others are those of `carpool.launcher.http_door`.
"""

import argparse
import sys

from carpool.http.left_connections import end_unserved
from carpool.http.log import log_line
from carpool.launcher.http_door import EXIT_CONFIG
from carpool_protocol.bootstrap.extras import install_command, is_installed


def main() -> int:
    """Serve until the lifeline says stop."""
    if not is_installed("http"):
        log_line(f"the HTTP door needs more than is installed: {install_command('http')}", "error")
        end_unserved(_connections(sys.argv[1:]))
        return EXIT_CONFIG
    from carpool.http.process import run

    return run(sys.argv[1:])


def _connections(arguments: list[str]) -> int:
    """Return the descriptor of what an earlier door has left; -1 if there is none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--connections", type=int, default=-1)
    found: int = parser.parse_known_args(arguments)[0].connections
    return found


if __name__ == "__main__":
    sys.exit(main())
