"""What the broker tells a supervisor that comes of its sessions: who is there, and who has lost what."""

import pytest

from carpool_broker.core import events as ev
from carpool_protocol.ids import EMPTY_OBJECT, ServerName
from carpool_protocol.messages import Answered, Mode, PoolChanged, SessionNote, Sessions
from tests.behaviours import behaviour
from tests.broker.supervisors import supervisor_comes
from tests.broker.test_asks import KEY, ONE, TWO, Rig


def told(rig: Rig) -> list[SessionNote]:
    rig.feed(ev.SupervisorWent())
    [found] = [each for each in supervisor_comes(rig.feed) if isinstance(each, Sessions)]
    return found.live


@behaviour("lease:supervisor-restart")
@pytest.mark.parametrize("mode", ["session", "serial", "concurrent"])
def test_who_called_a_server_in_mode_session_has_lost_what_it_had_there(mode: Mode) -> None:
    rig = Rig()
    rig.come(ONE)
    rig.come(TWO)
    rig.feed(PoolChanged(KEY, "serving", "", None, mode))
    rig.feed(Answered(rig.call(ONE), is_error=False, body=EMPTY_OBJECT))
    lost = [ServerName("a")] if mode == "session" else []
    assert told(rig) == [SessionNote(ONE, lost), SessionNote(TWO, [])]


def test_it_is_told_once_unless_the_server_was_called_again() -> None:
    rig = Rig()
    rig.come(ONE)
    rig.feed(PoolChanged(KEY, "serving", "", None, "session"))
    rig.call(ONE)  # in flight when the supervisor dies: it may have run
    told(rig)
    rig.feed(PoolChanged(KEY, "serving", "", None, "session"))
    assert told(rig) == [SessionNote(ONE, [])]
