"""The texts of carpool's units: of systemd for a login or for the whole machine, and of launchd for a login.

Invariants: a unit holds nothing of the environment but places and PATH, so it holds no secret; a server that
the kernel kills for its memory does not end carpool; `carpool down` ends it, and it stays down.

Pure. Refuses to know: where units lie, and the commands of systemd and launchd (`cli.service`).
"""

import plistlib
from collections.abc import Mapping, Sequence
from typing import Final

from carpool.launcher.service_manager import RESTART_STATUS

NAME: Final = "carpool"
MARK: Final = "Made by `carpool service install`"
PLACES: Final = (
    *("PATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"),
    *("CARPOOL_CONFIG", "CARPOOL_RUNTIME_DIR", "CARPOOL_STATE_DIR"),
)
"""The variables that a unit of a login takes over, so that files are found in their present places."""
SYSTEM_PLACES: Final = {
    "CARPOOL_CONFIG": "/etc/carpool/carpool.json",
    "CARPOOL_RUNTIME_DIR": "/run/carpool",
    "CARPOOL_STATE_DIR": "/var/lib/carpool",
}
"""The places of a unit of the machine."""
STOP_S: Final = 60
"""Longer than the launcher takes to end everything politely."""
WATCHDOG_S: Final = 60
STORED: Final = 4
"""More descriptors than the launcher has kept at a time."""
_USAGE: Final = 2
"""The exit code of `carpool up` for a broken configuration, and if carpool runs already: a retry would not
help.
"""


def systemd_user_unit(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a unit of a login. `command`: the absolute command that starts carpool."""
    places = {name: environ[name] for name in PLACES if environ.get(name)}
    return _systemd_unit(command, places, (), "default.target")


def systemd_system_unit(command: Sequence[str], environ: Mapping[str, str], user: str) -> str:
    """Return a unit of the machine, which runs as `user`. systemd makes its runtime and state directories."""
    places = {**({"PATH": environ["PATH"]} if environ.get("PATH") else {}), **SYSTEM_PLACES}
    owned = (
        f"User={_escaped(user)}",
        f"RuntimeDirectory={NAME}",
        "RuntimeDirectoryMode=0700",
        f"StateDirectory={NAME}",
        "StateDirectoryMode=0700",
    )
    return _systemd_unit(command, places, owned, "multi-user.target")


def _systemd_unit(
    command: Sequence[str], places: Mapping[str, str], owned: Sequence[str], wanted_by: str
) -> str:
    words = " ".join(_quoted(word.replace("$", "$$")) for word in (*command, "up"))
    return "\n".join(
        [
            f"# {MARK}; `carpool service uninstall` takes it away.",
            "[Unit]",
            "Description=carpool: MCP servers that agents share",
            "",
            "[Service]",
            "Type=notify",
            f"ExecStart={words}",
            *owned,
            *(f"Environment={_quoted(f'{name}={value}')}" for name, value in places.items()),
            f"WatchdogSec={WATCHDOG_S}",
            "Restart=on-failure",
            "RestartSec=500ms",
            f"RestartPreventExitStatus={_USAGE}",
            "# `carpool restart --all`",
            f"RestartForceExitStatus={RESTART_STATUS}",
            f"SuccessExitStatus={RESTART_STATUS}",
            "# The HTTP door's listening socket and its connections, over a restart.",
            f"FileDescriptorStoreMax={STORED}",
            "# The launcher ends its servers itself.",
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_S}",
            "# One server too large is no reason to end the others.",
            "OOMPolicy=continue",
            "",
            "[Install]",
            f"WantedBy={wanted_by}",
            "",
        ]
    )


def _escaped(word: str) -> str:
    """Escape the specifiers of systemd.unit(5)."""
    return word.replace("%", "%%")


def _quoted(word: str) -> str:
    """Quote a word of a unit, systemd.syntax(7)."""
    plain = _escaped(word.replace("\\", "\\\\").replace('"', '\\"')).replace("\n", "\\n")
    return f'"{plain}"'


def launchd_agent(command: Sequence[str], environ: Mapping[str, str], log: str) -> str:
    """Return an agent of the user's, launchd.plist(5). `log`: the file for the output of `carpool up`."""
    agent = {
        "Label": NAME,
        "ProgramArguments": [*command, "up"],
        "EnvironmentVariables": {name: environ[name] for name in PLACES if environ.get(name)},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 30,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Interactive",
        "StandardErrorPath": log,
    }
    text = plistlib.dumps(agent, sort_keys=False).decode()
    head, _, rest = text.partition("<plist")
    return f"{head}<!-- {MARK} -->\n<plist{rest}"
