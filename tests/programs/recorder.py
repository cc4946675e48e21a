"""A pipe between an agent program and its server that writes down each message with its time.

`recorder.py FILE COMMAND…`, standard library only. Environment, directory, stderr and exit code pass through.
A line of FILE is `{"at", "pid", "from": "program" | "server" | "end", "message"}`; messages over 4 KB are
cut to their method, id and the number of tools.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Any

LONG = 4096
_lock = threading.Lock()


def summary(line: bytes) -> Any:
    """The message, without what is long in it."""
    try:
        message = json.loads(line)
    except ValueError:
        return {"unreadable": line[:200].decode(errors="replace")}
    if len(line) <= LONG or not isinstance(message, dict):
        return message
    short = {key: message[key] for key in ("id", "method") if key in message}
    result = message.get("result")
    if isinstance(result, dict):
        if isinstance(result.get("tools"), list):
            short["tools"] = [tool.get("name") for tool in result["tools"]]
        short["keys"] = sorted(result)
        short["instructions"] = result.get("instructions", "")
    return short


def write(file: str, whose: str, message: Any) -> None:
    line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "from": whose, "message": message}) + "\n"
    with _lock, open(file, "a", encoding="utf-8") as log:
        log.write(line)


def pump(file: str, whose: str, source: IO[bytes], target: IO[bytes]) -> None:
    try:
        for line in source:
            write(file, whose, summary(line))
            target.write(line)
            target.flush()
    except (BrokenPipeError, ValueError):
        pass
    finally:
        with suppress(BrokenPipeError):
            target.close()


def main() -> int:
    file, command = sys.argv[1], sys.argv[2:]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: child.send_signal(got))
    threading.Thread(target=pump, args=(file, "program", sys.stdin.buffer, child.stdin), daemon=True).start()
    pump(file, "server", child.stdout, sys.stdout.buffer)
    code = child.wait()
    write(file, "end", {"code": code})
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    code = main()
    os._exit(code)  # the thread that reads stdin may wait for a program that stays
