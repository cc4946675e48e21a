"""A bridge that cannot begin says why to whoever asks."""

import json
import os
import subprocess
import sys

from carpool_protocol.carrier.remote import Remote
from tests.behaviours import behaviour
from tests.kit.private_daemon import ROOTS

WITHOUT_THE_SDK = """
import runpy, sys
sys.modules["mcp"] = None
runpy.run_module("carpool.bridge", run_name="__main__")
"""


def run(*words: str, told: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), **told}
    return subprocess.run(
        [sys.executable, *words],
        input=stdin,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@behaviour("remote:failures")
def test_without_the_sdk_it_names_what_to_install() -> None:
    asked = '{"jsonrpc":"2.0","id":1,"method":"initialize"}\n{"jsonrpc":"2.0","method":"notifications/x"}\n'
    told = Remote(server="far", url="https://h.example").to_environment()
    done = run("-c", WITHOUT_THE_SDK, told=told, stdin=asked)
    assert done.returncode == 0, done.stderr
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer["id"] == 1
    assert answer["error"]["message"].endswith(" -m pip install 'mcp>=2.3,<3'`")


def test_started_by_hand_it_says_what_it_is() -> None:
    done = run("-m", "carpool.bridge", told={})
    assert (done.returncode, done.stdout) == (2, "")
    assert "configure a server with `url` instead" in done.stderr
