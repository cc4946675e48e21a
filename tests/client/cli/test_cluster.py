"""The verb `cluster`: what it says of the way into the cluster."""

import pytest

from carpool.cli.cluster import join_line


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("nats://secret@127.0.0.1:4222", True),
        ("nats://secret@localhost:4222", True),
        ("nats://secret@[::1]:4222", True),
        ("nats://secret@10.0.0.2:4222", False),
        ("nats://nats.example:4222", False),
    ],
)
def test_another_machine_is_named_only_if_it_can_reach_the_address(url: str, is_here: bool) -> None:
    said = join_line(url)
    assert f"`carpool up --cluster {url}`" in said
    assert ("on another machine" in said) != is_here
    assert ("for this machine only" in said) == is_here
