"""Named workspaces: who is in which one, what lies over what there, and who may say so."""

from pathlib import Path
from typing import Any

import pytest

from carpool_broker.config.configuration import DEFAULT_SOURCE
from carpool_broker.config.locations import WorkspaceRequest, file_uri_path
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.core.model.events import SessionSourceChanged
from carpool_protocol.bootstrap.carrier_contract import NAMING_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession, WorkspaceChanged
from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.link.messages import Root
from tests.behaviours import behaviour
from tests.broker.config.test_workspaces import ONE, TWO, WorkspacesHome, runs

A = ServerName("a")


def server(command: str, **more: Any) -> dict[str, Any]:
    return {"command": command, **more}


def shop(tmp_path: Path, **more: Any) -> WorkspacesHome:
    """A home with servers `a` and `b` for everybody, and a workspace with an `a` of its own."""
    user = {"a": server("mine"), "b": server("mine")}
    root = str(tmp_path / "code" / "shop")
    workspaces = {"shop": {"root": root, "mcpServers": {"a": server("shops")}}, **more}
    return WorkspacesHome(tmp_path, user, workspaces=workspaces)


@behaviour("workspaces:named", "workspaces:override")
def test_only_a_session_below_a_root_is_in_that_workspace(tmp_path: Path) -> None:
    house = shop(tmp_path)
    inside, outside = house.come(ONE, "code/shop/src"), house.come(TWO, "code/other")
    assert runs(inside) == {"a": ("shops", f"{tmp_path}/code/shop"), "b": ("mine", str(tmp_path))}
    assert outside.source == DEFAULT_SOURCE
    assert house.configuration.workspace_of(ONE) == {"name": "shop", "root": f"{tmp_path}/code/shop"}
    assert house.configuration.workspace_of(TWO) == {"name": "", "root": f"{tmp_path}/code/other"}
    (place,) = house.configuration.workspace_rows()
    assert (place["name"], place["trust"], place["servers"]) == ("shop", "own", ["a"])
    assert "takes the place of your server" in str(place["warnings"])


@behaviour("workspaces:named", "trust:no-takeover")
def test_a_project_within_lies_over_the_named_workspace_once_it_is_trusted(tmp_path: Path) -> None:
    house = shop(tmp_path)
    file = house.project("code/shop/pkg", {"a": server("its"), "c": server("its")})
    before = house.come(ONE, "code/shop/pkg/src")
    assert runs(before)["a"] == ("shops", f"{tmp_path}/code/shop")
    assert before.untrusted == {"c"}
    house.trust(file)
    house.look()
    now = runs(house.seen(ONE))
    assert now["a"] == ("its", f"{tmp_path}/code/shop/pkg")
    assert now["b"] == ("mine", str(tmp_path))


def test_the_workspaces_own_servers_run_at_its_root_and_not_in_a_project_within(tmp_path: Path) -> None:
    told = server("x", args=["${workspace}"], roots="workspace")
    house = WorkspacesHome(
        tmp_path, {"b": told}, workspaces={"w": {"root": "~/w", "mcpServers": {"a": told, "r": server("y")}}}
    )
    house.trust(house.project("w/p", {"c": told}))
    specs = {spec.server: spec for spec in house.come(ONE, "w/p").specs}
    assert [specs[A].argv[1], specs[A].cwd] == [f"{tmp_path}/w"] * 2
    assert [specs[ServerName(each)].argv[1] for each in "bc"] == [f"{tmp_path}/w/p"] * 2
    assert specs[A].roots == [Root(f"file://{tmp_path}/w")]
    assert specs[ServerName("r")].cwd == f"{tmp_path}/w"


@behaviour("workspaces:attach")
def test_a_session_is_where_it_says_whatever_its_directory(tmp_path: Path) -> None:
    house = shop(tmp_path, tools={"mcpServers": {"t": server("x"), "p": server("${workspace}")}})
    named = house.come(ONE, "elsewhere", "shop")
    assert runs(named)["a"] == ("shops", f"{tmp_path}/code/shop")
    assert house.configuration.workspace_of(ONE)["name"] == "shop"
    rootless = house.come(TWO, "code/shop", "tools")
    assert runs(rootless) == {
        "a": ("mine", str(tmp_path)),
        "b": ("mine", str(tmp_path)),
        "t": ("x", str(tmp_path)),
    }
    assert "a workspace without `root`" in rootless.misconfigured[ServerName("p")]
    assert house.configuration.workspace_of(TWO) == {"name": "tools", "root": ""}
    house.configuration.session_closed(ONE)
    by_directory = house.come(ONE, "elsewhere", f"{tmp_path}/code/shop/deep")
    assert runs(by_directory)["a"] == ("shops", f"{tmp_path}/code/shop")


@behaviour("workspaces:one-instance")
def test_named_workspaces_share_what_launches_alike_and_nothing_else(tmp_path: Path) -> None:
    same = server("x", cwd="/same")
    house = WorkspacesHome(
        tmp_path,
        {},
        workspaces={
            "v": {"root": "~/v", "mcpServers": {"same": same, "own": server("x", args=["1"])}},
            "w": {"root": "~/w", "mcpServers": {"same": same, "own": server("x", args=["2"])}},
        },
    )
    one, two = (
        {spec.server: spec.key for spec in house.come(session, name).specs}
        for session, name in ((ONE, "v"), (TWO, "w"))
    )
    assert one[ServerName("same")] == two[ServerName("same")]
    assert one[ServerName("own")] != two[ServerName("own")]


@behaviour("workspaces:named")
def test_a_workspace_that_is_named_moved_or_gone_takes_its_sessions_along(tmp_path: Path) -> None:
    house = shop(tmp_path)
    house.come(ONE, "code/shop")
    house.come(TWO, "x", "shop")
    house.file.write_text('{"mcpServers": {}}', encoding="utf-8")
    events = house.configuration.read_again()
    assert {each.session for each in events if isinstance(each, SessionSourceChanged)} == {ONE, TWO}
    assert house.configuration.workspace_of(TWO) == {"name": "", "root": f"{tmp_path}/x"}
    house.file.write_text(
        '{"workspaces": {"shop": {"mcpServers": {"a": {"command": "n"}}}}}', encoding="utf-8"
    )
    house.configuration.read_again()
    assert house.configuration.workspace_of(TWO)["name"] == "shop", "who has named it finds it again"
    assert house.configuration.workspace_of(ONE)["name"] == ""


def test_a_workspace_may_disable_a_server_of_the_users_file(tmp_path: Path) -> None:
    house = WorkspacesHome(
        tmp_path, {"a": server("x")}, workspaces={"w": {"mcpServers": {"a": {"disabled": True}}}}
    )
    assert runs(house.come(ONE, "x", "w")) == {}
    assert house.configuration.layers.disabled_in(ServerName("a")) == [f"{house.file} (workspace w)"]


@behaviour("workspaces:attach")
@pytest.mark.parametrize(
    ("workspace", "door", "said"),
    [
        ("shop", True, ""),
        ("shp", False, "(there are: shop, tools); did you mean shop?"),
        ("x", True, "(there are: shop, tools)"),
        ("/", False, ""),
        ("/", True, "is accepted, not a directory"),
        ("/nowhere/at/all", False, "there is no such directory"),
    ],
)
def test_an_unknown_workspace_is_refused_and_over_http_every_directory(
    tmp_path: Path, workspace: str, door: bool, said: str
) -> None:
    house = shop(tmp_path, tools={})
    carrier: Any = "door" if door else "shim"
    attach = Attach(version=NAMING_VERSION, carrier=carrier, workspace=workspace, streams=door)
    refused = house.configuration.attach_objection(attach)
    assert (refused is None) == (not said)
    if refused is not None:
        assert refused.why == "unknown_workspace"
        assert refused.text.endswith(said)


def test_without_any_workspace_in_the_file_that_is_said(tmp_path: Path) -> None:
    refused = WorkspacesHome(tmp_path, {}).configuration.attach_objection(
        Attach(version=NAMING_VERSION, carrier="shim", workspace="x")
    )
    assert refused is not None
    assert refused.text.endswith("no workspace 'x': it names none")


@behaviour("workspaces:moved-survives")
def test_a_session_that_comes_back_is_where_it_was_last(tmp_path: Path) -> None:
    house = shop(tmp_path)
    resume = ResumeSession(session="s1", secret="x", moved=WorkspaceChanged("shop"))
    attach = Attach(
        version=NAMING_VERSION, carrier="shim", cwd=str(tmp_path), workspace="gone", resume=resume
    )
    assert house.configuration.attach_objection(attach) is None
    house.configuration.session_opened(SessionId("s1"), attach, {})
    assert house.configuration.workspace_of(SessionId("s1"))["name"] == "shop"


def test_variables_of_the_workspace_that_a_session_is_in_are_asked_for_and_no_others(tmp_path: Path) -> None:
    needy = {"mcpServers": {"n": server("x", env={"K": "${INSIDE}"})}}
    house = shop(tmp_path, needy=needy)
    wanted = house.configuration.wanted_variables
    assert wanted(house.attach("x", "needy")) == ["INSIDE"]
    assert wanted(house.attach("x")) == []


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file://{}/a%20b", "{}/a b"),
        ("file://localhost{}/a%20b/", "{}/a b/"),
        ("file://elsewhere{}/a%20b", ""),
        ("file://{}/nothing", "{}/nothing"),
        ("https://x/", ""),
        ("file:relative", ""),
        ("file:///%00", ""),
        ("file:///%ff", ""),
        ("file://[x", ""),
    ],
)
def test_a_root_names_something_on_this_machine(tmp_path: Path, uri: str, path: str) -> None:
    assert file_uri_path(uri.format(tmp_path)) == path.format(tmp_path)


def test_a_directory_is_kept_in_one_spelling(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "x").mkdir()
    configuration = WorkspacesHome(tmp_path, {}).configuration
    for each in (f"{tmp_path}/link/", f"{tmp_path}/x/../link"):
        found: list[WorkspaceScan] = []
        configuration.scan(WorkspaceRequest(each), found.append, spell=True)
        assert [each.request.workspace for each in found] == [str(tmp_path)]
