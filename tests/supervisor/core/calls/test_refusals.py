"""The last words of a program that ended before it served are part of the error."""

from typing import Any

import pytest

from carpool_protocol.ids import InstanceId
from carpool_supervisor.core.calls.refusals import LAST_WORDS_CHARS, telling_stderr_line
from carpool_supervisor.core.model import events as ev
from tests.behaviours import behaviour
from tests.supervisor.era.test_era_detection import EraRig

PYTHON = """Traceback (most recent call last):
  File "/x/server.py", line 1, in <module>
    import nope
ModuleNotFoundError: No module named 'nope'
"""
NODE = """node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/x/server.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15) {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v22.1.0
"""
NPM = """npm error code E404
npm error 404 Not Found - GET https://registry/@nobody%2fnothing
npm error 404  '@nobody/nothing@*' is not in this registry.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: /x/debug-0.log
"""
DOCKER = """docker: Cannot connect to the Docker daemon. Is the docker daemon running?

Run 'docker run --help' for more information
"""


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'nope'"),
        (NODE, "Error: Cannot find module '/x/server.js'"),
        ("starting\nsh: 1: no-such-thing: not found\n\n", "sh: 1: no-such-thing: not found"),
        ("one thing went wrong.\n", "one thing went wrong"),
        ("/usr/bin/python3: No module named carpool\n", "/usr/bin/python3: No module named carpool"),
        (
            "/x/python: Error while finding module specification for 'carpool.pymodule' "
            "(ModuleNotFoundError: No module named 'carpool')\n",
            "/x/python: Error while finding module specification for 'carpool.pymodule' "
            "(ModuleNotFoundError: No module named 'carpool'); install carpool and "
            "'mcp>=2.3,<3' for that Python, or let `interpreter` name one that has them",
        ),
        (NPM, "npm error 404  '@nobody/nothing@*' is not in this registry"),
        (DOCKER, "docker: Cannot connect to the Docker daemon. Is the docker daemon running?"),
        ("a " * LAST_WORDS_CHARS, ("a " * LAST_WORDS_CHARS)[:LAST_WORDS_CHARS]),
        ("  indented only\n}\n", ""),
        ("", ""),
    ],
)
def test_the_line_that_tells_most_is_found(stderr: str, words: str) -> None:
    assert telling_stderr_line(stderr) == words


def failing(stderr: str, *, greeted: bool = False) -> tuple[EraRig, list[Any]]:
    rig = EraRig("handshake")
    rig.feed(ev.InstanceSpawned(InstanceId(1), 100))
    if greeted:
        rig.greeted(1, "handshake")
    end = ev.InstanceExited(InstanceId(1), "ended with exit code 1", (), stderr, 0.5, refused_nothing=True)
    return rig, rig.feed(end)


@behaviour("errors:first-words")
def test_a_server_that_ends_before_it_has_greeted_is_quoted() -> None:
    rig, _ = failing(PYTHON)
    [pool] = rig.core.pool_reports()
    assert pool.last_error == (
        "ended with exit code 1 before it had greeted: ModuleNotFoundError: No module named 'nope'"
    )


@behaviour("errors:first-words")
def test_a_server_that_has_served_is_not_quoted_because_its_stderr_may_be_of_other_agents() -> None:
    rig, _ = failing(PYTHON, greeted=True)
    [pool] = rig.core.pool_reports()
    assert pool.last_error == "ended with exit code 1"


@behaviour("errors:first-words")
def test_a_stderr_line_that_only_repeats_the_error_is_left_out() -> None:
    rig = EraRig("handshake")
    rig.feed(ev.InstanceSpawned(InstanceId(1), 100))
    rig.feed(ev.GreetingFailed(InstanceId(1), "cannot reach far.example (why)", ""))
    said = "carpool bridge: cannot reach far.example (why)\n"
    rig.feed(ev.InstanceExited(InstanceId(1), "ended with exit code 1", (), said, 0.5))
    [pool] = rig.core.pool_reports()
    assert pool.last_error == "cannot reach far.example (why)"


def test_effects_do_not_depend_on_texts_that_a_journal_leaves_out() -> None:
    effects, blank = failing(PYTHON)[1], failing(" " * len(PYTHON))[1]
    assert [type(each) for each in effects] == [type(each) for each in blank]
