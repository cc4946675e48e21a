"""A disk that does not answer, or answers late: who waits for it, how long, and what follows in the end."""

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from carpool_broker.config import blocking_io, workspaces
from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.config.locations import WorkspaceRequest
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.config.scan import scan_workspace as real_look
from carpool_broker.config.watcher import ConfigWatcher
from carpool_broker.core.model.events import SessionSourceChanged, SourceRead
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.ids import SessionId
from tests.behaviours import behaviour
from tests.kit.waits import until

ONE, TWO = SessionId("s1"), SessionId("s2")


class WatcherRig:
    """A reader with projects, whose disk can be made to hang where a test says."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.file = base / "carpool.json"
        self.user(a="mine")
        self.configuration = Configuration(ConfigFile(str(self.file), asked_for=True), {"HOME": str(base)})
        self.fed: list[ConfigurationChange] = []
        self.nursery: trio.Nursery | None = None
        self.reader = ConfigWatcher(self.configuration, self.fed.extend, lambda: None, self._start_soon)
        self.hung: dict[str, threading.Event] = {}
        """By directory: what looks there waits for."""
        self.looks: list[str] = []
        monkeypatch.setattr(workspaces, "scan_workspace", self._look)

    def _start_soon(self, work: Callable[..., Awaitable[object]], *about: object) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(work, *about)

    def _look(self, workspace_request: WorkspaceRequest, *args: Any, **more: Any) -> WorkspaceScan:
        self.looks.append(workspace_request.cwd)
        before = real_look(workspace_request, *args, **more)
        if (hung := self.hung.get(workspace_request.cwd)) is None:
            return before
        assert hung.wait(20)
        return before if hung.name == "old" else real_look(workspace_request, *args, **more)  # type: ignore[attr-defined]

    def user(self, **commands: str) -> None:
        servers = {name: {"command": command} for name, command in commands.items()}
        self.file.write_text(json.dumps({"mcpServers": servers}))

    def project(self, name: str, *servers: str) -> str:
        directory = self.base / name
        directory.mkdir(exist_ok=True)
        (directory / ".mcp.json").write_text(
            json.dumps({"mcpServers": {each: {"command": "x"} for each in servers}})
        )
        return str(directory)

    def hang(self, directory: str, answers: str = "new") -> Callable[[], None]:
        """The next looks there wait until what is returned is called; then they find what is there now, or
        (`old`) what was there when they began.
        """
        event = self.hung[directory] = threading.Event()
        event.name = answers  # type: ignore[attr-defined]

        def free() -> None:
            self.hung.pop(directory, None)
            event.set()

        return free

    def come(self, session: SessionId, directory: str) -> list[str]:
        """What this session hears, once it is in: the servers that await trust, or why nothing is known."""
        attach = Attach(version=ATTACH_VERSION, carrier="shim", cwd=directory)
        heard: list[str] = []

        def welcome(_: WorkspaceScan) -> None:
            self.configuration.session_opened(session, attach, {})
            heard.extend(self.sees(session))

        self.reader.scan(WorkspaceRequest("", directory), welcome)
        return heard

    def sees(self, session: SessionId) -> list[str]:
        guest = self.configuration.session_context(session)
        assert guest is not None
        read = self.configuration.resolve_source(guest.source)
        return [read.broken] if read.broken else sorted(read.untrusted) or ["nothing"]


@asynccontextmanager
async def desk(
    base: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float = 0.2
) -> AsyncIterator[WatcherRig]:
    monkeypatch.setattr(blocking_io, "BLOCKING_TIMEOUT_S", patience_s)
    one = WatcherRig(base, monkeypatch)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            one.nursery = nursery
            yield one
            for event in one.hung.values():
                event.set()
            nursery.cancel_scope.cancel()


@behaviour("workspaces:disk")
async def test_a_session_on_a_hanging_disk_is_told_so_and_gets_its_project_when_the_disk_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        hung, other = one.project("hung", "h"), one.project("other", "o")
        free = one.hang(hung)
        waits, goes = one.come(ONE, hung), one.come(TWO, other)
        await until(lambda: bool(goes), "another project is read meanwhile")
        assert (waits, goes) == ([], ["o"])
        await until(lambda: bool(waits), "it is not waited for without end")
        assert waits == ["its directory could not be read in time"]
        (row,) = [each for each in one.configuration.workspace_rows() if each["root"] == hung]
        assert "could not be read within" in str(row["problems"])
        assert not one.fed
        free()
        await until(lambda: bool(one.fed), "it is read in the end")
        assert one.sees(ONE) == ["h"]
        assert [each.session for each in one.fed if isinstance(each, SessionSourceChanged)] == [ONE]


@behaviour("workspaces:disk")
async def test_a_hanging_directory_is_not_read_again_and_takes_no_thread_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        places = [one.project(f"hung{at}", "h") for at in range(2 * blocking_io.MAX_THREADS)]
        for place in places:
            one.hang(place)
        heard = [one.come(SessionId(f"s{at}"), place) for at, place in enumerate(places)]
        await until(lambda: all(heard), "each is told")
        again = one.come(SessionId("again"), places[0])
        assert again == ["its directory could not be read in time"], "at once"
        fine = one.come(SessionId("fine"), one.project("fine", "f"))
        await until(lambda: bool(fine), "there is a thread for others")
        assert fine == ["f"]
        began = len(places) + 1
        await until(lambda: len(one.looks) == began, "the thread of each has begun")
        for event in [*one.hung.values()]:
            event.set()
        await until(lambda: one.sees(SessionId("s7")) == ["h"], "each has its project in the end")
        assert len(one.looks) == began


@behaviour("workspaces:disk")
async def test_a_look_that_comes_late_takes_nothing_back_that_a_later_one_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        place, below = one.project("p", "first"), tmp_path / "p" / "below"
        below.mkdir()
        free = one.hang(place, "old")
        first = one.come(ONE, place)
        await until(lambda: bool(first), "it is given up")
        one.project("p", "second")
        two = one.come(TWO, str(below))
        await until(lambda: bool(two), "the same project from another directory")
        assert two == ["second"]
        free()
        await until(lambda: one.sees(ONE) != ["its directory could not be read in time"], "it has come")
        assert one.sees(ONE) == one.sees(TWO) == ["second"]


@behaviour("workspaces:disk")
async def test_a_project_that_cannot_be_read_any_more_stays_as_it_was_and_the_rest_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        hung, other = one.project("hung", "h"), one.project("other", "o")
        both = one.come(ONE, hung), one.come(TWO, other)
        await until(lambda: all(both), "they are in")
        free = one.hang(hung)
        one.project("hung", "h2")
        one.project("other", "o2")
        one.user(a="mine", b="mine")
        followed = await one.reader.reload()
        assert [each for each in followed if isinstance(each, SourceRead)]
        assert (one.sees(ONE), one.sees(TWO)) == (["h"], ["o2"])
        assert set(one.configuration.config.servers) == {"a", "b"}
        (row,) = [each for each in one.configuration.workspace_rows() if each["root"] == hung]
        assert "could not be read within" in str(row["problems"])
        free()
        await until(lambda: one.sees(ONE) == ["h2"], "it is read in the end")
        assert not await one.reader.find_changes()


@behaviour("workspaces:disk", "config:last-good")
async def test_a_users_file_that_cannot_be_read_stays_as_it_was_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        event, users = threading.Event(), one.configuration.user_file
        load = users.load
        monkeypatch.setattr(users, "load", lambda: event.wait(20) and load())
        one.user(b="mine")
        await one.reader.reload()
        assert "could not be read within" in one.configuration.problem
        assert set(one.configuration.config.servers) == {"a"}
        assert not await one.reader.find_changes(), "it is not asked while it hangs"
        event.set()
        await until(lambda: not one.reader.blocking_work.is_hanging(""), "it has answered")
        (changed,) = await one.reader.find_changes()
        await one.reader.reload([changed])
        assert (one.configuration.problem, set(one.configuration.config.servers)) == ("", {"b"})


@behaviour("workspaces:disk")
async def test_files_of_a_disk_that_hangs_are_watched_no_longer_and_all_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        hung, other = one.project("hung", "h"), one.project("other", "o")
        both = one.come(ONE, hung), one.come(TWO, other)
        await until(lambda: all(both), "they are in")
        event, seen = threading.Event(), one.configuration.watched_files()
        (stuck,) = [each for each in seen if each.key.startswith(hung)]

        class Hangs(dict[str, Any]):
            def items(self) -> Any:
                event.wait(20)
                return super().items()

        groups = [stuck.__class__(stuck.key, Hangs(stuck.seen), stuck.requests), *seen]
        monkeypatch.setattr(one.configuration, "watched_files", lambda: groups)
        one.project("other", "o2")
        assert await one.reader.find_changes() == []
        (changed,) = await one.reader.find_changes()
        assert changed.key.startswith(other)
        event.set()
        await until(lambda: not one.reader._stuck, "it is watched again")


@behaviour("workspaces:disk")
async def test_a_workspace_scan_for_an_attaching_session_does_not_outlive_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is there yet, so that nothing of it was read again."""
    async with desk(tmp_path, monkeypatch) as one:
        place = one.project("p", "first")
        seen: list[WorkspaceScan] = []
        one.reader.scan(WorkspaceRequest("", place), seen.append)
        await until(lambda: bool(seen), "it is seen")
        one.project("p", "second")
        await one.reader.reload()
        heard = one.come(ONE, place)
        await until(lambda: bool(heard), "it is in")
        assert heard == ["second"]


@behaviour("workspaces:disk")
async def test_a_second_session_gets_the_workspace_scan_also_when_the_first_leaves_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first one all that was known of the place is forgotten."""
    async with desk(tmp_path, monkeypatch) as one:
        place = one.project("p", "there")

        def come_and_go(_: WorkspaceScan) -> None:
            one.configuration.session_opened(
                ONE, Attach(version=ATTACH_VERSION, carrier="shim", cwd=place), {}
            )
            one.configuration.session_closed(ONE)

        one.reader.scan(WorkspaceRequest("", place), come_and_go)
        heard = one.come(TWO, place)
        await until(lambda: bool(heard), "it is in")
        assert heard == ["there"]


@behaviour("workspaces:disk")
async def test_a_session_that_attaches_during_a_reload_ends_where_the_new_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody was left, so that it was looked by the old file meanwhile."""
    async with desk(tmp_path, monkeypatch, patience_s=5.0) as one:
        place, other = one.project("p", "its"), one.project("other", "o")
        for session, directory in ((ONE, place), (TWO, other)):
            heard = one.come(session, directory)
            await until(lambda heard=heard: bool(heard), "it is in")  # type: ignore[misc]
        named = {"mcpServers": {}, "workspaces": {"w": {"root": place}}}
        one.file.write_text(json.dumps(named))
        free, began = one.hang(other), len(one.looks)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.reader.reload)
            await until(lambda: len(one.looks) == began + 2, "both are looked at")
            await until(
                lambda: (WorkspaceRequest("", place)) not in one.reader.blocking_work._open, "one of them was"
            )
            one.configuration.session_closed(ONE)
            heard = one.come(SessionId("s3"), place)
            await until(lambda: bool(heard), "it is in by the old file")
            free()
        assert one.configuration.workspace_of(SessionId("s3"))["name"] == "w"


@behaviour("workspaces:disk")
async def test_a_named_workspace_whose_directory_does_not_answer_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as one:
        named = {"mcpServers": {}, "workspaces": {"w": {"root": one.project("p", "its")}}}
        one.file.write_text(json.dumps(named))
        await one.reader.reload()
        one.hang("")
        attach = Attach(version=ATTACH_VERSION, carrier="door", workspace="w")  # over HTTP: no directory
        seen: list[WorkspaceScan] = []
        one.reader.scan(one.configuration.initial_request(attach), seen.append)
        await until(lambda: bool(seen), "it is given up")
        layers = one.configuration.layers
        rows = layers.workspace_rows(layers.workspaces.projects.keys())
        (row,) = [each for each in rows if each["trust"] != "own"]
        assert (row["name"], row["root"]) == ("w", "")
        assert "the workspace w could not be read within" in str(row["problems"])


@behaviour("workspaces:disk")
async def test_a_late_workspace_scan_counts_also_for_a_session_that_still_attaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its carrier is asked for variables meanwhile."""
    async with desk(tmp_path, monkeypatch) as one:
        place = one.project("p", "its")
        free = one.hang(place)
        seen: list[WorkspaceScan] = []
        one.reader.scan(WorkspaceRequest("", place), seen.append)
        await until(lambda: bool(seen), "it is given up")
        free()
        await until(
            lambda: not one.reader.blocking_work.is_hanging(WorkspaceRequest("", place)), "it has come"
        )
        heard = one.come(ONE, place)
        await until(lambda: bool(heard), "it is in")
        assert heard == ["its"]


async def test_a_session_that_comes_during_a_look_at_the_files_causes_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    one = WatcherRig(tmp_path, monkeypatch)
    one.reader._session_comes.set()  # while the watcher looks, which is before it waits
    began = trio.current_time()
    await one.reader.wait_for_session(16.0)
    assert trio.current_time() == began
    await one.reader.wait_for_session(16.0)
    assert trio.current_time() == began + 16.0
