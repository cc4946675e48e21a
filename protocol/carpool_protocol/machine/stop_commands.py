"""The launcher's words that end its processes, and how long an end may take that waits for calls.

Owns how they are spelled. Standard library only: the launcher imports nothing else. Refuses to know what each
process makes of them.
"""

from typing import Final

STOP: Final = "stop"
STOP_FOR_RESTART: Final = "stop again"
"""Carpool is started again at once: finish what is under way first, and have who can come back."""
STOP_FOR_RESTART_NOW: Final = "stop again now"
"""The same without waiting any longer."""
DRAIN_S: Final = 30.0
"""So long the broker waits for calls that are at their servers."""
