"""The sentence for an agent whose environment names another configuration than the one in force.

One carpool serves all programs of a user, and programs pass on different variables (`XDG_CONFIG_HOME`,
`CARPOOL_CONFIG`). Whoever starts it decides which file is read; the others miss their servers and must learn
why. Refuses to know how a file is found (`paths.config_file`) and which servers are in it.
"""

import os

from carpool_broker.config.workspaces import safe_path


def other_config_note(running: str, expected: str) -> str:
    """Return the sentence; empty if the files are the same, or if none is expected.

    `running`: the file in force. `expected`: as in the attach line; it is not looked at, because it may lie
    in a file system that does not answer. Agents read the sentence, so a path that could be read as more than
    a path is not in it.
    """
    if not expected or expected in {running, os.path.realpath(running)}:
        return ""
    named = f"{expected}, which" if safe_path(expected) else "the one that"
    shown = f" {running}" if safe_path(running) else ""
    return (
        f"this carpool runs with the configuration{shown}, and not with {named} the environment of this "
        "program names: the servers of that file are not here. The user can run `carpool status`"
    )
