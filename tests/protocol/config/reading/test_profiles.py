"""Profiles that the user's file names: how they are written, and that nobody else writes any."""

import json
from typing import Any

import pytest

from carpool_protocol.config.pages.describe import describe
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import ProfileConfig
from tests.behaviours import behaviour


def problems(profiles: Any, *, project: bool = False) -> list[str]:
    loaded = read_config(json.dumps({"profiles": profiles}), "f", project=project)
    return [problem.render().removeprefix("f:1: profiles") for problem in loaded.problems]


@behaviour("profiles:written")
def test_a_profile_has_rights_bounds_and_what_it_shows_each_with_its_line() -> None:
    loaded = read_config(
        """{ "profiles": {
          "reader": { "allow": ["mcp:github:*", "tag:code"], "deny": ["mcp:github:delete_*"],
                      "max_in_flight": 8, "show": "search" },
          "any": {} } }""",
        "f",
    )
    assert loaded.config is not None
    reader, anything = loaded.config.profiles.values()
    assert reader == ProfileConfig(
        name="reader",
        allow=("mcp:github:*", "tag:code"),
        deny=("mcp:github:delete_*",),
        max_in_flight=8,
        calls_per_minute=None,
        max_servers=None,
        max_tools=None,
        show="search",
        resource_tools=False,
    )
    assert (anything.allow, anything.deny, anything.show) == (("*",), (), "all")
    rows = {row.setting: (row.value, row.origin) for row in describe(loaded.config)}
    assert rows["profiles.reader.max_in_flight"] == ("8", "f:3")
    assert rows["profiles.reader.allow"] == ('["mcp:github:*", "tag:code"]', "f:2")
    assert rows["profiles.any.max_tools"] == ("—", "default")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([], ": must be an object of names and profiles, found a list"),
        ({"p": 1}, '.p: must be an object like { "allow": ["mcp:time:*"] }, found a number'),
        ({"p": {"alow": []}}, ".p.alow: unknown key; did you mean `allow`?"),
        ({"p": {"allow": "mcp:a"}}, ".p.allow: must be a list of texts, found text (write it in [ ])"),
        ({"p": {"allow": ["mcp:a:"]}}, ".p.allow[0]: has nothing after the second colon"),
        ({"p": {"max_in_flight": 0}}, ".p.max_in_flight: must be from 1 to 1000000 calls"),
        ({"p": {"show": "some"}}, '.p.show: must be "all" or "search"'),
        ({"": {}}, '."": A profile needs a name.'),
    ],
)
def test_what_is_wrong_with_a_profile_is_said_at_its_place(written: Any, said: str) -> None:
    (found,) = problems(written)
    assert found.startswith(said), found


def test_the_profile_of_other_nodes_is_one_that_there_is() -> None:
    text = '{"cluster": {"url": "new", "profile": "gest"}, "profiles": {"guest": {}}}'
    (problem,) = read_config(text, "f").problems
    assert "cluster.profile: there is no profile of that name; did you mean guest?" in problem.render()
    assert read_config(text.replace("gest", "guest"), "f").config is not None


HASH = "sha256:" + 64 * "0"


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (HASH, ""),
        ({"hash": HASH, "profile": "reader"}, ""),
        (
            {"hash": HASH, "profile": "raeder"},
            ".profile: there is no profile of that name; did you mean reader?",
        ),
        ({"hash": HASH, "profile": ""}, ".profile: must be the name of a profile"),
        ({"hash": "x"}, ".hash: must be `sha256:` and 64 hex digits"),
        ({"profile": "reader"}, ": must be `sha256:` and 64 hex digits"),
        ({"hash": HASH, "profil": "reader"}, ".profil: unknown key; did you mean `profile`?"),
    ],
)
@behaviour("profiles:tokens")
def test_a_token_may_have_a_profile_that_there_is(token: Any, said: str) -> None:
    text = json.dumps({"http": {"tokens": {"ann": token}}, "profiles": {"reader": {}}})
    loaded = read_config(text, "f")
    if not said:
        assert loaded.config is not None
        found = loaded.config.http.tokens["ann"]
        assert (found.hash, found.profile) == (HASH, "" if token == HASH else "reader")
        (row,) = [row for row in describe(loaded.config) if row.setting == "http.tokens"]
        assert json.loads(row.value)["ann"]["hash"] == HASH
    else:
        (problem,) = loaded.problems
        assert problem.render().startswith(f"f:1: http.tokens.ann{said}"), problem.render()


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [
        ("2027-01-31T00:00:00Z", 1801353600.0),
        ("2027-01-31", 1801353600.0),
        ("2027-01-31T01:00+01:00", 1801353600.0),
    ],
)
@behaviour("http:tokens:verbs")
def test_a_token_may_have_an_end(expires: str, seconds: float) -> None:
    loaded = read_config(json.dumps({"http": {"tokens": {"ann": {"hash": HASH, "expires": expires}}}}), "f")
    assert loaded.config is not None
    token = loaded.config.http.tokens["ann"]
    assert token.expires == seconds
    assert (token.is_expired(seconds - 1), token.is_expired(seconds)) == (False, True)


@pytest.mark.parametrize("expires", ["soon", 7, True, "2027-13-01", ""])
def test_an_end_that_is_no_time_is_refused(expires: Any) -> None:
    loaded = read_config(json.dumps({"http": {"tokens": {"ann": {"hash": HASH, "expires": expires}}}}), "f")
    (problem,) = loaded.problems
    assert "must be a date or time in UTC" in problem.render()


@pytest.mark.parametrize(
    ("token", "right"),
    [
        ({"hash": HASH, "operator": True}, "full"),
        ({"hash": HASH, "operator": "read"}, "read"),
        ({"hash": HASH, "operator": False}, ""),
        ({"hash": HASH}, ""),
        (HASH, ""),
    ],
)
@behaviour("operate:http")
def test_a_token_may_be_an_operators(token: Any, right: str) -> None:
    loaded = read_config(json.dumps({"http": {"tokens": {"ann": token}}}), "f")
    assert loaded.config is not None
    assert loaded.config.http.tokens["ann"].operator == right


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ({"hash": HASH, "operator": "full"}, 'must be true, false or "read"'),
        ({"hash": HASH, "operator": 1}, 'must be true, false or "read"'),
        ({"hash": HASH, "operator": None}, 'must be true, false or "read"'),
        ({"hash": HASH, "operator": ["read"]}, 'must be true, false or "read"'),
        ({"hash": HASH, "operator": True, "profile": "reader"}, "has no effect together with `profile`"),
    ],
)
@behaviour("operate:http")
def test_another_value_for_an_operators_right_is_refused(token: Any, said: str) -> None:
    text = json.dumps({"http": {"tokens": {"ann": token}}, "profiles": {"reader": {}}})
    (problem,) = read_config(text, "carpool.json").problems
    assert problem.render().startswith(f"carpool.json:1: http.tokens.ann.operator: {said}"), problem.render()


@behaviour("profiles:written")
def test_a_project_defines_no_profiles() -> None:
    (found,) = problems({"reader": {}}, project=True)
    assert found == ": concerns all projects: it belongs in the user's own file"
