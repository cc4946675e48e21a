"""Setups and undoings in any order, with files written in between: no server and no write is ever lost."""

import contextlib
import json
import os
import tomllib
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from click.testing import CliRunner
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from carpool.cli.main import verbs
from carpool.setup import toml
from carpool_protocol.config.edit.edit import set_member, value_at
from carpool_protocol.config.foreign.formats import is_own_entry
from carpool_protocol.config.text.jsonc import parse
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

PLACES = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
}
CLIENTS = st.sampled_from(sorted(PLACES))


class SetupMachine(RuleBasedStateMachine):
    """The model: which servers each program was given, and which token was written to its file last."""

    def __init__(self) -> None:
        super().__init__()
        self.house = PrivateDaemon(fakes=False)
        self.had: dict[str, set[str]] = {client: set() for client in PLACES}
        self.tokens = dict.fromkeys(PLACES, "t0")
        self.own: set[str] = set()
        self.number = 0
        self.places: dict[str, str] = {}

    @initialize()
    def begin(self) -> None:
        for client, (name, key) in PLACES.items():
            file = self.house.base / name
            file.parent.mkdir(parents=True)
            file.write_text('token = "t0"\n' if client == "codex" else json.dumps({"token": "t0", key: {}}))
            self.add_to_program(client)

    def teardown(self) -> None:
        self.house.close()

    # --- what others do --------------------------------------------------------------------------------

    @rule(client=CLIENTS)
    def add_to_program(self, client: str) -> None:
        self.number += 1
        self._put(client, f"s{self.number}", {"command": f"run-s{self.number}"})
        self.had[client].add(f"s{self.number}")

    @rule(client=CLIENTS)
    def write_token(self, client: str) -> None:
        self.number += 1
        file, _ = self._file(client)
        token = self.tokens[client] = f"t{self.number}"
        if client == "codex":
            rest = "".join(line for line in file.read_text().splitlines(True) if not line.startswith("token"))
            file.write_text(f'token = "{token}"\n{rest}')
        else:
            file.write_text(set_member(file.read_text(), ("token",), token))

    @rule(client=CLIENTS)
    def edit_entry(self, client: str) -> None:
        for name, entry in self._table(client).items():
            if is_own_entry(entry):
                self._put(client, name, {**entry, "env": {"NOTE": "mine"}})

    @rule()
    def add_to_carpool(self) -> None:
        self.number += 1
        assert self._run("add", f"s{self.number}", "--", f"run-s{self.number}")[0] == 0
        self.own.add(f"s{self.number}")

    # --- what setup does -------------------------------------------------------------------------------

    @rule(clients=st.sets(CLIENTS), share=st.booleans())
    def setup(self, clients: set[str], share: bool) -> None:
        named = [word for client in sorted(clients) for word in ("--client", client)]
        code, said = self._run("setup", "--yes", "--no-try", *(["--share-all"] if share else []), *named)
        assert code == 0, said
        for client in clients or PLACES:
            table = self._table(client)
            assert not self.had[client] & table.keys()
            for entry in filter(is_own_entry, table.values()):
                assert entry["env"].items() >= self.places.items()

    @rule(number=st.integers(0, 2))
    def move_state(self, number: int) -> None:
        """The user's shell sets another place, or none; the next setup writes it into the entries."""
        self.places = {"XDG_STATE_HOME": f"{self.house.base}/state{number}"} if number else {}

    @rule(client=CLIENTS | st.none(), force=st.booleans())
    def undo(self, client: str | None, force: bool) -> None:
        named = ["--client", client] if client else []
        code, said = self._run("setup", "--undo", *(["--force"] if force else []), *named)
        assert (code == 0) or not force, said
        if code == 0:
            for each in [client] if client else PLACES:
                table = self._table(each)
                assert self.had[each] <= table.keys()
                assert not any(map(is_own_entry, table.values()))
        if code == 0 and not client:
            assert self._own("mcpServers").keys() == self.own
            assert "profiles" not in self._own()

    @rule(client=CLIENTS)
    def undo_with_an_edited_entry(self, client: str) -> None:
        self.edit_entry(client)
        code, said = self._run("setup", "--undo")
        again = self._texts()
        assert self._run("setup", "--undo")[0] == code, said
        assert self._texts() == again, "what is undone is left alone"
        if code:
            assert "--undo --force" in said

    # --- what holds ------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        servers = self._own("mcpServers")
        assert self.own <= servers.keys()
        for client, had in self.had.items():
            table = self._table(client)
            assert self._read(client)["token"] == self.tokens[client]
            for name in had:
                there = table.get(name) or servers.get(name)
                assert there is not None, f"{name} of {client} is nowhere"
                assert there["command"] == f"run-{name}"
                if name not in table:
                    self._is_reached(client, name)

    def _is_reached(self, client: str, name: str) -> None:
        entries = [each for each in self._table(client).values() if is_own_entry(each)]
        assert entries, f"{client} has neither {name} nor an entry for carpool"
        arguments = entries[0]["args"]
        if "--profile" in arguments:
            profile = arguments[arguments.index("--profile") + 1]
            assert f"mcp:{name}" in self._own("profiles", profile)["allow"]

    # --- files -----------------------------------------------------------------------------------------

    def _run(self, *arguments: str) -> tuple[int, str]:
        environ = {**self.house.environ, **self.places}
        with contextlib.chdir(self.house.base), mock.patch.dict(os.environ, environ, clear=True):
            result = CliRunner().invoke(verbs, arguments, prog_name="carpool")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    def _file(self, client: str) -> tuple[Any, str]:
        name, key = PLACES[client]
        return self.house.base / name, key

    def _read(self, client: str) -> Any:
        text = self._file(client)[0].read_text()
        return tomllib.loads(text) if client == "codex" else parse(text, "").value

    def _table(self, client: str) -> dict[str, Any]:
        return dict(self._read(client).get(self._file(client)[1], {}))

    def _put(self, client: str, name: str, entry: dict[str, Any]) -> None:
        file, key = self._file(client)
        if client == "codex":
            out = [name] if name in self._table(client) else []
            file.write_text(toml.swap(file.read_text(), out, {name: entry}))
        else:
            file.write_text(set_member(file.read_text(), (key, name), entry))

    def _own(self, *path: str) -> dict[str, Any]:
        file = self.house.base / ".config/carpool/carpool.json"
        held = value_at(parse(file.read_text(), "").value, path) if file.exists() else None
        return held if isinstance(held, dict) else {}

    def _texts(self) -> dict[str, str]:
        files = [*(self.house.base / name for name, _ in PLACES.values())]
        files.append(self.house.base / ".config/carpool/carpool.json")
        return {str(file): file.read_text() for file in files if file.exists()}


@behaviour("setup:undone.since", "setup:profiles")
def test_no_order_of_setups_and_undoings_loses_anything() -> None:
    run_state_machine_as_test(
        SetupMachine, settings=settings(max_examples=25, stateful_step_count=10, deadline=None)
    )
