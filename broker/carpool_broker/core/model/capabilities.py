"""What an agent has declared of itself.

Owns the words for it, of both eras: in the handshake era a session says it once, in the stateless era each
request does.

Knows nothing of: how an era spells a capability, what follows from one.
"""

from msgspec import Struct


class Capabilities(Struct, frozen=True):
    """What an agent has declared that it can be asked (MCP 2025-11-25, basic/lifecycle)."""

    sampling: bool = False
    sampling_tools: bool = False
    form: bool = False
    """Elicitation; `{}` means form mode only."""
    url: bool = False
    roots: bool = False

    @property
    def asking(self) -> bool:
        """Whether servers are to be greeted with these for it (rule 12). Roots are rule 6's."""
        return self.sampling or self.form or self.url


class StatelessAgent(Struct, frozen=True):
    """What a request of the stateless era says of the agent behind it (MCP 2026-07-28, basic/index, "Request
    metadata"). A request without it is of the handshake era: there the session knows all this.
    """

    capabilities: Capabilities = Capabilities()
    agent: str = ""
    """Its name for people."""
    level: str = ""
    """Log messages of this request are wanted from here on; empty: none are."""
    tasks: bool = False
    """It has declared the extension `io.modelcontextprotocol/tasks`."""
