"""The process of one hook, from the broker's side: start, messages, end.

Owns the process with its pipes, its open runs, the process groups of its commands, and the mark of all that
it starts. However it ends, each of its runs is reported as over, and no process that it started is left
(rule 2).

Knows nothing of: calls, verdicts, when a hook gets another process.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import trio

import carpool_broker
import carpool_protocol
from carpool_broker.hooks.spec import HookSpec
from carpool_protocol.bootstrap import paths
from carpool_protocol.files.redaction import Mask
from carpool_protocol.hooks.lines import BeginHookRun, HookAnswer, StartHook, line_of, read_answer
from carpool_protocol.hooks.verdicts import ARGUMENTS_CAP_BYTES, RESULT_CAP_BYTES
from carpool_protocol.wire.lines import LineBuffer

log = logging.getLogger("carpool.hooks")

LINE_CAP_BYTES: Final = ARGUMENTS_CAP_BYTES + RESULT_CAP_BYTES
STDERR_CHARS: Final = 500
STDERR_LINES: Final = 200
"""Maximum number of stderr lines of one process in the log; further ones are dropped."""
END_TIMEOUT_S: Final = 0.5
"""Time from the end of its stdin to SIGKILL."""
_READ_BYTES: Final = 1 << 18
_CODE: Final = (
    "import sys; sys.path += [each for each in sys.argv[1:] if each not in sys.path]; del sys.argv[1:]; "
    "from carpool_broker.hooks.hook_child import main; main()"
)
_ROOTS: Final = [
    str(Path(str(package.__file__)).parents[1]) for package in (carpool_broker, carpool_protocol)
]


def _argv() -> list[str]:
    """The command line. The environment of a hook has no PYTHONPATH of carpool. `-P`: its directory is not
    searched.
    """
    beside = [path for path in sys.path if os.path.isfile(os.path.join(path, "carpool", "hooks.py"))]
    return [sys.executable, "-P", "-c", _CODE, *_ROOTS, *beside[:1]]


class HookProcess:
    """One process. `on_run_ended`: called for each run that is over."""

    def __init__(
        self,
        spec: HookSpec,
        environment: Mapping[str, str],
        on_run_ended: Callable[[HookAnswer], None],
        runtime_id: str,
    ) -> None:
        self._spec = spec
        self._mask = Mask(spec.secrets, "…")
        self._runtime_id = runtime_id
        self._epoch = f"hook-{os.urandom(6).hex()}"
        """Marks all that this process starts, as the epoch of a supervisor marks what that starts."""
        self._environment = {**environment, paths.INSTANCE_MARK: f"{runtime_id}:{self._epoch}.0"}
        self._run_ended = on_run_ended
        self.open: set[int] = set()
        self.is_ending = False
        """True: no new run begins, and the process ends after its open runs."""
        self.why = ""
        """The reason of its end."""
        self.ready = trio.Event()
        """Set when its module is imported, or cannot be."""
        self._abandoned_runs: set[int] = set()
        self._groups: dict[int, int] = {}
        self._input: list[bytes] = []
        self._wakeup = trio.Event()
        self._end = trio.Event()
        self.pid = 0

    def begin(self, run: int, call: bytes) -> None:
        """Begin a run: let the hook check this call."""
        self.open.add(run)
        self._send(BeginHookRun(run=run, call=msgspec.Raw(call)))

    def end_run(self, run: int) -> None:
        """End a run that is no longer needed."""
        if run in self.open:
            self._send(BeginHookRun(run=run))

    def end_after_open(self) -> None:
        """End the process after its open runs."""
        self.is_ending = True
        self._check_idle()

    def end_without(self, run: int) -> None:
        """End the process after its open runs except this one."""
        self._abandoned_runs.add(run)
        self.end_after_open()

    def _check_idle(self) -> None:
        if self.is_ending and not self.open - self._abandoned_runs:
            self._end.set()

    def _send(self, message: BeginHookRun) -> None:
        self._input.append(line_of(message))
        self._wakeup.set()

    async def run(self, search_path: Sequence[str]) -> None:
        """Run the process from start to end, with all processes that it starts. `search_path`: its PATH if
        its environment has none. The caller calls `process_ended` next.
        """
        spec = self._spec
        try:
            process = await trio.lowlevel.open_process(
                _argv(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PATH": os.pathsep.join(search_path), **self._environment},
                cwd=spec.cwd,
                start_new_session=True,
            )
        except OSError as error:
            self.why = f"its process cannot be started: {error.strerror}"
            return
        self.pid = process.pid
        assert process.stdin is not None
        start = StartHook(python=spec.python, argv=list(spec.argv), folders=[spec.folder])
        self._input.insert(0, line_of(start))
        self._wakeup.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, process.stdin)
                nursery.start_soon(self._log, process)
                nursery.start_soon(self._wait_for_end, nursery.cancel_scope)
                nursery.start_soon(self._wait_for_death, process, nursery.cancel_scope)
                await self._read(process)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._end_process(process)

    async def _end_process(self, process: trio.Process) -> None:
        """End the process and its groups."""
        assert process.stdin is not None
        with suppress(trio.BrokenResourceError):
            await process.stdin.aclose()
        with trio.move_on_after(END_TIMEOUT_S):
            await process.wait()
        for group in (process.pid, *self._groups.values()):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        await process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                await stream.aclose()
        code = process.returncode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.why = self.why or f"its process ended with {how}"

    async def end_leftovers(self) -> None:
        """End, by their mark, processes in sessions of their own, and groups that were not reported in time.
        Called after the process has ended.
        """
        if not self.pid:
            return
        tool = "carpool_supervisor.spawn.orphans"  # as the launcher uses it
        try:
            done = await trio.run_process(
                [sys.executable, "-P", "-m", tool, self._runtime_id, self._epoch],
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            log.warning("what hook %s has left is not looked for: %s", self._spec.name, error.strerror)
            return
        if done.returncode:
            log.warning("processes that hook %s has started would not end", self._spec.name)

    def process_ended(self) -> None:
        """The process has ended: report its open runs as over. Runs that begin after this are never
        reported.
        """
        self.is_ending = True
        self.ready.set()
        over, self.open = self.open, set()
        for run in sorted(over):
            self._run_ended(HookAnswer(run=run, failed=self.why))

    async def _wait_for_end(self, scope: trio.CancelScope) -> None:
        await self._end.wait()
        scope.cancel()

    async def _wait_for_death(self, process: trio.Process, scope: trio.CancelScope) -> None:
        """Wait for the process itself, because a process that the hook has forked may hold its pipes open."""
        await process.wait()
        await trio.sleep(END_TIMEOUT_S)
        scope.cancel()

    async def _write(self, stdin: trio.abc.SendStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await self._wakeup.wait()
                self._wakeup = trio.Event()
                lines, self._input = self._input, []
                for line in lines:
                    await stdin.send_all(line)

    async def _read(self, process: trio.Process) -> None:
        assert process.stdout is not None
        lines = LineBuffer(LINE_CAP_BYTES)
        while data := await process.stdout.receive_some(_READ_BYTES):
            for line in lines.feed(bytes(data)):
                if not isinstance(line, bytes) or not self._line_received(line):
                    self.why = self.why or "its process wrote a line that carpool cannot read"
                    return

    def _line_received(self, line: bytes) -> bool:
        """Handle one line of the process. False: the process is useless from now on."""
        try:
            answer = read_answer(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        if not answer.run:
            self.why = answer.failed
            self.ready.set()
            return not answer.failed
        if answer.group:
            self._groups[answer.run] = answer.group
            return True
        self._groups.pop(answer.run, None)
        if answer.run in self.open:
            self.open.discard(answer.run)
            self._run_ended(answer)
        self._check_idle()
        return True

    async def _log(self, process: trio.Process) -> None:
        """Log its stderr, without values of its environment."""
        assert process.stderr is not None
        lines = LineBuffer(1 << 16)
        left = STDERR_LINES
        while data := await process.stderr.receive_some(_READ_BYTES):
            for line in lines.feed(bytes(data)):
                left -= 1
                if left >= 0 and isinstance(line, bytes):
                    log.info("hook %s: %s", self._spec.name, self._masked(line))
                elif left == -1:
                    log.warning("hook %s writes much to stderr; the rest is dropped", self._spec.name)

    def _masked(self, line: bytes) -> str:
        text = self._mask.redact(line.decode(errors="replace"))
        return "".join(each if each.isprintable() else " " for each in text)[:STDERR_CHARS]
