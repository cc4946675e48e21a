"""How instances of the simulated world may be shared: the oracle about modes and leases.

Owns what each instance has run for whom, during one life of a supervisor, and the rules of sharing modes
(docs/sharing.md) and rule 15: a `serial` instance is given nothing that can ask before it has answered
everything, unless one session holds it from when it was leased; an instance of a `session` pool serves
one session; a lease that ends underneath its holder is told to it once, whatever pool of the server the
next call goes to.

Knows nothing of: cores' insides but the mode of a pool, agents, the link.
"""

from collections.abc import Iterable

from carpool_protocol.ids import CallId, InstanceId, PoolKey, ServerName, SessionId, WireId
from carpool_protocol.link.messages import Call, CallFailed, Mode, SessionStateLost
from tests.world.sim.oracles.violation import Violation
from tests.world.sim.servers import SimInstance

At = tuple[SessionId, ServerName]

NOBODY = InstanceId(0)
"""An instance of an earlier supervisor."""


class SharingBook:
    """What one supervisor does with calls."""

    def __init__(self, before: "SharingBook | None" = None) -> None:
        """`before`: of the supervisor whose place this one takes; what it held is to be told as lost."""
        self._inherited: set[At] = set() if before is None else before._inherited | before._called()
        self._calls: dict[CallId, Call] = {}
        self._server_of: dict[PoolKey, ServerName] = {}
        self._modes: dict[PoolKey, Mode] = {}
        self._state: dict[At, tuple[InstanceId, PoolKey]] = {}
        if before is not None:
            self._state = {at: (NOBODY, key) for at, (_, key) in before._state.items()}
        """Where this session has state."""
        self._placed: dict[At, set[InstanceId]] = {}
        """Where its calls went since it was last told."""
        self._over: set[tuple[SessionId, InstanceId]] = set()
        """What it was told of: calls written before may still run there."""
        self._promised: set[CallId] = set()
        """Calls that were placed where instances are leased: another has no state to count on."""
        self._leases: dict[At, set[InstanceId]] = {}
        self._told: dict[At, int] = {}
        self._ended: set[CallId] = set()
        """Calls that were told so."""
        self._told_there: set[CallId] = set()
        """Calls that another node has answered so: the loss is a new one."""
        self._unheard: dict[At, set[CallId]] = {}
        """Calls that were told so while no such answer was written."""
        self._upto: dict[At, CallId] = {}
        """The last call that was read before one was."""
        self._heard_upto: dict[At, CallId] = {}
        """The same, as the supervisor has heard it, which may be later: calls up to here may hear it too."""
        self._unsure: set[At] = set()
        """A call that may hear of the loss before has been told after later calls had run: whether of that
        loss or of a new one is not known here. Nothing is judged until a call comes that is to hear of
        neither.
        """
        self._unconfirmed: dict[At, set[CallId]] = {}
        """Calls that were told so, of which the supervisor has not heard that one was written."""
        self._doubts: dict[At, int] = {}
        """How often the link was cut, or a broker died that may not have said what it had written: in doubt
        an agent hears again that its state is gone.
        """

    def modes(self, modes: dict[PoolKey, Mode], servers: dict[PoolKey, ServerName]) -> None:
        """How pools are shared from now on. A server whose mode changes makes no promise about older
        state.
        """
        self._server_of.update(servers)
        changed = {servers[key] for key, mode in modes.items() if self._modes.get(key, mode) != mode}
        self._state = {at: state for at, state in self._state.items() if at[1] not in changed}
        self._modes = dict(modes)

    def sent(self, call: Call) -> None:
        """The broker has sent a call: whether it arrives or not, from then on it is in doubt."""
        self._calls[call.call] = call

    def placed(self, instance: SimInstance, call: Call, mode: Mode) -> None:
        """A call is written to an instance whose pool is shared like this."""
        self._could_know(call)
        held = instance.leased and instance.served == {call.session}
        others = [each for each in instance.running if each not in instance.stopped]
        if mode == "serial" and others and not held:
            raise Violation(
                f"instance {instance.id} of {instance.key} is serial and gets call {call.call} of "
                f"{call.session} beside {others}"
            )
        if mode == "session":
            strangers = instance.served - {call.session}
            if strangers:
                raise Violation(f"instance {instance.id} of {instance.key} served {strangers} before")
            instance.leased = True
            self._promised.add(call.call)
            self._leases.setdefault(self._at(call), set()).add(instance.id)
            self._placed.setdefault(self._at(call), set()).add(instance.id)
        instance.served.add(call.session)

    def said_again(self, instance: SimInstance, wire_id: WireId, mode: Mode) -> None:
        """A call goes on after a round."""
        others = [each for each in instance.running if each != wire_id and each not in instance.stopped]
        if mode == "serial" and others and not (instance.leased and len(instance.served) == 1):
            raise Violation(f"instance {instance.id} is serial: {wire_id} goes on beside {others}")

    def executed(self, instance: SimInstance, call: Call, mode: Mode) -> None:
        """A server runs a call: from now on its process may hold something of that session."""
        at = self._at(call)
        if mode != "session":
            self._state.pop(at, None)
        elif call.call in self._promised and (call.session, instance.id) not in self._over:
            before = self._state.get(at)
            if before is not None and before[0] != instance.id:
                raise Violation(
                    f"{call.session} had state on instance {before[0]} of {before[1]}; its next "
                    f"call of {call.key} ran on {instance.id} and nobody told it"
                )
            self._state[at] = (instance.id, instance.key)

    def failed(self, failed: CallFailed) -> None:
        """The supervisor ends a call. Said again to another broker, it is the same word."""
        if failed.fault != "state_lost" or failed.call in self._ended:
            return
        self._ended.add(failed.call)
        call = self._calls[failed.call]
        at = self._at(call)
        self._state.pop(at, None)
        placed = self._placed.pop(at, set())
        self._over.update((call.session, each) for each in placed)
        is_new = bool(placed) or failed.call in self._told_there
        self._unconfirmed.setdefault(at, set()).add(call.call)
        if at in self._unheard:
            self._unheard[at].add(call.call)
            return  # its agent could not know
        if at in self._unsure or call.call <= self._upto.get(at, -1):
            if is_new:
                self._unsure.add(at)
            return
        if call.call <= self._heard_upto.get(at, -1):
            if is_new:
                self._unsure.add(at)
            return
        doubts = self._doubts.get(at, 0)
        if self._told.get(at) and not is_new and doubts:
            return  # the loss that it has heard of, once more
        self._unheard[at] = {call.call}
        self._told[at] = self._told.get(at, 0) + 1
        due = len(self._leases.get(at, ())) + (at in self._inherited) + doubts
        if self._told[at] > due:
            raise Violation(f"{at} was told {self._told[at]} times that state was lost")

    def told_by_server(self, call: Call) -> None:
        """The other node has answered a call that state is lost: the agent hears it from there."""
        at = self._at(call)
        self._state.pop(at, None)
        placed = self._placed.pop(at, set())
        self._over.update((call.session, each) for each in placed)
        if placed:
            self._told_there.add(call.call)

    def written(self, call: CallId, newest: CallId) -> None:
        """This answer is with its carrier. `newest`: the last call that the broker had read then."""
        for at in [at for at, calls in self._unheard.items() if call in calls]:
            del self._unheard[at]
            self._upto[at] = max(newest, call)

    def confirmed(self, calls: Iterable[CallId], newest: CallId) -> None:
        """The supervisor has heard that the answers of these are with their carriers. A broker that repeats
        the answer of one before it says so here only.
        """
        heard = set(calls)
        for call in heard if newest else ():
            self.written(call, newest)
            if call in self._ended and call in self._calls:
                self._heard_upto[self._at(self._calls[call])] = newest
        for at in [at for at, told in self._unconfirmed.items() if told & heard]:
            del self._unconfirmed[at]

    def broker_came(self) -> None:
        """It comes after one that has died: whether that had written an answer may not be known."""
        for at in self._unconfirmed:
            self._doubts[at] = self._doubts.get(at, 0) + 1

    def cancelled(self, call: CallId) -> None:
        """Its agent hears no answer to it."""
        for at in [at for at, calls in self._unheard.items() if call in calls]:
            self._unheard[at].discard(call)
            if not self._unheard[at]:
                del self._unheard[at]
                self._told[at] -= 1

    def _could_know(self, call: Call) -> None:
        at = self._at(call)
        if at in self._unsure:
            if call.call > self._heard_upto.get(at, -1):
                self._unsure.discard(at)
            return
        if not call.instance and (at in self._unheard or call.call <= self._upto.get(at, -1)):
            raise Violation(
                f"call {call.call} of {call.key} runs: {call.session} could not know that its state is lost"
            )

    def forget(self, *, inherited: bool = False) -> None:
        """Broker and supervisor have both died before one could tell the next: who had state is not told.
        `inherited`: only what was of earlier supervisors.
        """
        self._state = {at: each for at, each in self._state.items() if inherited and each[0] != NOBODY}

    def bereft(self, message: SessionStateLost) -> None:
        """An agent goes on under another session: what it had under the one before is lost to it."""
        for server in message.servers:
            at = message.session, ServerName(server)
            self._doubts[at] = self._doubts.get(at, 0) + 1

    def noted(self, session: SessionId, servers: Iterable[ServerName]) -> None:
        """The same, as a broker says it with all sessions, where it is not what every agent of an earlier
        supervisor hears.
        """
        for server in servers:
            at = session, server
            if at not in self._inherited:
                self._doubts[at] = self._doubts.get(at, 0) + 1

    def cut(self) -> None:
        """The link to a broker that lives on was cut: it has ended all calls with words of its own."""
        self._unheard.clear()
        for at in self._called():
            self._doubts[at] = self._doubts.get(at, 0) + 1

    def _called(self) -> set[At]:
        """Who called what: a broker cannot tell a call on its way or in line from one that ran."""
        called = [call for call in self._calls.values() if call.key in self._server_of]
        shared = {(SessionId(call.session.partition(".")[0]), self._server_of[call.key]) for call in called}
        return shared | {self._at(call) for call in called}

    def _at(self, call: Call) -> At:
        return call.session, self._server_of[call.key]
