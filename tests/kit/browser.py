"""A headless Chromium that a test drives over its debugging protocol, by pipes.

Owns the process, its empty profile, and what a page asked for and complained about. Only what a test uses of
the protocol is here. `chromium` must be installed (Debian: `apt install chromium`).

Knows nothing of: carpool's page.
"""

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

Json = dict[str, Any]

LIMIT_S: Final = 15.0
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-default-apps", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


_KEY_CODES: Final[dict[str, Json]] = {
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
    "Escape": {"windowsVirtualKeyCode": 27},
}
"""What the browser needs beside the name of a key to act as it does for a person."""


def chromium() -> str | None:
    """The path of the browser; None if none is installed."""
    return shutil.which("chromium")


class HeadlessBrowser:
    """One browser with one page."""

    def __init__(self, nursery: trio.Nursery, commands: trio.lowlevel.FdStream) -> None:
        self._nursery = nursery
        self._commands = commands
        self._count = 0
        self._answers: dict[int, Json] = {}
        self._changed = trio.Event()
        self._session = ""
        self.requests: list[str] = []
        """The URLs that the page has asked for, also those that were blocked."""
        self.complaints: list[str] = []
        """Errors of scripts, violations of the page's policy, and what the page wrote to the console."""

    # --- the protocol ---

    async def read(self, events: trio.lowlevel.FdStream) -> None:
        """Take what the browser says, until it ends."""
        rest = b""
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while data := await events.receive_some(65536):
                *messages, rest = (rest + data).split(b"\0")
                for message in messages:
                    self._take(msgspec.json.decode(message, type=dict[str, Any]))

    def _take(self, message: Json) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def ask(self, method: str, **params: Any) -> Json:
        """Send one command. Returns its result."""
        self._count += 1
        number = self._count
        message: Json = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        await self._commands.send_all(msgspec.json.encode(message) + b"\0")
        with trio.fail_after(LIMIT_S):
            while number not in self._answers:
                await self._changed.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        result: Json = answer["result"]
        return result

    async def attach(self) -> None:
        """Make the page, and hear what it does."""
        target = await self.ask("Target.createTarget", url="about:blank")
        found = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page", "Accessibility"):
            await self.ask(f"{domain}.enable")

    # --- the page ---

    async def open(self, url: str) -> None:
        """Load an address."""
        await self.ask("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript on the page."""
        found = await self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str, limit_s: float = LIMIT_S) -> None:
        """Wait until an expression is true."""
        value = False
        with trio.move_on_after(limit_s):
            while not value:
                value = await self.run(f"Boolean({expression})")
                await trio.sleep(0.05)
        assert value, f"not within {limit_s} s: {expression}; complaints: {self.complaints[-3:]}"

    async def press(self, key: str) -> None:
        """Press and release a key."""
        more = _KEY_CODES.get(key, {})
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page at this size, in light or dark."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, file: Path) -> None:
        """Write a picture of what is in view."""
        found = await self.ask("Page.captureScreenshot", format="png")
        await trio.Path(file).write_bytes(base64.b64decode(found["data"]))

    async def accessible(self) -> list[tuple[str, str]]:
        """Roles and names of everything that a screen reader is told of."""
        nodes = (await self.ask("Accessibility.getFullAXTree"))["nodes"]
        return [
            (str(each["role"]["value"]), str(each.get("name", {}).get("value", "")))
            for each in nodes
            if not each.get("ignored") and "role" in each
        ]


@asynccontextmanager
async def browsing() -> AsyncIterator[HeadlessBrowser]:
    """A browser with an empty page. It ends with the block, and its profile is removed."""
    binary = chromium()
    assert binary is not None, "no chromium is installed"
    profile = tempfile.mkdtemp(prefix="cpl-browser-", dir="/tmp")
    its_in, ours_out = os.pipe()
    ours_in, its_out = os.pipe()
    process = _start(binary, profile, its_in, its_out)
    os.close(its_in)
    os.close(its_out)
    commands, events = trio.lowlevel.FdStream(ours_out), trio.lowlevel.FdStream(ours_in)
    try:
        async with trio.open_nursery() as nursery, commands, events:
            browser = HeadlessBrowser(nursery, commands)
            nursery.start_soon(browser.read, events)
            await browser.attach()
            yield browser
            nursery.cancel_scope.cancel()
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(10)
        shutil.rmtree(profile, ignore_errors=True)


def _start(binary: str, profile: str, its_in: int, its_out: int) -> "subprocess.Popen[bytes]":
    """Start the browser, which reads commands at descriptor 3 and writes to 4."""
    shell = f'exec "$@" 3<&{its_in} 4>&{its_out} {its_in}<&- {its_out}>&-'
    words = [binary, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    return subprocess.Popen(
        ["/bin/bash", "-c", shell, "browser", *words],
        pass_fds=(its_in, its_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
