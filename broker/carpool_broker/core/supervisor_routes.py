"""Decides which supervisors a message is sent to: the one whose server it concerns, or all.

A message about a pool, an instance, an ask or a call goes to the supervisor that has it;
one about sessions, or about calls in general, to every supervisor, and so does the cancel of a call that this
broker has forgotten. A supervisor ignores what it does not know. Pure.

Refuses to know: which supervisors are connected, links, what messages mean to supervisors.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.model.supervisors import SupervisorLinks
from carpool_protocol.ids import AskId, CallId, SupervisorName, supervisor_of
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnyMessage,
    Call,
    CancelCall,
    CancelTask,
    ChangeResourceSubscriptions,
    DiscoverCatalog,
    EndCall,
    ExplainSharing,
    ForwardAskProgress,
    Operate,
    ReportProbe,
    ResumeCall,
    SessionPoolChanged,
    SessionStateLost,
    SetLevel,
    SetResourceSubscriptions,
    SetTaskSubscriptions,
)

Routed = list[tuple[SupervisorName, AnyMessage]]


class SupervisorRoutes:
    """The way of each message. `calls`: the open calls of this broker."""

    def __init__(self, links: SupervisorLinks, calls: Mapping[CallId, OpenCall]) -> None:
        self._links = links
        self._calls = calls
        self._asking: dict[str, SupervisorName] = {}
        """The supervisors that have asked, by the part of their asks' ids that is theirs."""

    def ask_opened(self, ask: AskId, supervisor: SupervisorName) -> None:
        """A server of this supervisor asks."""
        self._asking[_prefix(ask)] = supervisor

    def supervisor_lost(self, name: SupervisorName) -> None:
        """This supervisor has gone, and its asks with it."""
        self._asking = {prefix: each for prefix, each in self._asking.items() if each != name}

    def of(self, message: AnyMessage) -> Routed:
        """Return the message for each supervisor that it concerns."""
        if self._links.is_single:
            return [(self._links.names[0], message)]
        match message:
            case (
                Call()
                | DiscoverCatalog()
                | SetLevel()
                | SetResourceSubscriptions()
                | ChangeResourceSubscriptions()
                | Operate()
                | ExplainSharing()
                | ReportProbe()
            ):
                return [(self._links.owner_of(message.key), message)]
            case SessionPoolChanged():
                return [(self._links.owner_of(message.old), message)]
            case SessionStateLost():
                return self._split(message)
            case CancelTask() | SetTaskSubscriptions():
                number = supervisor_of(message.instance)
                return [(name, message) for name in self._links.names[number : number + 1]]
            case AnswerAsk() | ForwardAskProgress():
                asking = self._asking.get(_prefix(message.ask))
                return [] if asking is None else [(asking, message)]
            case ResumeCall() | EndCall() | CancelCall() if message.call in self._calls:
                return [(self._links.owner_of(self._calls[message.call].key), message)]
            case ResumeCall():  # the call has ended here meanwhile: nobody waits for its outcome
                return []
            case _:
                return [(name, message) for name in self._links.names]

    def _split(self, message: SessionStateLost) -> Routed:
        found: Routed = []
        for name in self._links.names:
            servers = [each for each in message.servers if self._links.owner_of_server(each) == name]
            if servers:
                found.append((name, replace(message, servers=servers)))
        return found


def _prefix(ask: AskId) -> str:
    return ask.rpartition("-")[0]
