"""What the broker tells a supervisor that comes of its sessions: who is there, and who has lost what."""

import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import SendTo
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName, SupervisorName
from carpool_protocol.link.messages import (
    CallAnswered,
    CallFailed,
    CallsRecorded,
    Mode,
    OpenSessions,
    Policy,
    PoolChanged,
    PoolSpec,
    RecordedSession,
    SessionNote,
    SetPools,
)
from tests.behaviours import behaviour
from tests.broker.core.calls.test_server_requests import KEY, ONE, TWO, ServerRequestsRig
from tests.kit.broker_rig import EPOCH, broker_core, source_read, supervisor_comes

A_SERVER = ServerName("a")


def told(rig: ServerRequestsRig) -> list[SessionNote]:
    rig.feed(ev.SupervisorLost())
    [found] = [each for each in supervisor_comes(rig.feed) if isinstance(each, OpenSessions)]
    return found.live


@behaviour("lease:supervisor-restart")
@pytest.mark.parametrize("mode", ["session", "serial", "concurrent"])
def test_a_session_that_called_a_server_in_mode_session_has_lost_its_state_there(mode: Mode) -> None:
    rig = ServerRequestsRig()
    rig.come(ONE)
    rig.come(TWO)
    rig.feed(PoolChanged(KEY, "serving", "", None, mode))
    rig.feed(CallAnswered(rig.call(ONE), is_error=False, body=EMPTY_OBJECT))
    lost = [A_SERVER] if mode == "session" else []
    assert told(rig) == [SessionNote(ONE, lost), SessionNote(TWO, [])]


def serving(rig: ServerRequestsRig) -> None:
    rig.feed(PoolChanged(KEY, "serving", "", None, "session"))


@behaviour("lease:never-silently")
def test_each_supervisor_that_comes_hears_of_a_loss_until_the_agent_has_heard_of_it() -> None:
    rig = ServerRequestsRig()
    rig.come(ONE)
    serving(rig)
    rig.call(ONE)  # in flight when the supervisor dies: it may have run
    assert told(rig) == [SessionNote(ONE, [A_SERVER])]
    assert told(rig) == [SessionNote(ONE, [A_SERVER])], "this one died before anybody asked"
    serving(rig)
    rig.feed(CallFailed(rig.call(ONE), "state_lost", "no", ""))
    assert told(rig) == [SessionNote(ONE, [])]


@behaviour("lease:never-silently")
@pytest.mark.parametrize("end", ["cancelled", "lost", "overdue", "refused"])
def test_a_call_that_may_have_run_counts_however_it_ended(end: str) -> None:
    """Found by the simulated world, seed 99: the only calls of an agent had been cancelled."""
    rig = ServerRequestsRig()
    rig.come(ONE)
    serving(rig)
    call = rig.call(ONE)
    if end == "cancelled":
        rig.feed(ev.RequestCancelled(ONE, RawJson(b"%d" % rig.calls), ""))
    elif end == "overdue":
        rig.core.tick(100_000.0)
    else:
        rig.feed(
            CallFailed(call, "lost", "maybe", "") if end == "lost" else CallFailed(call, "stopped", "no", "")
        )
    assert told(rig) == [SessionNote(ONE, [] if end == "refused" else [A_SERVER])]


@behaviour("lease:never-silently")
def test_the_same_supervisor_hears_only_of_losses_that_it_does_not_know_of() -> None:
    rig = ServerRequestsRig()
    rig.come(ONE)
    rig.come(TWO)
    serving(rig)
    for session in (ONE, TWO):
        rig.feed(CallAnswered(rig.call(session), is_error=False, body=EMPTY_OBJECT))
    rig.feed(ev.SupervisorLost())
    rig.feed(ev.SupervisorConnected(1_000_000, EPOCH))
    [said] = [
        each
        for each in rig.feed(ev.RecordReceived(CallsRecorded([RecordedSession(ONE, [A_SERVER])], [])))
        if isinstance(each, OpenSessions)
    ]
    assert said.live == [SessionNote(ONE, []), SessionNote(TWO, [A_SERVER])]


@behaviour("supervisors:several")
def test_a_supervisor_has_room_for_the_servers_that_always_run() -> None:
    names = [SupervisorName("sup1"), SupervisorName("sup2")]
    core = broker_core(supervisors=names)
    every = map(ServerName, map(str, range(40)))
    servers = [each for each in every if core.links.owner_of_server(each) == names[0]][:7]
    policies = [Policy(min_instances=1)] * 6 + [Policy()]
    specs = [
        PoolSpec(key=PoolKey(f"{server}:k"), server=server, argv=[], env={}, cwd="/", policy=policy)
        for server, policy in zip(servers, policies, strict=True)
    ]
    entries = tuple(ScopeEntry(server=spec.server, key=spec.key) for spec in specs)
    core.handle(source_read(Scope(entries), specs), 1.0)
    shares = []
    for name in names:
        [told] = core.handle(ev.SupervisorConnected(1000, EPOCH, name), 2.0)
        assert isinstance(told, SendTo)
        assert isinstance(told.message, SetPools)
        shares.append((told.supervisor, len(told.message.pools), told.message.max_processes))
    assert shares == [(names[0], 7, 7), (names[1], 0, 4)], "eight are shared by two"
