"""The causes for which a session's state at a server is lost.

Owns the causes and their texts for agents. Knows nothing of: leases, the sessions that are told.
"""

from collections.abc import Mapping
from typing import Final, Literal

LossCause = Literal[
    "crash", "silent", "mute", "deaf", "idle", "reload", "restart", "needed", "room", "link", "roots",
    "supervisor", "memory", "away", "remote", "absent", "share",
]  # fmt: skip

LOSS_CAUSES: Final[Mapping[LossCause, str]] = {
    "crash": "its process ended by itself",
    "silent": "it was silent for too long, and was ended",
    "mute": "it closed its output, and was ended",
    "deaf": "it closed its input, and was ended",
    "idle": "it was not used for longer than the idle limit of leases",
    "reload": "its configuration was changed",
    "restart": "an operator restarted or stopped it",
    "needed": "this session waited for another server, and its idle instance had to make room",
    "roots": "the roots, the workspace or the configuration of this session have changed",
    "link": "the processes of carpool had lost their connection",
    "supervisor": "the part of carpool that runs the servers was restarted",
    "away": "carpool was restarted, or this session was away for too long",
    "absent": "its agent had no open connection for a minute, and another agent waited for an instance",
    "share": "its token or session held most instances, this one was the longest unused, and others waited",
    "remote": "its remote server has ended the session, and its state is gone",
    "memory": "it held more memory than its limit (limits.rss_mb) for too long",
    "room": "another server had no instance at all, and this one was unused for the longest time",
}
"""The texts for agents, as clauses after "because"."""
