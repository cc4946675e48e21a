"""The broker's core with hooks, against the model of `test_broker_machine`.

Whatever hooks say, and however late: no call is lost, sent twice, or sent against a denial, and each run of a
hook is over some time.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from carpool_broker.core.model import effects as ef
from carpool_broker.core.model import events as ev
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.ids import EMPTY_OBJECT, CallId, RawJson
from carpool_protocol.link.messages import Call
from tests.behaviours import behaviour
from tests.broker.core.test_broker_machine import PICK, BrokerMachine

TIMEOUT_S = 1.0
RULE = st.builds(
    ev.HookRule,
    name=st.sampled_from(["one", "two", "three"]),
    before=st.booleans(),
    after=st.booleans(),
    match=st.sampled_from([(capability("*"),), (capability("mcp:a:*"),)]),
    timeout_s=st.just(TIMEOUT_S),
    closed=st.booleans(),
    rewrite=st.booleans(),
)
VERDICTS: st.SearchStrategy[ev.HookVerdict] = st.sampled_from(["allow", "allow", "deny", "rewrite", "failed"])


class HooksMachine(BrokerMachine):
    def __init__(self) -> None:
        self.runs: dict[ev.RunId, ef.BeginHook] = {}
        """That the shell has begun, and not said to be over."""
        self.left: set[CallId] = set()
        self.denied: set[CallId] = set()
        super().__init__()

    def perform(self, effects: list[Any]) -> None:
        rest: list[Any] = []
        for effect in effects:
            match effect:
                case ef.BeginHook():
                    assert effect.run not in self.runs
                    self.runs[effect.run] = effect
                    assert effect.outcome or effect.call not in self.left, "too late"
                case ef.EndHook():
                    assert effect.run in self.runs
                case ef.LogLine():
                    pass
                case Call():
                    assert effect.call not in self.left, "sent twice"
                    assert effect.call not in self.denied
                    self.left.add(effect.call)
                    rest.append(effect)
                case _:
                    rest.append(effect)
        super().perform(rest)

    @initialize(rules=st.lists(RULE, min_size=1, max_size=3, unique_by=lambda rule: rule.name))
    def hooks_are_there(self, rules: list[ev.HookRule]) -> None:
        self.feed(ev.HooksRead(tuple(rules)))

    @rule(rules=st.lists(RULE, max_size=3, unique_by=lambda rule: rule.name))
    def hooks_are_read(self, rules: list[ev.HookRule]) -> None:
        self.feed(ev.HooksRead(tuple(rules)))

    @precondition(lambda self: self.runs)
    @rule(pick=PICK, verdict=VERDICTS, size=st.sampled_from([2, 300]))
    def hook_answers(self, pick: int, verdict: ev.HookVerdict, size: int = 2) -> None:
        run = list(self.runs)[pick % len(self.runs)]
        what = self.runs.pop(run)
        held = self.core.hooks._held.get(what.call)
        if verdict == "deny" and not what.outcome and held is not None and held.run == run:
            self.denied.add(what.call)
        body = RawJson(b"{%b}" % (b" " * (size - 2))) if verdict == "rewrite" else EMPTY_OBJECT
        self.feed(ev.HookAnswered(run, verdict, "", body))

    @precondition(lambda self: self.runs)
    @rule()
    def hooks_let_all_pass(self) -> None:
        while self.runs:
            self.hook_answers(0, "allow")

    @rule(run=st.integers(1, 99))
    def a_late_verdict_comes(self, run: int) -> None:
        if run not in self.runs:
            assert self.core.handle(ev.HookAnswered(ev.RunId(run), "deny"), self.now) == []

    def teardown(self) -> None:
        self.wait(4 * TIMEOUT_S)
        super().teardown()
        assert not self.core.hooks._runs


HooksMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestHooksMachine = behaviour("hooks:once", "calls:one-answer")(HooksMachine.TestCase)
