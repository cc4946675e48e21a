"""`python -m carpool_broker`: the broker process, started by the launcher."""

import argparse
import logging
import os
import sys

import msgspec
from msgspec.structs import replace

from carpool_broker.config.blocking_io import TURN_S
from carpool_broker.config.configuration import Configuration
from carpool_broker.config.layers import BrokenConfigError
from carpool_broker.config.workspaces import MAX_KEPT_PROJECTS
from carpool_broker.process import BrokerShell
from carpool_broker.storage import pool_secret
from carpool_broker.storage.approval_store import ApprovalStore
from carpool_broker.storage.catalog_cache import CatalogCache
from carpool_broker.storage.override_store import OverrideStore
from carpool_broker.transport.incarnation import Incarnation, read_incarnation
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import find_config_file
from carpool_protocol.ids import SupervisorName, supervisor_name
from carpool_protocol.runtime.lifeline import Lifeline, first_line
from carpool_protocol.runtime.process import log_to_stderr, run_daemon
from carpool_protocol.runtime.variables_pipe import read_pipe

log = logging.getLogger("carpool.broker")

EXIT_FAILED, EXIT_CONFIG = 1, 2


def main() -> int:
    """Run the broker until the lifeline brings a stop command. Returns the exit code.

    2: the configuration is broken and no good reading is kept. 1: the launcher did not send the line with the
    broker's number and secret (`incarnation`). Without a lifeline that line is not needed.
    """
    parser = argparse.ArgumentParser(prog="carpool_broker", description=__doc__)
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--config", default=None)
    parser.add_argument("--supervisors", default="", help="names of all supervisors, with commas")
    parser.add_argument("--lifeline", type=int, default=-1)
    parser.add_argument("--variables", type=int, default=-1)
    arguments = parser.parse_args()
    log_to_stderr("broker")
    sys.setswitchinterval(TURN_S)
    operator = _operator_variables(arguments.variables)
    lifeline_fd: int = arguments.lifeline
    incarnation = _inherit(lifeline_fd) if lifeline_fd >= 0 else Incarnation()
    if incarnation is None:
        log.error("the launcher did not send the secret of its brokers")
        return EXIT_FAILED
    try:
        file = replace(
            find_config_file(os.environ, arguments.config),
            node_servers=paths.node_servers_file(arguments.runtime_dir),
        )
        state = paths.state_dir(os.environ, arguments.runtime_dir)
        secret, trouble = pool_secret.load_secret(state)
        if trouble:
            log.warning("%s", trouble)
        kept = CatalogCache(state, secret)
        pins = ApprovalStore(state)
        trust = paths.trust_file(state)
        switches = paths.switches_file(arguments.runtime_dir)
        board = OverrideStore(switches, incarnation.derive_key("switches").hex()[:16])
        configuration = Configuration(
            file,
            os.environ,
            trust,
            secret or incarnation.derive_key("pools"),
            kept=kept.find,
            board=board,
            pins=pins.find,
            operator=operator,
            last_good=LastGoodReadings(paths.last_good_file(arguments.runtime_dir)),
            trusted_good=LastGoodReadings(
                paths.projects_last_good_file(arguments.runtime_dir), most=MAX_KEPT_PROJECTS
            ),
        )
    except BrokenConfigError as error:
        log.error("%s", error)  # noqa: TRY400 - the launcher shows it to the user
        return EXIT_CONFIG

    async def run() -> None:
        lifeline = Lifeline(lifeline_fd) if lifeline_fd >= 0 else None
        await BrokerShell(
            arguments.runtime_dir,
            configuration,
            incarnation,
            lifeline,
            kept,
            approvals=pins,
            supervisors=_supervisors(arguments.supervisors, configuration),
        ).run()

    return run_daemon("broker", run)


def _supervisors(names: str, configuration: Configuration) -> list[SupervisorName]:
    """The names of the supervisors: as the launcher says, or for a first broker as the configuration says."""
    if names:
        return [SupervisorName(name) for name in names.split(",")]
    return [supervisor_name(number) for number in range(configuration.config.supervisors)]


def _operator_variables(fd: int) -> dict[str, str]:
    """The variables of an explicit `carpool up`; empty if an agent has started carpool."""
    data = read_pipe(fd) if fd >= 0 else b""
    return msgspec.json.decode(data, type=dict[str, str]) if data else {}


def _inherit(lifeline_fd: int) -> Incarnation | None:
    try:
        return read_incarnation(first_line(lifeline_fd))
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
