"""One agent in a process of its own, beside those that ask for too much: how long each call of it takes.

Its own process, since the one that plays hundreds of agents is as overloaded as what it loads. `Calm` is the
parent's end. Knows nothing of: what the others do.
"""

import multiprocessing
from multiprocessing.connection import Connection

from bench.crowd import Crowd, CrowdAgent, CrowdAnswer

Heard = tuple[float, str]
"""Seconds to the answer, and its text."""


class Calm:
    """Calls `tool` again and again, `pause_s` after each answer, from its start until `heard`."""

    def __init__(self, directory: str, tool: str, arguments: bytes, pause_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_calls, args=(far, directory, tool, arguments, pause_s))
        self._process.start()
        far.close()
        self._pipe.recv()  # the first answer has come: the server runs

    def heard(self) -> list[Heard]:
        """What it has heard; it ends with that. SystemExit where a call of it was refused."""
        self._pipe.send(None)
        told = self._pipe.recv() if self._pipe.poll(60.0) else "it did not end"
        self._process.join(10.0)
        if isinstance(told, str):
            raise SystemExit(f"bench: the calm agent: {told}")
        return list(told)

    def close(self) -> None:
        """Ends it if it still runs."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()


def _calls(pipe: Connection, directory: str, tool: str, arguments: bytes, pause_s: float) -> None:
    crowd = Crowd(directory, lambda: None)
    crowd.TICK_S = 0.005
    heard: list[Heard] = []
    trouble = ""

    def on_answer(agent: CrowdAgent, answer: CrowdAnswer) -> None:
        nonlocal trouble
        if answer.code:
            trouble = f"a call was answered {answer.code}"
        heard.append((answer.took_s, answer.text))
        if pause_s:
            crowd.later(pause_s, lambda: ask(agent))
        else:
            ask(agent)

    def ask(agent: CrowdAgent) -> None:
        if not pipe.poll():
            agent.call(tool, arguments)

    one = crowd.agent(on_answer)
    crowd.greet()
    one.call(tool, arguments)
    crowd.run(60.0, lambda: bool(heard))
    pipe.send(None)
    heard.clear()
    crowd.run(600.0, lambda: bool(pipe.poll() or trouble or one.dropped))
    crowd.run(60.0, lambda: not one.open or one.dropped)
    if one.dropped or one.open:
        trouble = "it was dropped, or a call was not answered"
    pipe.send(trouble or heard)
    crowd.close()
