"""Sessions at other nodes in the place of processes: what is left when the node's process dies."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import NodeTarget
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.spawn.node_sessions import NodeSessionStarter
from carpool_supervisor.spawn.request import AtLimitError, Pipes, close_all
from tests.behaviours import behaviour
from tests.kit.descriptors import descriptors_left
from tests.kit.leaks import no_leaks
from tests.kit.waits import until

TARGET = NodeTarget("beta", "git", keeps_state=False)


class Reports:
    """What was reported of instances."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.failed: list[int] = []
        self.ended: list[int] = []

    def starter(self, ready: ReadySet, path: str) -> NodeSessionStarter:
        """One that reports here."""
        return NodeSessionStarter(
            ready,
            path,
            on_opened=lambda instance, _node, _number: self.opened.append(instance),
            on_failed=lambda instance, _text, _final: self.failed.append(instance),
            on_ended=lambda instance, _text, _final: self.ended.append(instance),
        )


def close_pipes(pipes: list[Pipes]) -> None:
    """Close the ends that were given out."""
    for each in pipes:
        close_all((each.stdin_fd, each.stdout_fd, each.stderr_fd))


@contextmanager
def node_socket(directory: Path) -> Iterator[tuple[str, socket.socket]]:
    """The socket of a node's process, which a test plays."""
    path = str(directory / "node.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(8)
        yield path, listener


@behaviour("faults:own-shortage")
@pytest.mark.parametrize("free", [0, 1, 4])
def test_a_session_for_which_no_descriptor_is_free_is_refused_for_that_reason(
    tmp_path: Path, free: int
) -> None:
    ready = ReadySet()
    with node_socket(tmp_path) as (path, _):
        starter = Reports().starter(ready, path)
        with descriptors_left(free), pytest.raises(AtLimitError, match="Too many open files"):
            starter.open(InstanceId(1), TARGET)
        starter.close()
    ready.close()


@behaviour("cluster:deaths")
async def test_requests_that_a_dying_node_s_process_has_not_read_leave_no_descriptor(tmp_path: Path) -> None:
    reports = Reports()
    with no_leaks(), node_socket(tmp_path) as (path, listener):
        ready = ReadySet()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, lambda: None)
            starter = reports.starter(ready, path)
            pipes = [starter.open(InstanceId(1), TARGET)]
            node, _ = listener.accept()
            with node:
                # It reads nothing: the socket takes so many requests, and the others wait with their pipes.
                pipes += [starter.open(InstanceId(number), TARGET) for number in range(2, 400)]
            await until(lambda: len(reports.failed) == 399, "all are reported as failed")
            assert reports.opened == reports.ended == []
            close_pipes(pipes)
            nursery.cancel_scope.cancel()
        ready.close()


@behaviour("cluster:deaths")
async def test_each_session_is_reported_once_when_the_node_s_process_dies_and_the_next_one_serves(
    tmp_path: Path,
) -> None:
    reports = Reports()
    with no_leaks(), node_socket(tmp_path) as (path, listener):
        ready = ReadySet()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.run, lambda: None)
            starter = reports.starter(ready, path)
            pipes = [starter.open(InstanceId(number), TARGET) for number in (1, 2)]
            node, _ = listener.accept()
            with node:
                node.send(b'{"opened": 1, "node": "beta", "session": 5}\n{"ended": 9}\n')
                await until(lambda: reports.opened == [1], "the first one is open")
            await until(lambda: (reports.failed, reports.ended) == ([2], [1]), "both have ended")
            pipes.append(starter.open(InstanceId(3), TARGET))
            node, _ = listener.accept()
            with node:
                data, fds, *_ = socket.recv_fds(node, 1000, 10)
                assert b'"open":3' in data
                assert len(fds) == 3
                for fd in fds:
                    os.close(fd)
                starter.close()
            assert reports.failed == [2, 3]
            close_pipes(pipes)
            nursery.cancel_scope.cancel()
        ready.close()
