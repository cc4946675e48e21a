"""What real servers list, for `bench.search`: `python -m bench.record_tools [SERVER…]`.

Owns `bench/data/servers.json` (which package in which version, and what it needs to start), the installation
of these in `bench/out/servers`, and what each one told, in `bench/out/tools/SERVER.json`. Names and
descriptions are those projects' own: they are asked for here, not kept in the repository. A server is run as
an agent would run it; keys are made up, since nothing is called.
Knows nothing of: what is measured with it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LIMIT_S: Final = 120.0
SHOWN: Final = ("name", "title", "description", "inputSchema")
DATA: Final = Path(__file__).parent / "data"
OUT: Final = Path(__file__).parent / "out"
_NO_DOWNLOADS: Final = ("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "PUPPETEER_SKIP_DOWNLOAD")
Facts = dict[str, Any]


class NotRecordedError(Exception):
    """A server that could not be installed or did not tell. The text is for people."""


class PipedServer:
    """A server over pipes, for a few requests one after the other."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env={**os.environ, **env},
            )
        self._log = log
        self._last = 0

    def say(self, message: Facts) -> None:
        """One message."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            self._process.stdin.flush()

    def ask(self, method: str, params: Facts) -> Facts:
        """The result of a request. Junk on stdout, notifications and questions are passed over."""
        self._last += 1
        self.say({"id": self._last, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if not isinstance(said, dict) or said.get("id") != self._last or "method" in said:
                continue
            if "result" in said:
                result: Facts = said["result"]
                return result
            raise NotRecordedError(f"{method}: {said.get('error')}")
        raise NotRecordedError(
            f"{method}: the server has ended, or took more than {LIMIT_S:g} s; see {self._log}"
        )

    def end(self) -> None:
        """It and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def listed(command: list[str], env: dict[str, str], log: Path) -> list[Facts]:
    """All tools of a server, over all pages. Raises `NotRecordedError`."""
    server = PipedServer(command, env, log)
    timer = threading.Timer(LIMIT_S, server.end)
    timer.start()
    try:
        who = {"name": "recorder", "version": "1"}
        server.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who})
        server.say({"method": "notifications/initialized"})
        tools: list[Facts] = []
        cursor: Facts = {}
        while True:
            page = server.ask("tools/list", cursor)
            tools += page["tools"]
            if not page.get("nextCursor"):
                return tools
            cursor = {"cursor": page["nextCursor"]}
    finally:
        timer.cancel()
        server.end()


def installed(recipe: Facts) -> list[str]:
    """The command of a server, which is installed if it is not. Raises `NotRecordedError`."""
    package, version, place = recipe["package"], recipe["version"], OUT / "servers" / recipe["server"]
    place.mkdir(parents=True, exist_ok=True)
    if recipe["from"] == "npm":
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _run(["npm", "install", "--prefix", str(place), *options, f"{package}@{version}"])
        home = place / "node_modules" / package
        programs = json.loads((home / "package.json").read_text())["bin"]
        program = programs if isinstance(programs, str) else next(iter(programs.values()))
        return ["node", str(home / program), *recipe.get("args", [])]
    _run([sys.executable, "-m", "venv", str(place)])
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    _run([*pip, f"{package}=={version}"])
    return [str(place / "bin" / package), *recipe.get("args", [])]


def _run(command: list[str]) -> None:
    env = {**os.environ, **dict.fromkeys(_NO_DOWNLOADS, "1")}
    try:
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotRecordedError(f"{command[0]} could not install it: {error}") from error


def recipes() -> list[Facts]:
    """Every server that is measured with, by name."""
    found: list[Facts] = json.loads((DATA / "servers.json").read_text())
    return found


def recorded(recipe: Facts) -> Facts:
    """What one server told, asked now if it has not been before: {server, package, version, tools}. Raises
    `NotRecordedError`.
    """
    path = OUT / "tools" / f"{recipe['server']}.json"
    if path.exists():
        facts: Facts = json.loads(path.read_text())
        if facts["version"] == recipe["version"]:
            return facts
    path.parent.mkdir(parents=True, exist_ok=True)
    log = OUT / "tools" / f"{recipe['server']}.log"
    tools = listed(installed(recipe), recipe.get("env", {}), log)
    facts = {key: recipe[key] for key in ("server", "package", "version")}
    facts["tools"] = [{key: tool[key] for key in SHOWN if key in tool} for tool in tools]
    path.write_text(json.dumps(facts, ensure_ascii=False))
    return facts


def main() -> None:
    """Ask all of them, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m bench.record_tools", description=__doc__)
    parser.add_argument("server", nargs="*", choices=[[], *(each["server"] for each in recipes())])
    wanted = parser.parse_args().server
    for recipe in recipes():
        if wanted and recipe["server"] not in wanted:
            continue
        try:
            facts = recorded(recipe)
        except NotRecordedError as error:
            print(f"{recipe['server']}: {error}", flush=True)
        else:
            print(f"{recipe['server']}: {len(facts['tools'])} tools", flush=True)


if __name__ == "__main__":
    main()
