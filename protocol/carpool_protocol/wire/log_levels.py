"""The levels of log messages in MCP, and their order. Source: RFC 5424, MCP 2025-11-25,
server/utilities/logging. Knows nothing of: who wants which level.
"""

from typing import Final

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The levels of RFC 5424, the most verbose first."""


def known_level(level: str | None) -> str:
    """Return this level if MCP has it. Empty: it has not, or there is none; `rank` knows both alike."""
    return level if level is not None and level in LEVELS else ""


def rank(level: str) -> int:
    """Return the rank of a level, greater for what matters more. An unknown level counts as the highest."""
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)
