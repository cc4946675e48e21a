"""Hooks that are Python functions, for live tests."""

import asyncio
import os
import time

from carpool.hooks import HookCall, HookVerdict, rewrite


def upper(call: HookCall) -> HookVerdict:
    """Rewrites a text. What it prints is not its verdict."""
    print("looking at", call.name)
    return rewrite(arguments={**call.arguments, "text": str(call.arguments.get("text", "")).upper()})


async def slowly(call: HookCall) -> HookVerdict | None:
    """An async one, that lets calls pass."""
    await asyncio.sleep(float(call.arguments.get("seconds", 0)))
    return None


def hang(call: HookCall) -> None:
    """Never comes back, and cannot be cancelled."""
    while call.arguments.get("text") != "quick":
        time.sleep(1)


def crash(call: HookCall) -> None:
    """Takes its process along."""
    if call.arguments.get("text") == "crash":
        os._exit(3)


def swap(call: HookCall) -> HookVerdict:
    """Gives a result that is none."""
    return rewrite(result={"content": "not a list"})


def fall(call: HookCall) -> HookVerdict | None:
    """Raises."""
    raise RuntimeError(f"secret {call.arguments}")
