"""What verbs say while no server is configured: how to get one, and in which file servers are.

Owns these sentences. Refuses to know if a daemon runs.
"""

from collections.abc import Mapping

from carpool.terminal import display
from carpool_protocol.config.reading.load import find_config_file, load_config


def nothing_configured(environ: Mapping[str, str]) -> str:
    """Return how to get a first server."""
    file = display.printable(find_config_file(environ).path)
    return (
        "no server is configured: `carpool setup` moves those of your programs here,\n"
        f"and `carpool add NAME COMMAND` adds one. Both write {file}"
    )


def has_servers(environ: Mapping[str, str]) -> bool:
    """Return True if the user's file names a server, or cannot be read."""
    config = load_config(find_config_file(environ)).config
    return config is None or bool(config.servers or config.unusable or config.workspaces)


def where_servers_are(environ: Mapping[str, str]) -> str:
    """Return the file of the user's servers as a sentence, with the first steps if it has none."""
    file = find_config_file(environ)
    # A file that the environment names may be a stranger's: it is not opened for the sake of a help text.
    if not file.asked_for and not has_servers(environ):
        text = nothing_configured(environ)
        return f"{text[0].upper()}{text[1:]}"
    return f"Your servers are in {display.printable(file.path)}"
