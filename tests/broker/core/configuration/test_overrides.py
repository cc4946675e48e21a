"""What operators switch on and off: which word counts, and when one says nothing any more."""

import json
from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carpool_broker.core.configuration.overrides import Overrides, is_on
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.ids import ServerName, SessionId
from tests.behaviours import behaviour

A, OFF = ServerName("a"), ServerName("off")
ONE, TWO = SessionId("s1"), SessionId("s2")


def config(**disabled: object) -> Config:
    return read({name: {"command": "x", "disabled": off} for name, off in disabled.items()})


def read(servers: object, file: str = "/c.json") -> Config:
    loaded = read_config(json.dumps({"mcpServers": servers}), file)
    assert loaded.config is not None
    return loaded.config


def on(config: Config) -> list[str]:
    return [name for name, server in config.servers.items() if not server.disabled]


PLAIN = config(a=False, off=True)


def one(name: ServerName, of: Config = PLAIN) -> ServerConfig:
    return of.servers[name]


@behaviour("switch:live")
def test_a_global_override_is_stronger_than_the_file() -> None:
    switches = Overrides()
    assert switches.apply_to_config(PLAIN) is PLAIN
    switches.set(A, [one(A)], on=False)
    switches.set(OFF, [one(OFF)], on=True)
    assert on(switches.apply_to_config(PLAIN)) == ["off"]
    assert list(switches.apply_to_config(PLAIN).servers) == ["a", "off"], "in the order of the file"


def test_an_override_that_agrees_with_the_file_is_not_kept() -> None:
    switches = Overrides()
    for server, way in ((A, True), (OFF, False)):
        switches.set(server, [one(server)], on=not way)
        switches.set(server, [one(server)], on=way)
    assert switches.global_overrides == {}
    assert switches.apply_to_config(PLAIN) is PLAIN


def test_an_override_is_kept_if_any_of_several_files_disagrees() -> None:
    switches = Overrides()
    switches.set(A, [one(A), one(A, config(a=True))], on=False)
    assert switches.global_overrides == {A: False}


@behaviour("switch:session")
def test_a_sessions_own_switch_concerns_no_other_and_is_stronger() -> None:
    switches = Overrides()
    switches.set_for_session(ONE, one(A), on=False)
    assert (
        on(switches.apply_to_config(PLAIN, switches.of_session(ONE))),
        on(switches.apply_to_config(PLAIN, switches.of_session(TWO))),
    ) == (
        [],
        ["a"],
    )
    switches.set_for_session(TWO, one(OFF), on=True)
    assert on(switches.apply_to_config(PLAIN, switches.of_session(TWO))) == ["a", "off"]
    assert (switches.session_closed(TWO), switches.session_closed(TWO)) == (True, False)
    assert switches.of_session(TWO) == ()


def test_a_global_override_removes_overrides_of_sessions() -> None:
    switches = Overrides()
    switches.set_for_session(ONE, one(A), on=False)
    switches.set(A, [one(A)], on=True)
    assert (switches.global_overrides, switches.session_overrides) == ({}, {})
    switches.set(A, [one(A)], on=False)
    switches.set_for_session(ONE, one(A), on=True)
    assert on(switches.apply_to_config(PLAIN, switches.of_session(ONE))) == ["a"]
    switches.set(A, [one(A)], on=False)
    assert on(switches.apply_to_config(PLAIN, switches.of_session(ONE))) == []


def test_a_switch_decides_in_place_of_a_variable() -> None:
    late = config(a="${OFF:-true}")
    switches = Overrides()
    for way in (True, False):
        switches.set(A, [one(A, late)], on=way)
        (server,) = switches.apply_to_config(late).servers.values()
        assert (server.disabled, server.late) == (not way, {})


def test_a_disabled_entry_without_a_launch_stays_off() -> None:
    away = read({"a": {"disabled": True}}, ".mcp.json")
    switches = Overrides()
    switches.set(A, [one(A, away)], on=True)
    assert switches.global_overrides == {}
    switches.set(A, [one(A, config(a=True)), one(A, away)], on=True)
    assert on(switches.apply_to_config(away)) == []
    assert on(switches.apply_to_config(config(a=True))) == ["a"]


def test_servers_that_have_left_start_with_what_their_files_say() -> None:
    switches = Overrides()
    switches.set(A, [one(A)], on=False)
    switches.set_for_session(ONE, one(OFF), on=True)
    assert switches.servers_removed([A, OFF, ServerName("stranger")])
    assert (switches.global_overrides, switches.session_overrides) == ({}, {})
    assert not switches.servers_removed([A])


def test_the_reason_of_a_disabled_server_names_its_origin() -> None:
    switches = Overrides()
    assert switches.disabled_reason(one(OFF)) == "/c.json says so."
    switches.set(A, [one(A)], on=False)
    assert "until carpool stops" in switches.disabled_reason(one(A))
    switches.set_for_session(ONE, one(OFF), on=True)
    switches.set_for_session(TWO, one(A), on=True)
    switches.set_for_session(TWO, one(A), on=False)
    assert "until carpool stops" in switches.disabled_reason(one(A), switches.of_session(TWO)), (
        "nothing of its own is left"
    )
    switches.clear(A)
    switches.set_for_session(ONE, one(A), on=False)
    assert "for this agent" in switches.disabled_reason(one(A), switches.of_session(ONE))


class OverridesMachine(RuleBasedStateMachine):
    """Against the plainest model: of all that was said about a session and a server the last word counts."""

    def __init__(self) -> None:
        super().__init__()
        self.switches = Overrides()
        self.everyone: dict[str, bool] = {}
        self.own: dict[tuple[str, str], bool] = {}

    servers = st.sampled_from(["a", "off", "late"])
    sessions = st.sampled_from(["s1", "s2"])
    config = config(a=False, off=True, late="${X:-false}")

    def written(self, name: str) -> ServerConfig:
        return self.config.servers[ServerName(name)]

    @rule(name=servers, way=st.booleans())
    def turn(self, name: str, way: bool) -> None:
        self.switches.set(ServerName(name), [self.written(name)], on=way)
        self.everyone[name] = way
        self.own = {key: each for key, each in self.own.items() if key[1] != name}

    @rule(session=sessions, name=servers, way=st.booleans())
    def turn_for(self, session: str, name: str, way: bool) -> None:
        self.switches.set_for_session(SessionId(session), self.written(name), on=way)
        self.own[session, name] = way

    @rule(name=servers)
    def forget(self, name: str) -> None:
        self.switches.clear(ServerName(name))
        self.everyone.pop(name, None)
        self.own = {key: each for key, each in self.own.items() if key[1] != name}

    @rule(session=sessions)
    def end(self, session: str) -> None:
        self.switches.session_closed(SessionId(session))
        self.own = {key: each for key, each in self.own.items() if key[0] != session}

    @invariant()
    def the_last_word_counts(self) -> None:
        self.switches.check()
        files: Mapping[str, bool | None] = {name: is_on(each) for name, each in self.config.servers.items()}
        for session in ("s1", "s2", "s3"):
            seen = self.switches.apply_to_config(self.config, self.switches.of_session(SessionId(session)))
            for name, said in files.items():
                wished = self.own.get((session, name), self.everyone.get(name, said))
                assert is_on(seen.servers[ServerName(name)]) is wished


TestSwitches = OverridesMachine.TestCase
TestSwitches.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
