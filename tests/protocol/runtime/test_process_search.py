"""Each process that is listed is judged, also one that appears while others end."""

import os

from carpool_protocol.runtime.process_search import MOST_LISTS, find_processes


def test_each_process_is_judged_once_and_this_one_is_not() -> None:
    judged: list[int] = []

    def judge(pid: int) -> bool:
        judged.append(pid)
        return pid != 2

    assert find_processes(lambda: [1, os.getpid(), 2, 3, 1], judge) == [1, 3]
    assert judged == [1, 2, 3]


def test_processes_are_listed_again_until_none_has_ended_unjudged() -> None:
    """Each of the first two ends and has started the next one, after the list."""
    lists = [[1], [2], [3], [4]]
    listed: list[int] = []

    def list_pids() -> list[int]:
        listed.append(len(listed))
        return lists[listed[-1]]

    assert find_processes(list_pids, lambda pid: True if pid == 3 else None) == [3]
    assert listed == [0, 1, 2]


def test_the_search_ends_though_processes_end_all_the_time() -> None:
    lists = [[pid] for pid in range(1, MOST_LISTS + 2)]
    assert find_processes(lambda: lists.pop(0), lambda _: None) == []
    assert len(lists) == 1
