"""URIs that one server lists, and the URIs that they name."""

import pytest

from carpool_broker.core.registry.listed_uris import NOTHING_LISTED, ListedUris
from carpool_protocol.machine.slices import run_all_slices


def listed(*uris: str, templates: tuple[str, ...] = ()) -> ListedUris:
    return run_all_slices(ListedUris.build(uris, templates))


@pytest.mark.parametrize(
    ("uri", "spelling"),
    [
        ("note://a/x", "note://a/x"),
        ("NOTE://a//x", "note://a/x"),
        ("note://a/y", None),
        ("note://b/7", "note://b/7"),
        ("note://b/../7", None),
    ],
)
def test_a_listed_uri_names_its_other_spellings_and_a_template_what_it_expands_to(
    uri: str, spelling: str | None
) -> None:
    found = listed("note://a/x", templates=("note://b/{id}",))
    assert found.spelling(uri) == spelling
    assert NOTHING_LISTED.spelling(uri) is None


def test_of_several_spellings_the_first_is_the_servers_own() -> None:
    assert listed("NOTE://a/x", "note://a//x").spelling("note://a/x") == "NOTE://a/x"


def test_a_uri_is_unclear_if_it_climbs_or_nothing_listed_has_its_authority() -> None:
    found = listed("note://a/x", templates=("note://b/{id}", "note://{host}/x"))
    unclear = {
        uri: found.is_unclear(uri) for uri in ("note://A/y", "note://b/1", "note://c/x", "note://a/../x")
    }
    assert unclear == {"note://A/y": False, "note://b/1": False, "note://c/x": True, "note://a/../x": True}


def test_the_given_normal_forms_are_used() -> None:
    asked: list[str] = []

    def normal(uri: str) -> str:
        asked.append(uri)
        return "note://known"

    found = run_all_slices(ListedUris.build(["note://a"], [], normal))
    assert found.spelling("note://known") == "note://a"
    assert asked == ["note://a"]
