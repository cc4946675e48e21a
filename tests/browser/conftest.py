"""Tests in a real browser. They run by `make browser` alone: `make test` does not collect them.

A browser takes seconds to start and half a core to draw, so beside other tests it would slow down both.
"""

import sys
from collections.abc import AsyncIterator

import pytest

from tests.kit.browser import HeadlessBrowser, browsing, chromium
from tests.live.conftest import daemon

__all__ = ["daemon"]

collect_ignore_glob = [] if any("browser" in word for word in sys.argv[1:]) else ["test_*.py"]


@pytest.fixture
async def browser() -> AsyncIterator[HeadlessBrowser]:
    """A browser with an empty page, which asks no other host and complains of nothing."""
    if chromium() is None:
        pytest.skip("no chromium is installed here (Debian: apt install chromium)")
    async with browsing() as found:
        yield found
        hosts = {url.split("/")[2] for url in found.requests if url.startswith("http")}
        assert len(hosts) <= 1, f"the page asks other hosts: {hosts}"
        assert found.complaints == []
