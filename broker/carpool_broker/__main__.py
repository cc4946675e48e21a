"""`python -m carpool_broker`: the broker process, started by the launcher."""

import argparse
import os
import sys

from carpool_broker.configuration import BrokenConfigError, Configuration
from carpool_broker.shell import BrokerShell
from carpool_protocol.config.load import find_config_file
from carpool_protocol.runtime.daemon_log import log_to_stderr
from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.process import run_daemon

EXIT_CONFIG = 2


def main() -> int:
    """Run the broker until its lifeline says stop. 2 when the configuration is broken."""
    parser = argparse.ArgumentParser(prog="carpool_broker", description=__doc__)
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--config", default=None)
    parser.add_argument("--lifeline", type=int, default=-1)
    arguments = parser.parse_args()
    log_to_stderr()
    try:
        configuration = Configuration(find_config_file(os.environ, arguments.config), os.environ)
    except BrokenConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the launcher shows it to whoever started it
        return EXIT_CONFIG
    lifeline_fd: int = arguments.lifeline

    async def run() -> None:
        lifeline = Lifeline(lifeline_fd) if lifeline_fd >= 0 else None
        await BrokerShell(arguments.runtime_dir, configuration, lifeline).run()

    return run_daemon("broker", run)


if __name__ == "__main__":
    sys.exit(main())
