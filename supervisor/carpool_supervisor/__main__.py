"""`python -m carpool_supervisor`: one supervisor process, started by the launcher."""

import argparse
import sys

from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.process import log_to_stderr, run_daemon
from carpool_supervisor.process import SupervisorShell


def main() -> int:
    """Run a supervisor until its lifeline says stop."""
    parser = argparse.ArgumentParser(prog="carpool_supervisor", description=__doc__)
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--lifeline", type=int, default=-1)
    arguments = parser.parse_args()
    process = f"supervisor-{arguments.name}"
    log_to_stderr(process)
    lifeline_fd: int = arguments.lifeline

    async def run() -> None:
        lifeline = Lifeline(lifeline_fd) if lifeline_fd >= 0 else None
        await SupervisorShell(arguments.runtime_dir, arguments.name, lifeline).run()

    return run_daemon(process, run)


if __name__ == "__main__":
    sys.exit(main())
