"""Places inside projects that the environment names."""

import json
import os
from pathlib import Path

import pytest

from carpool_protocol.bootstrap import trusted_places
from carpool_protocol.bootstrap.trusted_places import UntrustedPlaceError, refuse_untrusted
from tests.behaviours import behaviour

pytestmark = pytest.mark.usefixtures("project")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "p" / ".x").mkdir(parents=True)
    (tmp_path / "p" / ".env").write_text("CARPOOL_CONFIG=.x/c.json")
    return tmp_path / "p"


def environ(tmp_path: Path, variable: str, place: str) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), variable: place}


@behaviour("places:project")
@pytest.mark.parametrize("variable", trusted_places.VARIABLES)
def test_each_variable_is_refused_in_a_project_and_where_it_is_relative(
    tmp_path: Path, variable: str
) -> None:
    for place, told in (
        (
            f"{tmp_path}/p/.x/c",
            f"inside the project {tmp_path}/p: .* Unset {variable}; .*trust --place {tmp_path}/p/.x/c",
        ),
        (f"{tmp_path}/p", "inside the project"),
        (f"{tmp_path}/home/../p/c", "inside the project"),
        ("~/../p/c", "inside the project"),
        (".x/c.json", f"{variable} names a relative path"),
    ):
        os.environ["HOME"], before = str(tmp_path / "home"), os.environ["HOME"]  # `~` is of the process
        try:
            with pytest.raises(UntrustedPlaceError, match=told):
                refuse_untrusted(environ(tmp_path, variable, place))
        finally:
            os.environ["HOME"] = before
    for place in (f"{tmp_path}/home/c", f"{tmp_path}/elsewhere/c", f"{tmp_path}/pp"):
        refuse_untrusted(environ(tmp_path, variable, place))


@behaviour("places:project")
def test_a_trusted_place_covers_itself_and_what_is_below_and_can_be_revoked(tmp_path: Path) -> None:
    inside = environ(tmp_path, "CARPOOL_CONFIG", f"{tmp_path}/p/.x/c.json")
    trusted_places.trust_place(inside, f"{tmp_path}/p/.x")
    refuse_untrusted(inside)
    beside = environ(tmp_path, "CARPOOL_CONFIG", f"{tmp_path}/p/.xyz")
    with pytest.raises(UntrustedPlaceError):
        refuse_untrusted(beside)
    assert trusted_places.revoke_place(inside, f"{tmp_path}/p/.x")
    assert not trusted_places.revoke_place(inside, f"{tmp_path}/p/.x")
    with pytest.raises(UntrustedPlaceError):
        refuse_untrusted(inside)


@behaviour("places:project")
def test_neither_state_directory_that_the_environment_names_brings_its_own_trusted_places(
    tmp_path: Path,
) -> None:
    place = f"{tmp_path}/p/.x"
    (tmp_path / "p" / ".x" / "carpool").mkdir()
    for file in ("places.json", "carpool/places.json"):
        (tmp_path / "p" / ".x" / file).write_text(json.dumps({"places": [place]}))
    for variable in ("CARPOOL_STATE_DIR", "XDG_STATE_HOME"):
        with pytest.raises(UntrustedPlaceError):
            refuse_untrusted({**environ(tmp_path, "CARPOOL_RUNTIME_DIR", place), variable: place})


@behaviour("places:project")
@pytest.mark.parametrize("text", ["{", "[]", '{"places": 1}', '{"places": [1]}', "[" * 100_000])
def test_a_damaged_file_of_places_trusts_nothing(tmp_path: Path, text: str) -> None:
    inside = environ(tmp_path, "CARPOOL_CONFIG", f"{tmp_path}/p/.x/c.json")
    trusted_places.trust_place(inside, f"{tmp_path}/p")
    Path(trusted_places.places_file(inside)).write_text(text)
    with pytest.raises(UntrustedPlaceError):
        refuse_untrusted(inside)


@behaviour("places:project")
def test_a_file_of_places_that_others_may_write_trusts_nothing(tmp_path: Path) -> None:
    inside = environ(tmp_path, "CARPOOL_CONFIG", f"{tmp_path}/p/.x/c.json")
    trusted_places.trust_place(inside, f"{tmp_path}/p")
    Path(trusted_places.places_file(inside)).chmod(0o666)
    with pytest.raises(UntrustedPlaceError):
        refuse_untrusted(inside)


def test_a_place_that_a_stranger_has_named_is_told_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(UntrustedPlaceError) as found:
        refuse_untrusted(environ(tmp_path, "CARPOOL_CONFIG", f"{tmp_path}/p/a\n\x1b[2J\u202eb"))
    assert str(found.value).isprintable()


@behaviour("places:project")
@pytest.mark.parametrize("variable", trusted_places.VARIABLES)
def test_a_link_outside_a_project_to_a_file_in_it_is_refused(tmp_path: Path, variable: str) -> None:
    (tmp_path / "p" / ".x" / "c.json").write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "p" / ".x" / "c.json")
    with pytest.raises(UntrustedPlaceError, match="link"):
        refuse_untrusted(environ(tmp_path, variable, str(link)))
    assert not trusted_places.is_own_place(environ(tmp_path, variable, str(link)), str(link))
