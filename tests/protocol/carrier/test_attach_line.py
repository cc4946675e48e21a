"""The attach exchange: what is read, what is refused, and what stays a plain connection."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION
from carpool_protocol.carrier import attach_line
from carpool_protocol.carrier.attach_line import Attach, AttachProblem, RunCommand, parse_attach
from tests.behaviours import behaviour


def line(**params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "carpool/attach", "params": params}).encode()


def test_an_attach_line_is_read_back_as_it_was_written() -> None:
    wanted = Attach(
        version=ATTACH_VERSION,
        carrier="run",
        pid=7,
        cwd="/x",
        profile="reader",
        run=RunCommand(argv=["a", "b"], env={"A": "ü"}, cwd="/x", name="n"),
    )
    written = attach_line.attach_line(wanted)
    assert written.endswith(b"\n")
    assert parse_attach(written) == wanted


def test_unknown_members_are_ignored_and_missing_ones_have_defaults() -> None:
    assert parse_attach(line(version=ATTACH_VERSION, carrier="shim", later=1)) == Attach(
        version=ATTACH_VERSION, carrier="shim"
    )


@pytest.mark.parametrize(
    "first",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}',
        b"garbage",
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"method":5}',
    ],
)
def test_any_other_first_line_is_a_plain_connection(first: bytes) -> None:
    assert parse_attach(first) is None


def test_another_version_is_refused_before_the_rest_is_looked_at() -> None:
    problem = parse_attach(line(version=3, carrier=["shaped", "differently"]))
    assert isinstance(problem, AttachProblem)
    assert "carpool restart --all" in problem.text


@behaviour("workspaces:attach")
def test_a_workspace_is_named_in_a_version_of_its_own_that_an_earlier_broker_refuses() -> None:
    named = Attach(version=NAMING_VERSION, carrier="shim", workspace="shop")
    assert parse_attach(attach_line.attach_line(named)) == named
    assert NAMING_VERSION > ATTACH_VERSION


@pytest.mark.parametrize("chars", [-1, 1, 31, 65, 10**9])
def test_a_bound_on_names_that_no_name_can_keep_is_refused(chars: int) -> None:
    found = parse_attach(line(version=ATTACH_VERSION, carrier="shim", tool_name_length=chars))
    assert isinstance(found, AttachProblem)
    assert "32 to 64" in found.text


def test_a_malformed_line_is_refused_without_repeating_what_it_held() -> None:
    problem = parse_attach(
        line(
            version=ATTACH_VERSION,
            carrier="run",
            run={"argv": ["x"], "cwd": "/", "env": {"TOKEN": ["hunter2"]}},
        )
    )
    assert isinstance(problem, AttachProblem)
    assert "hunter2" not in problem.text
    assert "run.env" in problem.text


@pytest.mark.parametrize(
    "params", [{"carrier": "run"}, {"carrier": "shim", "run": {"argv": ["x"], "env": {}, "cwd": "/"}}]
)
def test_a_run_carrier_and_only_it_brings_a_command(params: dict[str, object]) -> None:
    assert isinstance(parse_attach(line(version=ATTACH_VERSION, **params)), AttachProblem)


def test_an_empty_command_is_refused() -> None:
    run = {"argv": [], "env": {}, "cwd": "/"}
    assert isinstance(parse_attach(line(version=ATTACH_VERSION, carrier="run", run=run)), AttachProblem)


def test_the_brokers_lines_begin_as_the_shim_expects() -> None:
    from carpool.shim import pump

    assert attach_line.attached_line("s1", []).startswith(pump._ATTACHED)
    assert pump._NO_ENVIRONMENT in attach_line.attached_line("s1", [])
    assert pump._NO_ENVIRONMENT not in attach_line.attached_line("s1", ["A"])
    assert attach_line.refused_line("no").startswith(pump._REFUSED)


def test_the_brokers_yes_and_no_are_read_back() -> None:
    yes = attach_line.parse_attached(attach_line.attached_line("s1", ["A"]))
    assert yes == attach_line.Attached(version=ATTACH_VERSION, session="s1", env=["A"])
    assert attach_line.parse_attached(attach_line.refused_line("no, because")) == AttachProblem("no, because")
    assert isinstance(attach_line.parse_attached(b"HTTP/1.1 400 Bad Request"), AttachProblem)


def test_an_environment_line_is_read_and_other_lines_are_none() -> None:
    assert attach_line.parse_environment(attach_line.environment_line({"A": "1"})) == {"A": "1"}
    assert attach_line.parse_environment(b'{"method":"carpool/environment","params":{"A":1}}') is None
    assert attach_line.parse_environment(b'{"method":"ping"}') is None


@behaviour("private:environment")
@pytest.mark.parametrize(
    "mark", ['"mark":"",', '"mark":"other",', '"mark":null,', '"mark":"m","mark":"other",', ""]
)
def test_an_environment_line_without_the_mark_is_another_line(mark: str) -> None:
    honest = attach_line.environment_line({"A": "1"}, "m")
    assert attach_line.parse_environment(honest, "m") == {"A": "1"}
    forged = f'{{"jsonrpc":"2.0","method":"carpool/environment",{mark}"params":{{"A":"2"}}}}'
    assert attach_line.parse_environment(forged.encode(), "m") is None


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(deadline=None)
def test_no_bytes_make_the_readers_raise(noise: bytes) -> None:
    for framed in (noise, b'{"method":"carpool/attach","params":' + noise + b"}"):
        assert isinstance(parse_attach(framed), Attach | AttachProblem | None)
        attach_line.parse_attached(framed)
        attach_line.parse_environment(framed)
