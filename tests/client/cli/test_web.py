"""The verb `web`: the address of the page."""

import pytest

from carpool.cli.web import page_address
from tests.behaviours import behaviour


@behaviour("web:verb")
@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("http://127.0.0.1:8808/mcp", "http://127.0.0.1:8808/"),
        ("http://127.0.0.1:8808/", "http://127.0.0.1:8808/web/"),
        ("http://[::1]:8808/mcp", "http://[::1]:8808/"),
        ("http://0.0.0.0:8808/mcp", "http://127.0.0.1:8808/"),
        ("http://[::]:8808/mcp", "http://[::1]:8808/"),
        ("http://build.example:80/a/b", "http://build.example:80/"),
    ],
)
def test_the_page_is_beside_mcp_at_an_address_that_a_browser_reaches(url: str, page: str) -> None:
    assert page_address(url) == page
