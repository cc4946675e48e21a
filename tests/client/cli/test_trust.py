"""The verb `trust`: what is shown, who is asked, what is kept; and what `check` makes of it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon


def project(
    house: PrivateDaemon, text: str = '{"mcpServers": {"b": {"command": "echo", "args": ["hello world"]}}}'
) -> Path:
    file = house.base / "work" / ".mcp.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def trusted(house: PrivateDaemon) -> list[str]:
    return [each["file"] for each in json.loads(house.run("trust", "--list", "--json").stdout)]


@behaviour("trust:asked")
def test_a_person_is_shown_the_commands_and_asked(house: PrivateDaemon) -> None:
    file = project(house)
    code, said = house.answered("n", "trust", str(file.parent))
    assert (code, trusted(house)) == (1, [])
    assert "b       echo 'hello world'  -" in said
    assert f"{file} would run, in {file.parent}:" in said
    code, said = house.answered("y", "trust", str(file.parent / "deep" / "er"))
    assert (code, trusted(house)) == (0, [str(file)])
    assert f"{file} is trusted" in said
    assert house.run("trust", str(file.parent)).stdout == f"{file} is trusted already\n"


@behaviour("trust:asked")
def test_what_is_shown_is_what_would_run_and_where(house: PrivateDaemon) -> None:
    servers = {
        "a": {"command": "make"},
        "b": {"command": "make", "cwd": "~/elsewhere"},
        "c": {"command": "make", "args": ["(disabled)"]},
        "d": {"command": "make", "disabled": True},
        "e": {"command": "make", "args": ["${TOKEN}", "${workspace}"], "env": {"X": "${KEY:-none}"}},
        "f": {"url": "https://elsewhere.test", "headers": {"X-Key": "${SECRET}"}},
        "g": {"command": "make", "tools_prefix": "github"},
        "h": {"command": "make", "tools_prefix": ""},
    }
    file = project(house, json.dumps({"mcpServers": servers}))
    _, said = house.answered("n", "trust", str(file.parent))
    assert "b runs in ~/elsewhere" in said
    assert "runs in" not in said.replace("b runs in", "")
    assert "e is given your KEY, TOKEN" in said
    assert "f is given your SECRET" in said
    assert "g has its tools called github…" in said
    assert "h has its tools called as it likes, without its name" in said
    assert "has its tools" not in said.replace("g has its tools", "").replace("h has its tools", "")
    assert "c       make '(disabled)'" in said
    assert "d       make (disabled)" in said


@behaviour("trust:asked")
def test_nothing_in_a_project_adds_to_the_question_or_hides_from_it(house: PrivateDaemon) -> None:
    servers = {
        "a": {"command": "ma\u200bke", "args": ["\u05d0\u05d1", "a\u3164b"], "cwd": "x\n\na is fine\u2066"},
        "b": {
            "command": "make",
            "env": {
                "TOKEN": "1",
                "PATH": "./bin",
                "node_options": "-r ./x",
                "MY_PATH": "",
                "GITHUB_TOKEN": "",
                "NODE_ENV": "",
            },
        },
    }
    place = house.base / "work" / ".carpool"
    place.mkdir(parents=True)
    (place / "b\nall of it is safe.json").write_text("{}", encoding="utf-8")
    file = place / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers, "include": ["*safe.json"]}), encoding="utf-8")
    said = house.run("trust", "--yes", str(file.parent)).stdout
    assert r"a       ma\u200bke '\u05d0\u05d1' a\u3164b" in said
    assert r"a runs in x\x0a\x0aa is fine\u2066" in said
    assert r"b\x0aall of it is safe.json belongs to it" in said
    assert "b sets PATH, node_options, MY_PATH: look at the values in the file" in said
    assert not [line for line in said.splitlines() if line.startswith(("a is fine", "all of it"))]


@behaviour("remote:secrets")
def test_the_secret_of_a_login_is_something_that_is_given(house: PrivateDaemon) -> None:
    oauth = {"client_id": "${ID}", "client_secret": "${TOKEN}"}
    file = project(house, json.dumps({"mcpServers": {"far": {"url": "https://h.example", "oauth": oauth}}}))
    assert "far is given your ID, TOKEN" in house.run("trust", "--yes", str(file.parent)).stdout


@behaviour("remote:secrets")
def test_a_url_is_shown_as_it_is_written_with_the_names_of_its_headers(house: PrivateDaemon) -> None:
    far = '{"url": "https://h.example/mcp?k=${K}", "type": "http", "headers": {"X-Key": "hunter2"}}'
    file = project(house, f'{{"mcpServers": {{"far": {far}}}}}')
    done = house.run("trust", "--yes", "--json", str(file.parent))
    shown = json.loads(done.stdout)["servers"][0]["command"]
    assert shown == ["http", "https://h.example/mcp?k=${K}", "X-Key:"]
    assert "hunter2" not in done.stdout


def test_a_module_is_shown_as_what_runs_it(house: PrivateDaemon) -> None:
    file = project(house, '{"mcpServers": {"b": {"python": "tools", "interpreter": ".venv/bin/python"}}}')
    done = house.run("trust", "--yes", "--json", str(file.parent))
    assert json.loads(done.stdout)["servers"][0]["command"] == [
        ".venv/bin/python",
        "-m",
        "carpool.pymodule",
        "tools",
    ]


def test_without_a_terminal_nothing_is_trusted_unless_said(house: PrivateDaemon) -> None:
    file = project(house)
    done = house.run("trust", str(file.parent))
    assert (done.returncode, trusted(house)) == (2, [])
    assert "the user can run `carpool trust` in a terminal (--yes is for programs" in done.stderr
    done = house.run("trust", "--yes", "--json", str(file.parent))
    assert (done.returncode, trusted(house)) == (0, [str(file)])
    facts = json.loads(done.stdout)
    assert (facts["trust"], facts["workspace"]) == ("trusted", str(file.parent))
    assert facts["servers"] == [
        {
            "name": "b",
            "command": ["echo", "hello world"],
            "env": [],
            "flagged": [],
            "uses": [],
            "cwd": "${workspace}",
            "prefix": None,
            "disabled": False,
        }
    ]


@behaviour("trust:asked-again")
def test_a_change_is_said_and_asked_again(house: PrivateDaemon) -> None:
    file = project(house)
    house.run("trust", "--yes", str(file.parent))
    project(house, '{"mcpServers": {"b": {"command": "rm"}}}')
    done = house.run("trust", str(file.parent))
    assert done.returncode == 2
    assert "has changed since you trusted it" in done.stdout


@behaviour("trust:flags")
def test_a_file_trusted_before_something_in_it_was_flagged_is_asked_about_again(house: PrivateDaemon) -> None:
    file = project(house, '{"mcpServers": {"b": {"command": "make", "env": {"JAVA_HOME": "./jdk"}}}}')
    plain = house.base / "plain" / ".mcp.json"
    plain.parent.mkdir()
    plain.write_text('{"mcpServers": {"b": {"command": "make", "env": {"GITHUB_TOKEN": "x"}}}}')
    house.run("trust", "--yes", str(file.parent))
    # As a carpool has written it whose question flagged neither.
    (store,) = house.base.rglob("trust.json")
    held = json.loads(store.read_text())
    held["trusted"] = {str(each): digest_of_bytes(each) for each in (file, plain)}
    store.write_text(json.dumps(held))
    assert house.run("trust", str(plain.parent)).stdout == f"{plain} is trusted already\n"
    done = house.run("trust", str(file.parent))
    assert done.returncode == 2
    assert "or carpool now warns of more in it" in done.stdout
    assert "b sets JAVA_HOME" in done.stdout
    house.run("trust", "--yes", str(file.parent))
    assert house.run("trust", str(file.parent)).stdout == f"{file} is trusted already\n"


def digest_of_bytes(file: Path) -> str:
    """What a carpool kept of a project's file before the digest covered what is flagged."""
    data = file.read_bytes()
    head = f"{os.fsencode(file.name).hex()} {len(data)} True\n".encode()
    return hashlib.sha256(head + data).hexdigest()


@behaviour("trust:asked")
def test_a_store_that_is_damaged_is_said_and_kept_aside(house: PrivateDaemon) -> None:
    file = project(house)
    house.run("trust", "--yes", str(file.parent))
    (store,) = house.base.rglob("trust.json")
    store.write_text("{")
    said = f"{store} is not a trust file of this version; "
    assert any(text.startswith(said) for text in checked(house, file.parent)["warnings"])
    done = house.run("trust", "--yes", str(file.parent))
    assert (done.returncode, trusted(house)) == (0, [str(file)])
    assert f"{said}it is now {store}.aside-1, and no project is trusted" in done.stderr
    assert store.with_name("trust.json.aside-1").read_text() == "{"


@behaviour("trust:asked")
def test_a_project_file_without_servers_is_nothing_to_ask_about(house: PrivateDaemon) -> None:
    file = project(house, '{"include": ["no/*.json"], "env_file": "env", "mcpServers": {}}')
    done = house.run("trust", str(file.parent))
    assert (done.returncode, trusted(house)) == (0, [])
    assert done.stdout == f"{file} has no servers: there is nothing to trust\n"
    facts = json.loads(house.run("trust", "--json", str(file.parent)).stdout)
    assert (facts["trust"], facts["servers"]) == ("nothing", [])


def test_trust_is_taken_back(house: PrivateDaemon) -> None:
    file = project(house)
    house.run("trust", "--yes", str(file.parent))
    done = house.run("trust", "--revoke", "--json", str(file.parent))
    assert json.loads(done.stdout) == {"file": str(file), "trust": "untrusted", "was": True}
    assert trusted(house) == []
    assert house.run("trust", "--revoke", str(file.parent)).stdout == f"{file} was not trusted\n"


def test_trust_is_taken_back_also_of_a_file_that_is_gone_or_that_another_one_shadows(
    house: PrivateDaemon,
) -> None:
    file = project(house)
    house.run("trust", "--yes", str(file.parent))
    nearer = file.parent / ".carpool" / "mcp.json"
    nearer.parent.mkdir()
    nearer.write_text("{}")
    assert house.run("trust", "--revoke", str(file.parent)).stdout == f"{nearer} is trusted no longer\n"
    assert trusted(house) == []
    nearer.unlink()
    house.run("trust", "--yes", str(file.parent))
    file.unlink()
    assert trusted(house) == [str(file)]
    assert house.run("trust", "--revoke", str(file.parent)).stdout == f"{file.parent} is trusted no longer\n"
    assert trusted(house) == []


@behaviour("profiles:strangers")
def test_the_question_says_which_profiles_cover_it_and_is_asked_again_for_a_name_that_is_taken(
    house: PrivateDaemon,
) -> None:
    file = project(house)
    own = house.base / ".config" / "carpool" / "carpool.json"
    own.parent.mkdir(parents=True, exist_ok=True)
    profiles = {"reader": {"allow": ["mcp:b:*"]}, "all": {}, "other": {"allow": ["mcp:c"]}}
    own.write_text(json.dumps({"profiles": profiles}), encoding="utf-8")
    done = house.run("trust", "--yes", str(file.parent))
    assert "agents with your profile reader may use b" in done.stdout
    assert house.run("trust", "--yes", str(file.parent)).stdout == f"{file} is trusted already\n"
    own.write_text(
        json.dumps({"mcpServers": {"b": {"command": "x"}}, "profiles": profiles}), encoding="utf-8"
    )
    facts = json.loads(house.run("trust", "--yes", "--json", str(file.parent)).stdout)
    assert (facts["covered"], len(facts["replaces"])) == ({"b": ["reader"]}, 1)
    assert house.run("trust", "--yes", str(file.parent)).stdout == f"{file} is trusted already\n"


def test_what_it_would_replace_and_shadow_is_said_and_values_are_not(house: PrivateDaemon) -> None:
    own = house.base / ".config" / "carpool" / "carpool.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"mcpServers": {"b": {"command": "mine"}}}')
    file = project(house, '{"mcpServers": {"b": {"command": "x", "env": {"K": "hunter2"}, "odd": 1}}}')
    (file.parent / "opencode.json").write_text('{"mcp": {"c": {"type": "local", "command": ["x"]}}}')
    done = house.run("trust", "--yes", str(file.parent))
    assert "b takes the place of your own server of this name" in done.stdout
    assert f"{file.parent}/opencode.json is not read: {file} shadows it" in done.stdout
    assert 'does not know the key "odd"' in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_where_there_is_no_project_or_a_broken_one_the_exit_code_is_2(house: PrivateDaemon) -> None:
    bare = house.base / "bare"
    bare.mkdir()
    done = house.run("trust", str(bare))
    assert done.returncode == 2
    assert f"no project file from {bare} upwards" in done.stderr
    file = project(house, "{")
    done = house.run("trust", "--yes", str(file.parent))
    assert done.returncode == 2
    assert f"{file}:1: this {{ is not closed" in done.stderr
    assert house.run("trust", "--yes", "--revoke").returncode == 2


def checked(house: PrivateDaemon, directory: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "carpool", "check", "--json", *words],
        env=house.environ,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if facts["ok"] else 2 if facts["problems"] else 1)
    return facts


def origins(facts: dict[str, Any], *names: str) -> list[str]:
    found = {row["setting"]: row["origin"] for row in facts["settings"]}
    return [found.get(f"mcpServers.{name}.command", "") for name in names]


@behaviour("config:check-merged")
def test_check_shows_what_is_in_force_here_and_where_each_value_is_from(house: PrivateDaemon) -> None:
    own = house.base / ".config" / "carpool" / "carpool.json"
    (own.parent / "more").mkdir(parents=True)
    (own.parent / "more" / "c.json").write_text('{"mcpServers": {"c": {"command": "${NOWHERE}"}}}')
    own.write_text(
        '{"include": ["more/*.json"],\n"mcpServers": {"a": {"command": "sh"},\n"b": {"command": "sh"}}}'
    )
    file = project(house, '{"mcpServers": {\n"b": {"command": "cat"}, "far": {"type": "ws"}}}')
    (file.parent / "mcp_servers.json").write_text('[{"name": "c", "command": "x"}]')
    deep = file.parent / "deep"
    deep.mkdir()
    facts = checked(house, deep)
    assert facts["project"] == {
        "root": str(file.parent),
        "file": str(file),
        "trust": "untrusted",
        "servers": ["b", "far"],
    }
    included = str(own.parent / "more" / "c.json")
    assert origins(facts, "a", "b", "c") == [f"{own}:2", f"{own}:3", f"{included}:1"]
    assert facts["unset_variables"] == ["NOWHERE"]
    house.run("trust", "--yes", str(deep))
    facts = checked(house, deep)
    assert origins(facts, "a", "b", "c") == [f"{own}:2", f"{file}:2", f"{included}:1"]
    assert facts["project"]["trust"] == "trusted"
    assert [text.partition(": ")[2] for text in facts["warnings"]] == [
        f"{file} shadows it",
        f"b: takes the place of your server of this name in {own}",
        "mcpServers.far.type: is a WebSocket, which carpool does not support; "
        "does the server have another URL?",
    ]
    assert checked(house, house.base)["project"] is None
    assert origins(checked(house, deep, "--config", str(own)), "b") == [f"{own}:3"]
    file.write_text("{")
    broken = checked(house, deep)
    assert not broken["ok"]
    assert broken["problems"][0]["file"] == str(file)


def test_schema_is_printed(house: PrivateDaemon) -> None:
    done = house.run("schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["properties"]["mcpServers"]


@behaviour("config:check-merged")
def test_check_tells_where_it_looked_for_included_files_that_are_not_there(house: PrivateDaemon) -> None:
    place = house.base / "p" / ".carpool"
    (place / "servers.d").mkdir(parents=True)
    (place / "mcp.json").write_text('{"include": ["servers.d/*.json"], "mcpServers": {}}')
    where = f"{place / 'mcp.json'}:1: include[0]"
    assert checked(house, place)["warnings"] == [f"{where}: no file fits 'servers.d/*.json' in {place}"]
    (place / "servers.d" / "a.json").write_text('{"mcpServers": {}}')
    assert checked(house, place)["warnings"] == []


@behaviour("config:check-merged", "workspaces:named")
def test_check_shows_the_named_workspace_of_this_directory_below_its_project(house: PrivateDaemon) -> None:
    file = project(house, '{"mcpServers": {"b": {"command": "its"}}}')
    own = house.base / ".config" / "carpool" / "carpool.json"
    own.parent.mkdir(parents=True)
    one = '{"command": "mine"}'
    own.write_text(
        f'{{"mcpServers": {{\n"a": {one},\n"b": {one}}},\n'
        f'"workspaces": {{"shop": {{"root": "{file.parent}",\n"mcpServers": {{"a": {one},\n"b": {one}}}}}}}}}'
    )
    facts = checked(house, file.parent)
    assert facts["workspace"] == {"name": "shop", "root": str(file.parent), "servers": ["a", "b"]}
    assert origins(facts, "a", "b") == [f"{own}:5", f"{own}:6"]
    house.run("trust", "--yes", str(file.parent))
    facts = checked(house, file.parent)
    assert origins(facts, "a", "b") == [f"{own}:5", f"{file}:1"]
    assert len([text for text in facts["warnings"] if "takes the place" in text]) == 3
    assert checked(house, house.base)["workspace"] is None
    assert origins(checked(house, house.base), "a", "b") == [f"{own}:2", f"{own}:3"]
