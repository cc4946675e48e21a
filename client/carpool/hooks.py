"""For hooks that are Python functions: what they are given and what they return (docs/hooks.md).

from carpool.hooks import HookCall, HookVerdict, deny

def no_secrets(call: HookCall) -> HookVerdict | None:
    if ".env" in str(call.arguments):
        return deny("that file is not for agents")
    return None
"""

from carpool_protocol.hooks.verdicts import HookCall, HookVerdict, allow, deny, rewrite

__all__ = ["HookCall", "HookVerdict", "allow", "deny", "rewrite"]
