"""The Python client without an event loop."""

import tempfile
import threading

import pytest

from carpool import NotRunning
from carpool.sync import Carpool
from tests.behaviours import behaviour
from tests.kit.desk import Desk


@behaviour("client:sync")
def test_threads_call_and_each_waits_for_its_own_answer() -> None:
    with tempfile.TemporaryDirectory(prefix="cpd-", dir="/tmp") as directory:
        desk = Desk(directory)
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
