"""The verb `web`: the address of the web page of the HTTP door, with a code for the key that may act.

Owns the words, and the request for the code. Refuses to know: what the page shows, how the door makes codes
and the key.
"""

import http.client
import json
import webbrowser
from urllib.parse import urlsplit

import click

from carpool import launcher_lock
from carpool.cli.main import json_option
from carpool.control.place import runtime_place
from carpool.launcher.http_door import read_door_status, read_page_key
from carpool.terminal.verb_output import EXIT_NO_BROKER, fail, print_json

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - it is replaced by the address of loopback
_ANSWER_S = 10.0
_NO_DOOR = (
    'no HTTP door is open here, and the page is served by it: write `"http": {}` into your configuration, or '
    "start carpool with `carpool up --http 127.0.0.1:8808`"
)


@click.command()
@click.option("--open", "opens", is_flag=True, help="Open it in a browser, without the code.")
@json_option
def web(*, opens: bool, as_json: bool) -> None:
    """Print the address of the web page, with a code for the key that may act.

    The code counts once and for two minutes, so the history of your browser holds nothing of use. Whoever has
    the key may do what you may do with `carpool stop` and `carpool logs`, until the HTTP door starts again.
    `--open` leaves the code out, because others can read the command line of a browser.
    """
    place = runtime_place()
    if launcher_lock.holder(place.directory) is None:
        fail("no carpool runs here; `carpool up --detach` starts it", EXIT_NO_BROKER)
    door = read_door_status(place.directory)
    if door is None or not door.url:
        fail(_NO_DOOR if door is None else f"the HTTP door is not open: {door.problem}")
    key = read_page_key(place.directory)
    if not key:
        fail("this HTTP door is of an earlier carpool and has no page; run `carpool restart --all`")
    page = page_address(door.url)
    try:
        address = f"{page}#code={_new_code(page, key)}"
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        fail("the HTTP door makes no code; it may have just started again: say `carpool web` once more")
    if as_json:
        print_json({"url": address, "page": page, "key": key})
    else:
        click.echo(address)
    if opens and not webbrowser.open(page):
        fail("no browser could be opened; open the address yourself")


def _new_code(page: str, key: str) -> str:
    """Return a new code of the door. Raises `OSError`, `HTTPException`, `ValueError` or `KeyError`."""
    connection = http.client.HTTPConnection(urlsplit(page).netloc, timeout=_ANSWER_S)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/operator/code", "{}", headers)
        return str(json.loads(connection.getresponse().read())["code"])
    finally:
        connection.close()


def page_address(url: str) -> str:
    """Return the address of the page from the URL at which the door speaks MCP."""
    parts = urlsplit(url)
    host = _EVERYWHERE.get(parts.hostname or "")
    place = parts.netloc if host is None else f"{host}:{parts.port}"
    return f"{parts.scheme}://{place}{'/web/' if parts.path in {'', '/'} else '/'}"
