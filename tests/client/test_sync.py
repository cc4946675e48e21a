"""The Python client without an event loop."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from carpool import NotRunning
from carpool.sync import Carpool
from tests.behaviours import behaviour
from tests.kit.scripted_broker import ScriptedBroker


@contextmanager
def played(script: Callable[[ScriptedBroker], None]) -> Iterator[str]:
    """A broker that does as the script says. Gives its directory."""
    with tempfile.TemporaryDirectory(prefix="cpd-", dir="/tmp") as directory:
        desk = ScriptedBroker(directory)

        def perform() -> None:
            script(desk)
            desk.until_gone()
            desk.shut()

        server = threading.Thread(target=perform)
        server.start()
        yield directory
        server.join()


@behaviour("client:sync")
def test_a_callback_may_call_and_a_program_may_fork() -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        call = desk.expect("tools/call")
        desk.say({"id": "a1", "method": "elicitation/create", "params": {"message": "who?"}})
        desk.text(desk.expect("tools/call"), "inner")
        assert desk.hear()["result"] == {"action": "accept", "content": {"who": "inner"}}
        desk.text(call, "done")

    def ask(_: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"who": agent.call("s__t").text}}

    with (
        played(script) as directory,
        Carpool(runtime_dir=directory, start=False, cwd=directory, on_elicitation=ask) as agent,
    ):
        assert agent.call("s__t").text == "done"
        agent._pid = os.getppid()  # as in a child of this process
        with pytest.raises(RuntimeError, match="forked from"):
            agent.ping()
        agent._pid = os.getpid()


@behaviour("client:sync")
def test_a_program_ends_that_has_not_closed_its_session() -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.text(desk.expect("tools/call"), "done")

    program = (
        "import sys; from carpool.sync import Carpool; it = Carpool(runtime_dir=sys.argv[1], start=False, "
    )
    program += "cwd=sys.argv[1], on_tools_changed=print); it.__enter__(); print(it.call('s__t').text)"
    with played(script) as directory:
        done = subprocess.run(
            [sys.executable, "-c", program, directory],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@behaviour("client:sync")
def test_threads_call_and_each_waits_for_its_own_answer() -> None:
    with tempfile.TemporaryDirectory(prefix="cpd-", dir="/tmp") as directory:
        desk = ScriptedBroker(directory)
        said: list[str] = []

        def script() -> None:
            desk.greeted()
            calls = [desk.expect("tools/call") for _ in range(4)]
            for call in reversed(calls):
                desk.text(call, call["params"]["arguments"]["text"])
            desk.answer(desk.expect("resources/read"), {"contents": []})
            desk.until_gone()
            desk.shut()

        def one(text: str) -> None:
            said.append(f"{text} {agent.call('s__t', {'text': text}).text}")

        server = threading.Thread(target=script)
        server.start()
        with Carpool(runtime_dir=directory, start=False, cwd=directory) as agent:
            assert agent.instructions == "Hello."
            threads = [threading.Thread(target=one, args=(str(at),)) for at in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert agent.read("x:y") == {"contents": []}
        server.join()
        assert sorted(said) == [f"{at} {at}" for at in range(4)]
        with pytest.raises(RuntimeError, match="not open"):
            agent.ping()
        with pytest.raises(NotRunning), Carpool(runtime_dir=f"{directory}/none", start=False):
            pytest.fail("nothing runs")
