"""Servers of the simulated world: instances as a supervisor's core sees them, without processes.

Owns how a simulated instance behaves: when it is up, greets, reads, answers, lies, dies. What it has
executed goes into the world's book. Knows nothing of: agents, the link, the broker.
"""

from collections import deque
from collections.abc import Callable

from carpool_protocol.ids import EMPTY_OBJECT, InstanceId, PoolKey, RawJson, SessionId, WireId
from carpool_protocol.link.messages import Call, Catalog, Era
from carpool_supervisor.core.model import events as ev
from tests.world.sim.interfaces import InstanceHost
from tests.world.sim.oracles.asks import FORMS, AskingServer, task_of
from tests.world.sim.traits import READ, Traits, body_of, catalog, number_of, uri_of

PIPE_LINES = 4
"""So many lines fit in the pipe of an instance that does not read: they count as written."""


class SimInstance:
    """One process."""

    is_remote = False
    """It is a session at another node."""

    def __init__(
        self,
        host: InstanceHost,
        instance: InstanceId,
        key: PoolKey,
        era: Era = "handshake",
        *,
        sure: bool = True,
    ) -> None:
        """`era`: in which it is greeted first; `sure`: and in no other."""
        self.host = host
        self._asked_for: Era = era
        self._sure = sure
        self.era: Era = "handshake"
        self.level = ""
        self.watched: set[str] = set()
        self.id = instance
        self.key = key
        self.alive = True
        self.frozen = False
        self.mute = False
        self._unread: list[ev.OwnEvent] | None = None
        """What it said while its stdout is not read; None: it is read."""
        self.greeted = False
        self._blocked = False
        self._closed = False
        self._hung_up = False
        """It has closed its stdin."""
        self.is_known_as_deaf = False
        """The supervisor's core has heard of that."""
        self._reading = False
        self._pings: list[int] = []
        self._tools = 0
        self._lines: deque[tuple[WireId, Call]] = deque()
        self._open: set[WireId] = set()
        self._lost: list[WireId] = []
        """What the pipe had not taken when it was closed."""
        self.told: set[WireId] = set()
        self.told_at_ping: dict[int, frozenset[WireId]] = {}
        """The cancelled calls when each ping was written."""
        self.stopped: set[WireId] = set()
        """The cancelled calls that count as stopped: a ping after the cancel was answered."""
        """Calls that it was told to leave."""
        self.unanswered: dict[WireId, Call] = {}
        """Written, and neither answered nor given up after a cancel."""
        self.served: set[SessionId] = set()
        self.leased = False
        self.holders: set[SessionId] = set()
        """Whose calls it ran while it was leased."""
        self._rests: dict[WireId, Callable[[], None]] = {}
        """Between two rounds: nothing of these runs until they are said again."""
        self.asker = AskingServer(host, instance, self._say)
        self._later(host.rng.uniform(0.001, 0.05), self._spawned)

    # --- what the supervisor does -----------------------------------------------------------------------

    def write(self, wire_id: WireId, call: Call) -> None:
        """A call was written to it."""
        if self._closed or not self.alive:
            return
        if self._hung_up:
            self._lost.append(wire_id)
            self._broken(wire_id)
            return
        self._lines.append((wire_id, call))
        self.unanswered[wire_id] = call
        self._watch_pipe()
        self._read_soon()

    def cancel(self, wire_id: WireId) -> None:
        """A cancel: a conforming server does not answer then, others do."""
        if wire_id in self._rests:
            self._over(wire_id, self.unanswered[wire_id])  # between two rounds nothing runs
            return
        if self.host.rng.random() < 0.5 and wire_id in self._open:
            self._open.discard(wire_id)
            call = self.unanswered.pop(wire_id)
            if self.host.rng.random() < self._traits.asks_after_cancel:
                self._later(self.host.rng.uniform(0.0, 1.0), lambda: self._ask(wire_id, call, live=True))

    def _over(self, wire_id: WireId, call: Call) -> None:
        """In the stateless era: its adapter ends a call that does not go on."""
        self._open.discard(wire_id)
        self._rests.pop(wire_id, None)
        self.unanswered.pop(wire_id, None)
        self.asker.forget(number_of(call))
        self._say(ev.ServerAnswered(self.id, wire_id, is_error=True, body=body_of(call)))

    def again(self, wire_id: WireId) -> None:
        """A call is said again: its pause is over, or what it wanted is there."""
        if wire_id in self._rests and not self.asker.waits(number_of(self.unanswered[wire_id])):
            self._later(0.01, self._rests.pop(wire_id))

    @property
    def running(self) -> list[WireId]:
        """Written, not answered, and not between two rounds."""
        return [wire for wire in self.unanswered if wire not in self._rests]

    def set_level(self, level: str) -> None:
        """These log messages are wanted."""
        self.level = level

    def watch(self, add: tuple[str, ...], drop: tuple[str, ...]) -> None:
        """These resources are watched now, and these no more."""
        self.watched |= set(add)
        self.watched -= set(drop)

    def probe(self, number: int) -> None:
        """A ping. One who reads a line at a time reads it when its calls are done."""
        if self._hung_up:
            self._broken()
        elif not self._traits.ignores_ping and not self._traits.never_reads:
            self._pings.append(number)
            self._later(0.01, self._answer_ping)

    def _answer_ping(self) -> None:
        if not (self._traits.one_at_a_time and self._open):
            pings, self._pings = self._pings, []
            for number in pings:
                self._say(ev.ProbeAnswered(self.id, number))

    def close_stdin(self) -> None:
        """End of file."""
        self._closed = True
        while len(self._lines) > PIPE_LINES:
            self._lost.append(self._lines.pop()[0])
        if not self._traits.deaf:
            self._later(self.host.rng.uniform(0.001, 0.5), lambda: self.die("ended with exit code 0"))

    def signal(self, name: str) -> None:
        """TERM or KILL."""
        if name == "KILL" or not (self._traits.deaf or self.frozen):
            self.host.later(0.005, lambda: self.die(f"was killed by SIG{name}"))

    # --- its life ---------------------------------------------------------------------------------------

    @property
    def _traits(self) -> Traits:
        return self.host.traits(self.key)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        def run() -> None:
            if self.alive and not self.frozen:
                act()

        self.host.later(delay_s, run)

    def _say(self, *said: ev.OwnEvent) -> None:
        if self.alive and not self.mute:
            for event in said:
                if self._unread is None:
                    self.host.feed(event)
                else:
                    self._unread.append(event)

    def pause_reading(self, for_s: float) -> None:
        """Its stdout is not read for so long: what it says lies in its pipe."""
        if self.alive and self._unread is None:
            self._unread = []
            self.host.feed(ev.StdoutPaused(self.id, True))
            self.host.later(for_s, self._read_on)

    def _read_on(self) -> None:
        if self._unread is not None and self.alive:
            self.host.feed(ev.StdoutPaused(self.id, False))
            if self._unread:
                self.host.feed(ev.StdoutReceived(self.id))
            self._hand_over()

    def _hand_over(self) -> None:
        said, self._unread = self._unread or [], None
        for event in said:
            self.host.feed(event)

    @property
    def is_well(self) -> bool:
        """Whether it answers each ping at once."""
        traits = self._traits
        deaf = traits.ignores_ping or traits.never_reads or traits.one_at_a_time
        return self.alive and self.greeted and not (deaf or self.frozen or self.mute or self._hung_up)

    def _spawned(self) -> None:
        traits, roll = self._traits, self.host.rng.random
        if traits.no_command:
            self.alive = False
            self.host.feed(ev.SpawnFailed(self.id, "could not be started: no such command", roll()))
            return
        self.host.feed(ev.InstanceSpawned(self.id, 1000 + self.id))
        delay_s = self.host.rng.uniform(0.1, 1.0) * traits.greet_s
        if roll() < traits.dies_at_start:
            self._later(delay_s, lambda: self.die("ended with exit code 1"))
        elif roll() < traits.refuses:
            self._later(delay_s, lambda: self._say(ev.GreetingFailed(self.id, "speaks no MCP")))
        elif not traits.never_greets:
            if roll() < traits.misspeaks:
                self._later(delay_s / 2, self._misspeak)
            self._later(delay_s, self._greet)

    def _misspeak(self) -> None:
        self._say(ev.ServerLineRejected(self.id, "wrote a line that is no message"))

    def _greet(self) -> None:
        if self._traits.speaks not in ("both", self._asked_for):
            if self._sure:
                self._say(ev.GreetingFailed(self.id, "speaks another era"))
                return
            if self._traits.shy:
                self.die("ended with exit code 1")
                return
            self._say(ev.EraRefused(self.id, self._asked_for, "knew no such greeting"))
            self._asked_for = "handshake" if self._asked_for == "stateless" else "stateless"
        self.era = self._asked_for
        self.greeted = True
        self._tools = self._traits.tools
        self._say(ev.InstanceGreeted(self.id, self._catalog()))
        if self._traits.list_changes:
            self._later(self.host.rng.uniform(0.5, 10), self._change_list)

    def _change_list(self) -> None:
        if self.host.rng.random() < self._traits.list_changes:
            self._tools = self.host.rng.randint(0, 3)
            self._say(ev.CatalogRead(self.id, self._catalog()))
            self._later(self.host.rng.uniform(0.5, 10), self._change_list)
        elif self._tools != self._traits.tools:  # back to what a new instance would say
            self._tools = self._traits.tools
            self._say(ev.CatalogRead(self.id, self._catalog()))

    def relist(self, *, is_calm: bool) -> None:
        """It is to tell its lists again."""
        self._later(0.05, lambda: self._say(ev.CatalogRead(self.id, self._catalog())))

    def give_up_list(self, after_s: float) -> None:
        """A list of it is overdue: it answers all in time."""

    def _catalog(self) -> Catalog:
        return catalog(self.key, self._traits, self._tools, self.era)

    def die(self, how: str) -> None:
        """The process ends; what the pipe did not take was never delivered."""
        if not self.alive:
            return
        self._hand_over()  # all that it wrote is read before anybody hears of its end
        unwritten = (*self._lost, *(wire for wire, _ in list(self._lines)[PIPE_LINES:]))
        if not (self.mute or self._traits.breeds) and self.host.rng.random() < 0.7:
            self._say(ev.StdoutClosed(self.id))
        self.alive = False
        jitter = self.host.rng.random()
        gone = ev.InstanceExited(self.id, how, unwritten, "last words", jitter, refused_nothing=True)
        self.host.later(self.host.rng.uniform(0, 0.02), lambda: self.host.feed(gone))

    def hang_up(self) -> None:
        """It closes its stdin: what was in the pipe is gone, and the rest never gets there."""
        self._hung_up = True
        unwritten = [wire for wire, _ in list(self._lines)[PIPE_LINES:]]
        self._lines.clear()
        self._lost += unwritten
        for wire in unwritten:
            del self.unanswered[wire]
        if unwritten:  # they were waited with, which shows it at once
            self._broken(*unwritten)

    def _broken(self, *unwritten: WireId) -> None:
        event = ev.StdinBroken(self.id, unwritten)
        self.host.later(0, lambda: self.host.feed(event) if self.alive else None)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing more, ever."""
        self.frozen = True

    # --- calls ------------------------------------------------------------------------------------------

    def _watch_pipe(self) -> None:
        blocked = len(self._lines) > PIPE_LINES
        if blocked != self._blocked:
            self._blocked = blocked
            event = ev.StdinBlocked(self.id, blocked)
            self.host.later(0, lambda: self.host.feed(event) if self.alive else None)

    def _read_soon(self) -> None:
        if self._lines and not self._reading and not self._traits.never_reads:
            self._reading = True
            self._later(0.001, self._read)

    def _read(self) -> None:
        self._reading = False
        traits, roll = self._traits, self.host.rng.random
        if not self._lines or (traits.one_at_a_time and self._open):
            return
        wire, call = self._lines.popleft()
        self._watch_pipe()
        self.host.executed(self, call)
        self._open.add(wire)
        if roll() < traits.dies_on_call:
            self.die("was killed by SIGSEGV")
            return
        if roll() < traits.freezes:
            self.freeze()
            return
        if not self._hung_up and roll() < traits.closes_stdin:
            self.hang_up()
        if roll() < traits.mute:
            self._say(ev.StdoutClosed(self.id))
            self.mute = True
        if roll() < traits.misspeaks:
            self._misspeak()
        if roll() < traits.pings:
            self._say(ev.StdoutReceived(self.id))
        if roll() < traits.unknowns:
            answer = ev.ServerAnswered(self.id, WireId(wire + 500), is_error=False, body=EMPTY_OBJECT)
            self._say(answer)
        if roll() >= traits.silent:
            self._serve(wire, call)
        self._read_soon()

    def _serve(self, wire_id: WireId, call: Call) -> None:
        """Work on a call: what it will say, and when."""
        traits, roll = self._traits, self.host.rng.random
        delay_s = self.host.rng.uniform(0.01, 1.0) * traits.answer_s
        if roll() < traits.slow:
            delay_s += self.host.rng.uniform(1, 8)
        if roll() < traits.progress:
            self._later(delay_s * 0.4, lambda: self._progress(wire_id, call))
            self._later(delay_s * 0.8, lambda: self._progress(wire_id, call))
        if self.era == "stateless" and roll() < traits.asks:
            self._later(delay_s, lambda: self._round(wire_id, call, 1))
        else:
            self._later(delay_s, lambda: self._answer(wire_id, call))
        if self.era == "handshake" and roll() < traits.asks:
            self._ask_during(wire_id, call, delay_s)
        if roll() < traits.logs:
            self._later(delay_s * 0.5, lambda: self._log(wire_id, call))
        if roll() < traits.updates:
            self._later(delay_s * 0.5, self._update)

    def _ask_during(self, wire_id: WireId, call: Call, delay_s: float) -> None:
        if self._traits.as_task:
            self._say(ev.TaskCreated(self.id, wire_id, task_of(wire_id)))
        for _ in range(self.host.rng.choice((1, 1, 3))):
            at_s = self.host.rng.uniform(0.0, 0.9) * delay_s
            self._later(at_s, lambda: self._ask(wire_id, call, live=True) if wire_id in self._open else None)

    def _round(self, wire_id: WireId, call: Call, number: int) -> None:
        """Answer the call with what it wants first: several things at once, under equal names."""
        roll = self.host.rng.random
        if self.host.stopped:  # what makes questions of an answer is the supervisor's adapter
            self.host.awake(lambda: self._round(wire_id, call, number))
            return
        if wire_id not in self._open or self.mute or not self.alive:
            return
        go_on = self._round if number < 3 and roll() < 0.3 else self._answer_now
        self._rests[wire_id] = lambda: go_on(wire_id, call, number + 1)
        if roll() < self._traits.pauses:
            self._say(ev.ServerNotReady(self.id, wire_id, 0.05))
            return
        about = number_of(call)
        for each in range(self.host.rng.choice((1, 1, 3))):
            self.asker.want(call, about, wire_id, f"in-{each}" if roll() < 0.8 else "")

    def _answer_now(self, wire_id: WireId, call: Call, _: int) -> None:
        self._answer(wire_id, call)

    def _log(self, wire_id: WireId, call: Call) -> None:
        level = self.level
        if self.era == "stateless" and call.can is not None:
            level = call.log_level
        if wire_id in self._open and level:
            self._say(ev.ServerLogged(self.id, level, body_of(call)))

    def _update(self) -> None:
        uri = uri_of(self.key)
        if uri in self.watched:
            self._say(ev.ResourceUpdated(self.id, uri, RawJson(b'{"uri":"%b"}' % uri.encode())))

    def _ask(self, wire_id: WireId, call: Call, *, live: bool) -> None:
        traits, roll = self._traits, self.host.rng.random
        if self.mute or self.era == "stateless":  # there nothing can be asked but as the answer to a call
            return
        task = task_of(wire_id) if traits.as_task else ""
        again = roll() < traits.asks_twice
        about = number_of(call)
        ask = self.asker.ask(call, about, echo=traits.echo, task=task, live=live, again=again)
        if ask.elicitation and ask.certain:
            self._aloud(3.0, lambda: self._end_elicitation(ask.elicitation, about))
        if roll() < traits.withdraws:
            self._aloud(0.5, self._withdraw)
        if roll() < traits.asks_about_nothing:
            self._aloud(3.0, self.asker.ask_about_nothing)

    def _withdraw(self) -> None:
        if not self.host.stopped:  # it would be answered before anybody has read that it waits no more
            self.asker.withdraw("not needed")

    def _aloud(self, within_s: float, act: Callable[[], None]) -> None:
        self._later(self.host.rng.uniform(0.0, within_s), lambda: None if self.mute else act())

    def _progress(self, wire_id: WireId, call: Call) -> None:
        if wire_id in self._open:
            self._say(ev.ServerProgressed(self.id, wire_id, body_of(call)))

    def _answer(self, wire_id: WireId, call: Call) -> None:
        traits, roll = self._traits, self.host.rng.random
        if wire_id in self._open and traits.waits and self.asker.waits(number_of(call)):
            self.asker.after(number_of(call), lambda: self._later(0.01, lambda: self._answer(wire_id, call)))
            return
        if wire_id in self._open:
            if wire_id not in self.told:
                self.host.worked(call)
            self._open.discard(wire_id)
            self.unanswered.pop(wire_id, None)
            if roll() < traits.unreadable:
                self._say(ev.AnswerUnreadable(self.id, wire_id, "bad_answer", "The answer cannot be read."))
            elif self.era == "handshake" and roll() < traits.sends_to_urls:
                self._send_to_url(wire_id, call)
            else:
                is_error = roll() < traits.errs
                holds = self.era == "stateless" and call.method == READ and not is_error
                ttl_ms = traits.ttl_ms if holds else -1
                body = body_of(call, pad_bytes=traits.big_bytes if roll() < traits.big else 0)
                for _ in range(2 if roll() < traits.doubles else 1):
                    self._say(ev.ServerAnswered(self.id, wire_id, is_error, body, ttl_ms, traits.public))
            if roll() < traits.asks_late:
                self._later(self.host.rng.uniform(0.0, 1.0), lambda: self._ask(wire_id, call, live=False))
            if roll() < traits.dies_after_call:
                self.die("ended with exit code 3")
        self._answer_ping()
        self._read_soon()

    def _send_to_url(self, wire_id: WireId, call: Call) -> None:
        elicitation = self.asker.elicitation()
        page = RawJson(
            b'{"mode":"url","message":"u=%d","url":"https://x/y","elicitationId":"%b"}'
            % (number_of(call), elicitation.encode())
        )
        self._say(ev.UrlElicitationRequired(self.id, wire_id, (elicitation,), (page,)))
        self._say(ev.ServerAnswered(self.id, wire_id, is_error=True, body=body_of(call)))
        self._aloud(3.0, lambda: self._end_elicitation(elicitation, number_of(call)))

    def _end_elicitation(self, elicitation: str, about: int) -> None:
        done = RawJson(b'{"elicitationId":"%b","about":%d}' % (elicitation.encode(), about))
        self._say(ev.ElicitationCompleted(self.id, elicitation, done))

    # --- asks -------------------------------------------------------------------------------------------

    def ask_answered(self, request: RawJson, is_error: bool, body: RawJson) -> None:
        """An answer to one of its asks was written to it."""
        asked = self.asker.open.get(request, [])
        self.asker.answered(request, is_error, body, self.host.now)
        if self.era == "stateless" and is_error and asked and asked[0].kind not in FORMS:
            for wire, call in list(self.unanswered.items()):
                if number_of(call) == asked[0].about and wire in self._open:
                    self._over(wire, call)

    def ask_progressed(self, token: RawJson, params: RawJson) -> None:
        """It was told how far an agent is with one of its asks."""
        self.asker.progressed(token, params)
