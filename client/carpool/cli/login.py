"""The verbs `login` and `logout`: an OAuth login for a server over a URL, kept for its bridges.

Owns the choice of the server, with the variables of this terminal filled in, and the output for people. The
flow is `carpool.bridge.oauth_login`'s; the SDK that it needs is imported only then.
"""

import logging
import os
import webbrowser
from importlib.util import find_spec

import click

from carpool.check.layers import read_layers, working_directory
from carpool.cli.daemon import OPERATE_S
from carpool.cli.main import broker_request_or_fail, environment, fail_at, json_option, reach_broker
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.remote import Remote, host_of
from carpool_protocol.config.schema.expand import MissingValue
from carpool_protocol.config.schema.url_servers import remote_of
from carpool_protocol.config.text.problems import KeyPath, no_such_server, render_path
from carpool_protocol.ids import ServerName

LIMIT_S = 300.0
_config_option = click.option("--config", "file", help="This file, not your own carpool.json.")


@click.command()
@click.argument("name", metavar="SERVER")
@click.option("--no-browser", is_flag=True, help="Only print the address to open.")
@click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(1),
    default=LIMIT_S,
    show_default=True,
    help="Seconds to wait for the browser.",
)
@_config_option
@json_option
def login(name: str, *, no_browser: bool, limit_s: float, file: str | None, as_json: bool) -> None:
    """Log in to SERVER, which is reached over a URL.

    The address of its login opens in a browser, which comes back to this machine. What is granted is kept in
    the state directory, for you alone, and renewed by itself.
    """
    remote = _remote(name, file)
    if remote.authorized:
        fail(
            f"{name} has an Authorization in its `headers` or `url`, which is used instead of a login",
            EXIT_USAGE,
        )
    _need_extra()
    import trio

    from carpool.bridge.oauth_login import SignInError, sign_in

    logging.disable(logging.CRITICAL)  # the SDK logs what it was answered

    async def show(url: str) -> None:
        click.echo(
            f"open this address to log in to {host_of(remote.url)}:\n\n{display.printable(url)}\n", err=True
        )
        if not no_browser:
            await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)

    try:
        host = trio.run(sign_in, remote, show, limit_s)
    except (SignInError, paths.NotPrivateError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"the login cannot be kept: {error.strerror or 'the system gave no reason'}")
    started = _start(name)
    if as_json:
        print_json({"server": name, "host": host, "started": started})
    else:
        click.echo(f"logged in to {display.printable(host)}" + (f"; {name} is started" if started else ""))


@click.command()
@click.argument("name", metavar="SERVER")
@_config_option
@json_option
def logout(name: str, *, file: str | None, as_json: bool) -> None:
    """Forget the login to SERVER. Calls that need it are refused from then on, also by instances that run."""
    remote = _remote(name, file)
    _need_extra()
    import trio

    from carpool.bridge.oauth_login import SignInError, sign_out

    try:
        was = trio.run(sign_out, remote)
    except SignInError as error:
        fail(str(error))
    except OSError as error:
        fail(f"the login cannot be forgotten: {error.strerror or 'the system gave no reason'}")
    if as_json:
        print_json({"server": name, "forgotten": was})
    else:
        click.echo(f"logged out of {name}" if was else f"there was no login to {name}")


def _need_extra() -> None:
    if find_spec("mcp") is None:
        from carpool.bridge.error_texts import NO_EXTRA

        fail(NO_EXTRA)


def _remote(name: str, file: str | None) -> Remote:
    """Return the server as an agent here would reach it."""
    state = paths.state_dir(os.environ, runtime_place().directory)
    cwd = working_directory()
    found = read_layers(
        environment(), os.path.expanduser(file) if file else None, cwd, paths.trust_file(state)
    )
    config = found.config
    if config is None:
        fail("\n".join(each.render() for each in found.problems), EXIT_USAGE)
    server = config.servers.get(ServerName(name))
    if server is None:
        fail(f"{no_such_server(name, config.servers)} {found.waiting}".strip())
    if server.url is None:
        fail(f"{name} is not reached over a URL, so there is nothing to log in to", EXIT_USAGE)
    filled: dict[KeyPath, str] = {}
    for path, text in server.login_templates():
        value = found.expanded(server, text)
        if isinstance(value, MissingValue):
            fail(f"{render_path((name, *path))}: {value.render()}", EXIT_USAGE)
        filled[path] = value
    remote = remote_of(server, filled, paths.logins_dir(state))
    if isinstance(remote, list):
        fail("; ".join(f"{render_path((name, *path))}: {why}" for path, why in remote), EXIT_USAGE)
    return remote


def _start(name: str) -> bool:
    """Ask a running carpool to try again now. True if one did."""
    try:
        with reach_broker(runtime_place(), control=True) as door:
            broker_request_or_fail(door, "carpool/operate", {"verb": "start", "servers": [name]}, OPERATE_S)
    except ControlClientError as error:
        if not error.no_broker:
            fail_at(error)
        return False
    return True
