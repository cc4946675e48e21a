"""Between MCP and the function calling of model APIs: plain JSON in, plain JSON out.

Owns nothing itself; each file says what it owns. All of it is pure: no I/O, no clock, and no package of a
model's provider. Nothing that is given is changed; what comes back may share parts with it.
"""

from carpool.adapters.flat import as_success, flatten

__all__ = ["as_success", "flatten"]
