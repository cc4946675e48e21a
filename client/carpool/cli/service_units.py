"""Units that have carpool run from login on: one of systemd, one of launchd, as texts.

Owns what they say. Invariants: nothing of the environment is in them but places and PATH, so no secret is; a
server that the kernel ends for its memory does not end carpool; `carpool down` ends it, and it stays down.

Pure. Knows nothing of: where they lie, who loads them.
"""

import plistlib
from collections.abc import Mapping, Sequence
from typing import Final

NAME: Final = "carpool"
MARK: Final = "Made by `carpool service install`"
PLACES: Final = (
    *("PATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"),
    *("CARPOOL_CONFIG", "CARPOOL_RUNTIME_DIR", "CARPOOL_STATE_DIR"),
)
"""Variables that are taken over: programs are found, and files are where they are now."""
STOP_S: Final = 60
"""More than the launcher takes to end everything politely."""
_USAGE: Final = 2
"""`carpool up` ends with it for a broken configuration, and where carpool runs already: no case for again."""


def systemd_unit(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """A user unit. `command`: how carpool is started, absolute."""
    places = [f"Environment={_quoted(f'{name}={environ[name]}')}" for name in PLACES if environ.get(name)]
    words = " ".join(_quoted(word.replace("$", "$$")) for word in (*command, "up"))
    return "\n".join(
        [
            f"# {MARK}; `carpool service uninstall` takes it away.",
            "[Unit]",
            "Description=carpool: MCP servers that agents share",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={words}",
            *places,
            "Restart=on-failure",
            "RestartSec=2",
            f"RestartPreventExitStatus={_USAGE}",
            "# The launcher ends its servers itself.",
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_S}",
            "# One server too large is no reason to end the others.",
            "OOMPolicy=continue",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quoted(word: str) -> str:
    """A word of a unit, systemd.syntax(7)."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{plain}"'


def launchd_agent(command: Sequence[str], environ: Mapping[str, str], log: str) -> str:
    """An agent of the user's, launchd.plist(5). `log`: the file for what `carpool up` says."""
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
