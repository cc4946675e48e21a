"""A private carpool for one command: its directory and its end.

For `carpool demo`, `carpool setup` and `carpool check --probe`. Owns the temporary directory and everything
in it. Invariants: nothing here touches the user's own carpool (runtime, state and configuration are private);
every process that is started for it carries the runtime directory in its environment; `close` ends them all,
however far the command came, and says what it had to end by force and what is left. Knows nothing of: what is
configured, who calls.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carpool.launcher import sandbox_processes as processes
from carpool.launcher.own_command import carpool_argv
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.paths import project_around

COMMAND_S = 28.0
LONGEST_TEMP = 50
"""A directory with a longer name may not hold a socket (docs/rules.md, rule 20)."""
_CLEAR_S = 3.0
_POLL_S = 0.02


class PrivateCarpoolError(Exception):
    """A command of the private carpool failed; the text says how."""


class PrivateCarpool:
    """A private carpool, not started yet. `prefix` begins the name of its directory. `within`: the start of
    each of its commands, such as `ip netns exec NAME`.
    """

    def __init__(self, prefix: str, *, within: Sequence[str] = ()) -> None:
        self._within = within
        place = tempfile.gettempdir()
        if len(place) > LONGEST_TEMP or project_around(place, paths.home_dir(os.environ)):
            place = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
        self.base = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        self.directory = str(self.base / "run")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
        self.environ = {
            **kept,
            paths.RUNTIME_VARIABLE: self.directory,
            paths.STATE_VARIABLE: str(self.base / "state"),
        }
        self._may_be_up = False

    @property
    def config_file(self) -> Path:
        """The configuration file for `up`, to be written before."""
        return self.base / "carpool.json"

    def write_config(self, text: str) -> None:
        """Write the configuration file."""
        self.write(self.config_file.name, text)

    def write(self, name: str, text: str) -> None:
        """Write a file beside the configuration file. It may hold secrets, so it has mode 0600."""
        file = self.base / name
        file.touch(mode=0o600)
        file.write_text(text)

    def use_logins(self, logins: str) -> None:
        """Let its servers use and renew the logins in this directory. To be called before `up`."""
        mine = paths.logins_dir(paths.state_dir(self.environ, self.directory))
        paths.ensure_private(os.path.dirname(mine))
        os.symlink(logins, mine)

    def up(self) -> None:
        """Start carpool in the background. Returns when it accepts sessions."""
        self._may_be_up = True
        self.run_carpool("up", "--detach", "--config", str(self.config_file))

    def status(self) -> dict[str, Any]:
        """Return the output of `carpool status --json`."""
        said = json.loads(self.run_carpool("status", "--json"))
        assert isinstance(said, dict)
        return said

    def run_carpool(self, *arguments: str) -> str:
        """Run one carpool command and return its stdout. Raises `PrivateCarpoolError` with the end of its
        stderr.
        """
        what = f"`carpool {arguments[0]}`"
        process = subprocess.Popen(
            [*self._within, *carpool_argv(), *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for the command, which ends everything in order
        )
        with process:
            try:
                out, err = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise PrivateCarpoolError(f"{what} did not end within {COMMAND_S:g} s") from None
            except KeyboardInterrupt:
                # A start in its middle must come to its end: only then can `down` find it.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(COMMAND_S / 2)
                process.kill()
                raise
        if process.returncode:
            raise PrivateCarpoolError(f"{what} failed (exit code {process.returncode}): {err.strip()[-500:]}")
        return out

    def close(self) -> list[str]:
        """End all processes and remove the directory. Returns what went wrong, in sentences; empty if
        nothing.
        """
        troubles: list[str] = []
        if self._may_be_up:
            try:
                self._down()
            except PrivateCarpoolError as error:
                troubles.append(str(error))
        for pid, command in self._wait_for_leftovers():
            troubles.append(f"had to kill process {pid}: {command[:120]}")
            processes.kill_marked(pid, self.directory)
        troubles += [f"process {pid} is left: {command[:120]}" for pid, command in self._wait_for_leftovers()]
        shutil.rmtree(self.base, ignore_errors=True)
        if self.base.exists():
            troubles.append(f"the directory {self.base} could not be removed")
        return troubles

    def _down(self) -> None:
        """End carpool, also one that an interrupt caught while it started: `down` finds it only once it
        holds its lock, so it is repeated while anything runs.
        """
        deadline_s = time.monotonic() + COMMAND_S / 2
        self.run_carpool("down")
        while self._wait_for_leftovers() and time.monotonic() < deadline_s:
            self.run_carpool("down")

    def _wait_for_leftovers(self) -> list[tuple[int, str]]:
        """Return the processes that still run after a short wait."""
        deadline_s = time.monotonic() + _CLEAR_S
        while (left := processes.marked(self.directory)) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return left
