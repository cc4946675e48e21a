"""A swarm beside one agent: the exact number of other calls that start between its request and its start."""

from typing import Any

from carpool_protocol.ids import CallId, SessionId, WireId
from carpool_protocol.link.messages import CallFailed
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import WriteCall
from tests.behaviours import behaviour
from tests.supervisor.core.test_supervisor import KEY, OK, ONE, CoreRig, call, spec

AGENTS, IN_FLIGHT, ROOM, LINE = 500, 64, 4, 1024
LONE = "lone"


class Swarm(CoreRig):
    """500 sessions that keep 64 calls each at one instance that takes 4 at a time."""

    def __init__(self, **policy: Any) -> None:
        policy = {"max_in_flight": ROOM, "max_waiting_calls": LINE, "max_instances": 1, **policy}
        super().__init__(spec(**policy))
        self.session_of: dict[CallId, str] = {}
        self.running: list[WriteCall] = []
        self.started: list[str] = []
        """Whose calls were started, in order."""
        self.refused: list[str] = []
        self.ask("first")
        self.note(self.serve())
        for _ in range(IN_FLIGHT):
            for n in range(AGENTS):
                self.ask(f"s{n}")

    def note(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, WriteCall):
                self.running.append(effect)
                self.started.append(self.session_of[effect.call.call])
            elif isinstance(effect, CallFailed):
                assert (effect.fault, effect.delivered, effect.retry_after_s) == (
                    "waiting_line_full",
                    "no",
                    1.0,
                )
                self.refused.append(self.session_of.pop(effect.call))

    def feed(self, event: ev.AnyEvent) -> list[Any]:
        """Without the check of all that is open after each of 32,000 calls."""
        return self.core.handle(event, self.now)

    def ask(self, session: str) -> CallId:
        number = CallId(len(self.session_of) + len(self.refused) + 1)
        self.session_of[number] = session
        self.note(self.feed(call(number, session=session)))
        return number

    def answer_one(self) -> None:
        """The server answers what it began first, and that agent calls again at once."""
        done = self.running.pop(0)
        session = self.session_of[done.call.call]
        self.note(self.feed(ev.ServerAnswered(ONE, done.wire, is_error=False, body=OK)))
        if session != LONE:
            self.ask(session)


@behaviour("pressure:fair-share")
def test_a_lone_agents_call_starts_after_at_most_one_call_of_each_session_of_a_swarm() -> None:
    rig = Swarm()
    waiting = {rig.session_of[each] for each in rig.core.dispatcher.calls}
    for _ in range(5):
        before = len(rig.started)
        rig.ask(LONE)
        while LONE not in rig.started[before:]:
            rig.answer_one()
        between = rig.started[before:-1]
        assert len(between) == len(set(between)), "somebody had two turns"
        assert len(between) <= len(waiting)
        rig.core.check()
    assert LONE not in rig.refused


@behaviour("pressure:bounded-calls", "pressure:fair-share")
def test_a_full_queue_holds_equal_shares_of_all_sessions_and_refuses_the_rest_with_a_time() -> None:
    rig = Swarm()
    rig.core.check()
    assert len(rig.core.dispatcher.calls) == LINE + ROOM
    assert len(rig.refused) == 1 + AGENTS * IN_FLIGHT - LINE - ROOM
    waiting = rig.core.pools[KEY].queue
    shares = {len(waiting.for_session(SessionId(f"s{n}"))) for n in range(AGENTS)}
    assert max(shares) - min(shares) <= 2


@behaviour("pressure:fair-share")
def test_a_lone_agents_call_on_a_serial_server_waits_for_one_call_of_each_session() -> None:
    rig = CoreRig(spec(sharing="serial", max_instances=1))
    for number in range(1, 41):
        rig.feed(call(number, session=f"s{number % 10}"))
    effects = rig.serve()
    rig.feed(call(99, session=LONE))
    started: list[str] = []
    for wire in range(1, 41):
        started += [each.call.session for each in effects if isinstance(each, WriteCall)]
        effects = rig.feed(ev.ServerAnswered(ONE, WireId(wire), is_error=False, body=OK))
    assert started[1:].index(LONE) == 10, "one runs already, and then each session has one turn"
