"""All handlers of `carpool/…` control requests, registered in one table of methods.

Owns the list of handlers, and `carpool/reload`. Knows nothing of: the answers of the other handlers.
"""

from collections.abc import Callable, Sequence
from typing import Any

from carpool_broker.admin import profile_report
from carpool_broker.admin.approval_commands import ApprovalCommands
from carpool_broker.admin.call_story import FindStory, Stories
from carpool_broker.admin.counter_report import CounterReport
from carpool_broker.admin.methods import Act, Methods
from carpool_broker.admin.open_calls import OpenCallCommands
from carpool_broker.admin.operator_acts import OperatorActs
from carpool_broker.admin.override_commands import OverrideCommands, Reload
from carpool_broker.admin.pool_commands import PoolCommands
from carpool_broker.admin.recent_call_report import RecentCallReport
from carpool_broker.admin.session_commands import Disconnect, SessionCommands
from carpool_broker.admin.session_view import SessionQueries
from carpool_broker.admin.status_query import Process, StatusQuery
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.events import (
    CallCancelledByOperator,
    PausedServersChanged,
    PinsApproved,
    RecentCallsWatched,
)
from carpool_broker.storage.approval_store import ApprovalStore

OperatorEvent = (
    ConfigurationChange | PinsApproved | PausedServersChanged | CallCancelledByOperator | RecentCallsWatched
)
"""What follows for the core from an operator's request."""


class ControlMethods:
    """Answers the control requests of one broker."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        inquiries: SupervisorQueries,
        process: Process,
        *,
        reload: Reload,
        follow: Callable[[Sequence[OperatorEvent]], None],
        approvals: ApprovalStore,
        story: FindStory,
        disconnect: Disconnect,
        clock: Callable[[], float],
    ) -> None:
        """`follow` feeds these events to the core."""
        acts = OperatorActs(core, process.audit, process.peer_uid)
        methods = Methods(acts.begin)
        acts.register(methods)
        self.answer = methods.answer
        self.override_commands = OverrideCommands(configuration, follow)
        self.override_commands.register(methods, core, reload)
        pinning = ApprovalCommands(core.registry, approvals, lambda event: follow([event]))
        pinning.register(methods)
        self.counters = CounterReport(core, process.run, process.clock)
        status = StatusQuery(core, configuration, inquiries, pinning, process, counters=self.counters)
        status.register(methods)
        Stories(inquiries, story, process.audit).register(methods)
        SessionQueries(core, inquiries).register(methods)
        SessionCommands(core, disconnect).register(methods)
        OpenCallCommands(core, inquiries, clock, follow).register(methods)
        RecentCallReport(core, clock, follow).register(methods)
        PoolCommands(core, configuration, inquiries, process.told_at).register(methods)
        profile_report.register(methods, core, configuration)

        async def read_again(_: object) -> dict[str, Any]:
            problems = await reload()
            return {"ok": not problems, "problems": problems, "warnings": process.warnings()}

        methods.add_plain("carpool/reload", read_again, Act("reload", []))
