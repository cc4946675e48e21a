"""Capabilities as a flat set of features, and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.capabilities import ALL_FEATURES, FEATURES, capabilities_of, features_of
from carpool_protocol.wire.json_scan import MAX_PARTS
from tests.behaviours import behaviour


def test_features_are_read_from_what_a_server_announces() -> None:
    announced = {
        "logging": {},
        "completions": {},
        "prompts": {"listChanged": False},
        "resources": {"subscribe": True, "listChanged": True},
        "tools": {"listChanged": True, "other": True},
        "tasks": {"list": {}},
        "experimental": {"x": {}},
    }
    assert features_of(RawJson(json.dumps(announced).encode())) == [
        "tools",
        "tools.listChanged",
        "prompts",
        "resources",
        "resources.listChanged",
        "resources.subscribe",
        "completions",
        "logging",
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"tools":true,"prompts":null,"logging":false}', ["tools"]),
        (b'{"tools":{"listChanged":"yes"},"resources":[]}', ["tools", "resources"]),
        (b"{}", []),
        (b"[]", []),
        (b"null", []),
        (b"", []),
        (b"[" * 100_000, []),
        (b'{"tools":{},"logging":{%b}}' % b",".join(b'"%d":0' % n for n in range(MAX_PARTS)), []),
    ],
)
def test_odd_capabilities_are_read_leniently_and_never_raise(raw: bytes, expected: list[Feature]) -> None:
    assert features_of(RawJson(raw)) == expected


@given(st.sets(st.sampled_from(FEATURES)))
def test_what_is_announced_is_read_back_with_the_families_of_all_options(features: set[Feature]) -> None:
    read = set(features_of(RawJson(json.dumps(capabilities_of(features)).encode())))
    assert read == features | {feature.partition(".")[0] for feature in features}


@behaviour("features:announced")
def test_everything_is_announced_for_a_server_that_told_nothing_yet() -> None:
    changed = {"listChanged": True}
    assert capabilities_of(ALL_FEATURES) == {
        "tools": changed,
        "prompts": changed,
        "resources": {**changed, "subscribe": True},
        "completions": {},
        "logging": {},
    }
