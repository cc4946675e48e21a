"""The process of one hook: runs a Python function or a command for each call that it receives.

Started by `process`, never by hand. Owns the runs: plain functions in threads, async ones under asyncio,
commands each in a process group of its own, which is killed with its run. Ends with its stdin, and takes
every group along. Output that a Python hook prints goes to stderr.

Knows nothing of: the effect of a verdict, time limits, other hooks.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from msgspec import Raw

from carpool_protocol.hooks.lines import (
    MAX_RUNNING,
    NOTHING,
    BeginHookRun,
    HookAnswer,
    StartHook,
    line_of,
    read_begin_run,
    read_start,
)
from carpool_protocol.hooks.verdicts import (
    ARGUMENTS_CAP_BYTES,
    DUPLICATE_NAME,
    RESULT_CAP_BYTES,
    HookCall,
    HookVerdict,
    deny,
    has_duplicate_keys,
)

LINE_BYTES: Final = ARGUMENTS_CAP_BYTES + RESULT_CAP_BYTES + 1024 * 1024
_ALLOW: Final = Raw(b'{"verdict":"allow"}')
_DENY_DUPLICATE_KEY: Final = Raw(msgspec.json.encode(deny(DUPLICATE_NAME)))
_ENDED: Final = "it was ended"
_read_call = msgspec.json.Decoder(HookCall).decode

RunHookCall = Callable[[int, bytes], Awaitable[HookAnswer]]


class HookNotRunnableError(Exception):
    """The hook can check no call. The text is for people."""


def find_function(entry: str, folders: list[str]) -> Callable[[HookCall], Any]:
    """The function that `package.module:function` names. Raises `HookNotRunnableError`."""
    sys.path += folders
    module, _, name = entry.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # importing a module can raise anything
        raise HookNotRunnableError(f"{entry} cannot be imported: {type(error).__name__}") from error
    if not callable(found):
        raise HookNotRunnableError(f"{entry} is not a function")
    return found  # type: ignore[no-any-return]


class FunctionHook:
    """Runs a Python function."""

    def __init__(self, function: Callable[[HookCall], Any]) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._threads = ThreadPoolExecutor(MAX_RUNNING, "hook")

    async def run(self, number: int, call: bytes) -> HookAnswer:
        """The function's verdict on this call."""
        hook_call = _read_call(call)
        try:
            if self._is_async:
                verdict = await self._function(hook_call)
            else:
                verdict = await self._in_thread(hook_call)
                if inspect.isawaitable(verdict):
                    verdict = await verdict
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a hook may raise anything
            traceback.print_tb(error.__traceback__)  # without its text, which may hold data of agents
            return HookAnswer(run=number, failed=f"it raised {type(error).__name__}")
        if verdict is None:
            return HookAnswer(run=number, verdict=_ALLOW)
        if not isinstance(verdict, HookVerdict):
            return HookAnswer(
                run=number, failed=f"it returned {type(verdict).__name__}, not a HookVerdict or None"
            )
        try:
            return HookAnswer(run=number, verdict=Raw(msgspec.json.encode(verdict)))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return HookAnswer(run=number, failed="its verdict cannot be written as JSON")

    async def _in_thread(self, call: HookCall) -> Any:
        """Run a plain function in a thread, which cannot be ended.

        A cancelled run is over only when the function returns, so the caller sees that it hangs.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._function, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise


class CommandHook:
    """Runs a command: the call on its stdin, a verdict on its stdout."""

    def __init__(self, argv: list[str], say: Callable[[HookAnswer], None]) -> None:
        self._argv = argv
        self._send = say
        self.groups: set[int] = set()

    async def run(self, number: int, call: bytes) -> HookAnswer:
        """The command's verdict on this call. If cancelled, its process group is killed."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, start_new_session=True, limit=LINE_BYTES
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            return HookAnswer(run=number, failed=f"its command cannot be started: {why}")
        self.groups.add(process.pid)
        self._send(HookAnswer(run=number, group=process.pid))
        try:
            return await self._finish(number, process, call)
        finally:
            end_group(process.pid)
            self.groups.discard(process.pid)

    async def _finish(self, number: int, process: asyncio.subprocess.Process, call: bytes) -> HookAnswer:
        assert process.stdin is not None
        assert process.stdout is not None

        async def give(stdin: asyncio.StreamWriter) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stdin.write(call)
                await stdin.drain()
            stdin.close()

        giving = asyncio.create_task(give(process.stdin))  # it may answer without reading everything
        try:
            output = await _read_all(process.stdout)
            code = await process.wait()
        finally:
            giving.cancel()
        if output is None:
            return HookAnswer(run=number, failed="it prints more than a verdict can hold")
        if code:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return HookAnswer(run=number, failed=f"its command ended with {how}")
        if not output.strip():
            return HookAnswer(run=number, verdict=_ALLOW)
        try:
            msgspec.json.decode(output, type=Raw)
        except (msgspec.DecodeError, RecursionError):
            return HookAnswer(run=number, failed="its output is not JSON")
        # Between two tokens a line end is a blank; within a text JSON has none.
        return HookAnswer(run=number, verdict=Raw(output.strip().replace(b"\n", b" ").replace(b"\r", b" ")))


async def _read_all(stdout: asyncio.StreamReader) -> bytes | None:
    parts: list[bytes] = []
    size_bytes = 0
    while part := await stdout.read(1 << 16):
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > LINE_BYTES - 1024:
            return None
    return b"".join(parts)


def end_group(group: int) -> None:
    """Kill a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def serve(lines: asyncio.StreamReader, run: RunHookCall, say: Callable[[HookAnswer], None]) -> None:
    """Handle the broker's lines until they end."""
    tasks: dict[int, asyncio.Task[None]] = {}

    async def one(begin: BeginHookRun) -> None:
        call = bytes(begin.call)
        try:
            if _read_call(call).phase == "before" and has_duplicate_keys(call):
                answer = HookAnswer(run=begin.run, verdict=_DENY_DUPLICATE_KEY)
            else:
                answer = await run(begin.run, call)
        except asyncio.CancelledError:
            answer = HookAnswer(run=begin.run, failed=_ENDED)
        except (msgspec.MsgspecError, RecursionError):
            answer = HookAnswer(run=begin.run, failed="it cannot read the call")
        tasks.pop(begin.run, None)
        say(answer)

    def over(run: int, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # ended before its first step, so `one` sent no answer
            tasks.pop(run, None)
            say(HookAnswer(run=run, failed=_ENDED))

    while line := await lines.readline():
        begin = read_begin_run(line)
        if begin.call is not NOTHING:
            tasks[begin.run] = task = asyncio.create_task(one(begin))
            task.add_done_callback(functools.partial(over, begin.run))
        elif begin.run in tasks:
            tasks[begin.run].cancel()


async def _main(stdin: int, stdout: int) -> None:
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(stdin, "rb", 0)
    )

    def say(answer: HookAnswer) -> None:
        left = memoryview(line_of(answer))
        while left:
            left = left[os.write(stdout, left) :]

    start: StartHook = read_start(await lines.readline())
    commands = CommandHook(start.argv, say)
    try:
        run = (
            commands.run
            if start.python is None
            else FunctionHook(find_function(start.python, start.folders)).run
        )
    except HookNotRunnableError as error:
        if error.__cause__ is not None:
            traceback.print_tb(error.__cause__.__traceback__)
            print(error.__cause__, file=sys.stderr)  # noqa: T201 - goes to its log
        say(HookAnswer(failed=str(error)))
        return
    say(HookAnswer())
    try:
        await serve(lines, run, say)
    finally:
        for group in commands.groups:
            end_group(group)


def main() -> None:
    """Serve until stdin ends. Everything that still runs in this process ends with it."""
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # output of a hook must not mix with answers
    try:
        asyncio.run(_main(stdin, stdout))
    except BaseException:  # noqa: BLE001 - the exit below must not lose it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)  # a function that hangs in its thread must not delay the end


if __name__ == "__main__":
    main()
