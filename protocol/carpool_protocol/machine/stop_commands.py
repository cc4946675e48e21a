"""The commands with which the launcher stops its processes, and the time that open calls get to finish.

Owns the spelling of the commands. Standard library only: the launcher imports nothing else. Refuses to know
how each process reacts.
"""

from typing import Final

STOP: Final = "stop"
STOP_FOR_RESTART: Final = "stop again"
"""Carpool is started again at once: finish open work first, and keep sessions that can resume."""
STOP_FOR_RESTART_NOW: Final = "stop again now"
"""The same as `STOP_FOR_RESTART`, without waiting for open work. Launchers of earlier versions send it."""
DRAIN_S: Final = 30.0
"""How long, in seconds, the broker waits for calls that are at their servers."""
