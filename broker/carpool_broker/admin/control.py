"""All handlers of `carpool/…` control requests, registered in one table of methods.

Owns the list of handlers, and `carpool/reload`. Knows nothing of: what the other handlers answer.
"""

from collections.abc import Callable, Sequence
from typing import Any

from carpool_broker.admin import profile_report
from carpool_broker.admin.approval_commands import Pinning
from carpool_broker.admin.call_story import Stories, StoryOf
from carpool_broker.admin.methods import Methods
from carpool_broker.admin.override_commands import Reload, Switching
from carpool_broker.admin.pool_commands import Operating
from carpool_broker.admin.session_view import Looking
from carpool_broker.admin.status_query import Process, StatusQuery
from carpool_broker.admin.supervisor_queries import Inquiries
from carpool_broker.config.configuration import Configuration, Followed
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.events import PinsApproved
from carpool_broker.storage.approval_store import PinBoard


class Control:
    """Answers the control requests of one broker."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        inquiries: Inquiries,
        process: Process,
        *,
        reload: Reload,
        follow: Callable[[Sequence[Followed | PinsApproved]], None],
        pins: PinBoard,
        story: StoryOf,
    ) -> None:
        """`follow` feeds changes of configuration and approvals to the core."""
        methods = Methods()
        self.answer = methods.answer
        self.switching = Switching(configuration, follow)
        self.switching.register(methods, core, reload)
        pinning = Pinning(core.registry, pins, lambda event: follow([event]))
        pinning.register(methods)
        StatusQuery(core, configuration, inquiries, pinning, process).register(methods)
        Stories(inquiries, story, process.audit).register(methods)
        Looking(core, inquiries).register(methods)
        Operating(core, configuration, inquiries, process.told_at).register(methods)
        profile_report.register(methods, core, configuration)

        async def read_again(_: object) -> dict[str, Any]:
            problems = await reload()
            return {"ok": not problems, "problems": problems}

        methods.add_plain("carpool/reload", read_again)
