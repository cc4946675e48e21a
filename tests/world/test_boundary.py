"""The boundary of a carpool, driven by Hypothesis: sockets, carriers, streams, moves and deaths at any time.

The machine and its promises are `tests/kit/boundary_machine.py`; that it finds bugs is held by
`test_planted_bugs.py`.
"""

from tests.behaviours import behaviour
from tests.kit.boundary_machine import play

EXAMPLES = 40


@behaviour("boundary:one-answer", "leave:between-bursts", "leave:everybody-told")
def test_whatever_agents_do_and_when_each_request_has_one_answer_and_no_other_agent_notices() -> None:
    play(None, examples=EXAMPLES)
