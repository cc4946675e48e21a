"""The PATH of servers: asks the user's login shell for it, and holds the first starts until it has answered.

Owns the time at which the shell is asked: once the broker wants it, and again when an operator starts or
restarts a server. Nothing is kept on disk, because the shell runs while everything else starts, and only the
first start of a server waits for it. Start files of version managers may take longer than
`login_path.LIMIT_S` on a busy machine: an answer that comes within `LATE_S` still counts, for the next start
of each server. A shell that did not answer by then is not asked again by this supervisor, so it costs one
wait.

Invariants: starts are held for `LIMIT_S` after a request at most; no process that the shell has started
outlives the request.

Knows nothing of: servers, the spawner, how the shell is asked (`login_path`), the order of the directories
(`search_path`).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from carpool_protocol.link.messages import Operate, UseLoginShell
from carpool_protocol.runtime import login_path
from carpool_protocol.runtime.login_path import NoAnswerError, ShellQuery
from carpool_protocol.runtime.search_path import server_directories
from carpool_supervisor import marks
from carpool_supervisor.spawn.orphans import end_marked

log = logging.getLogger("carpool.supervisor")

LATE_S: Final = 60.0
"""So long after a request an answer still counts."""


class ServerPath:
    """The directories of the login shell, and the state of the request for them."""

    def __init__(
        self,
        environ: Mapping[str, str],
        runtime_id: str,
        epoch: str,
        hold: Callable[[], None],
        release: Callable[[], None],
        *,
        tell: Callable[[list[str]], None],
    ) -> None:
        """`environ`: the daemon's environment. `hold`: start no server until `release`. `tell`: takes the
        directories for the broker.
        """
        self._environ = environ
        self._mark = marks.instance_mark(runtime_id, epoch, "login-shell")
        self._marks = {marks.RUNTIME: runtime_id, marks.INSTANCE: self._mark}
        self._hold = hold
        self._release = release
        self._tell = tell
        self._wanted = trio.Event()
        self._late = trio.CancelScope()
        """The wait for an answer that is late."""
        self.directories = self._merged(None)
        self.login_shell = "off"
        """`asked`, `off`, `asking`, or the reason why the shell has not answered."""

    def message_received(self, message: UseLoginShell | Operate) -> None:
        """The broker wants the shell's PATH or not; or an operator starts a server, perhaps because the PATH
        has changed.
        """
        match message:
            case UseLoginShell(on=False):
                self.login_shell = "off"
                self.directories = self._merged(None)
                self._late.cancel()
            case UseLoginShell():
                if self.login_shell == "off":
                    self._ask()
            case Operate():
                if message.verb != "stop" and self.login_shell == "asked":
                    self._ask()
        if isinstance(message, UseLoginShell) and self.login_shell != "asking":
            self._tell(self.directories)

    def _ask(self) -> None:
        self.login_shell = "asking"
        self._hold()
        self._wanted.set()
        self._late.cancel()

    async def run(self, settle: Callable[[], None]) -> None:
        """Ask the shell each time that is wanted, until cancelled. `settle`: ends a burst."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self._ask_once(settle)

    async def _ask_once(self, settle: Callable[[], None]) -> None:
        query: ShellQuery | None = None
        login: str | None = None
        shell, state = "the login shell", "asked"
        try:
            shell = login_path.shell_of(self._environ)
            environ = self._marks | login_path.shell_environment(shell, self._environ) | self._marks
            query = ShellQuery(shell, environ)
            login = await _answer(query, login_path.LIMIT_S)
            if login is None and not self._wanted.is_set():
                self._late = trio.CancelScope()
                self._settle(f"{shell} did not answer within {login_path.LIMIT_S:g} s", None, settle)
                with self._late:
                    login = await _answer(query, LATE_S)
        except NoAnswerError as error:
            state = f"{shell} {error}"
        finally:
            if query is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._end, query)
        if login is not None or state != "asked":
            self._settle(state, login, settle)

    def _settle(self, state: str, login: str | None, settle: Callable[[], None]) -> None:
        """Take the answer, or the reason why there is none, and release the starts."""
        if self._wanted.is_set():
            return  # it was asked again meanwhile: starts wait for that answer
        if state != "asked":
            log.warning("%s: servers get the PATH that carpool was started with", state)
        if self.login_shell != "off":
            self.login_shell = state
            self.directories = self._merged(login)
        self._tell(self.directories)
        self._release()
        settle()

    def _merged(self, login: str | None) -> list[str]:
        return server_directories(login, self._environ)

    def _end(self, query: ShellQuery) -> None:
        """End the shell, children of its startup files, and processes that have left its process group."""
        query.end()
        end_marked(marks.INSTANCE, lambda value: value == self._mark, grace_s=0.0)


async def _answer(query: ShellQuery, within_s: float) -> str | None:
    """The shell's answer; None if it takes longer. Raises `NoAnswerError` if none can come any more."""
    with trio.move_on_after(within_s):
        while True:
            await trio.lowlevel.wait_readable(query.fd)
            if (path := query.read()) is not None:
                return path
    return None
