"""The files of the web page, as they are installed with carpool.

Owns their list and media types. Knows nothing of: their addresses (`core.web_page`), what they show.
"""

from importlib.resources import files
from typing import Final

from carpool.http.core.web_page import WebFile

_MEDIA: Final = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}


def read_web_files() -> dict[str, WebFile]:
    """Return all files by their names."""
    folder = files("carpool.http") / "web"
    return {name: WebFile(media, (folder / name).read_bytes()) for name, media in _MEDIA.items()}
