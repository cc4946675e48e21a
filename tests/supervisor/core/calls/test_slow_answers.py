"""Answers that take longer to arrive than the idle timeout of their call."""

import pytest

from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Policy
from carpool_supervisor.core.model import events as ev
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, pool_spec

KEY = PoolKey("big:plain")


@pytest.mark.xfail(
    reason="bytes of an unfinished line restart the silence of their instance and not the idle timeout of "
    "its call: an answer that takes longer to arrive over a slow link is timed out while it arrives"
)
@behaviour("cluster:bytes")
def test_a_call_is_not_timed_out_while_the_bytes_of_its_answer_arrive() -> None:
    rig = SupervisorRig(pool_spec(KEY, Policy(timeout_s=20.0)), broker=True)
    rig.call(1)
    [instance] = rig.spawned
    rig.greet(instance)
    assert 1 in rig.written
    for _ in range(20):
        rig.wait(5.0)
        rig.feed(ev.StdoutReceived(instance))
    assert 1 not in rig.failed
