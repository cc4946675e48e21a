"""The plan of `carpool setup`: from the programs' files to the new texts of all files.

Owns the decision which servers go where under which name, and the texts of all files afterwards. The same
server of several programs is moved once; a different one of the same name gets a second name. Servers of a
user go into carpool.json. Those that Claude Code keeps for one directory go into a named workspace there,
and those of a project's file into its `.carpool/mcp.json`. Pure. Knows nothing of: which files exist, who is
asked, how they are written.
"""

import json
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec.structs import replace

from carpool.check.names import PREFIXED_CHARS
from carpool.setup import toml
from carpool.setup.client_files import CLIENTS, ClientFilePath, entry
from carpool.setup.convert_server import NotConverted, convert_server
from carpool.setup.entry_environment import (
    PLACE_VARIABLES,
    EntryEnvironment,
    is_connect_entry,
    other_places,
    used_variables,
    with_environment,
    writable_places,
)
from carpool.setup.model import (
    CarpoolFile,
    ClientFile,
    FileChange,
    KeptInPlace,
    KeyPath,
    MovedServer,
    ProgramProfile,
    Role,
    SecretsFile,
    SetupPlan,
)
from carpool.setup.profiles import OPTION, named_in, plan_profiles
from carpool.setup.secret_variables import free_name, with_lines
from carpool.setup.secrets import secrets_of
from carpool.setup.servers_in_file import ServerTable, tables
from carpool.setup.target_file import TargetFile
from carpool.setup.trial import ServerKey, TrialResult
from carpool_protocol.config.edit.edit import (
    CannotEditError,
    MemberSwap,
    set_member,
    set_members,
    swap_members,
    value_at,
)
from carpool_protocol.config.foreign.formats import is_own_entry
from carpool_protocol.config.reading.parse import SERVERS, read_config
from carpool_protocol.config.reading.profiles import PROFILES
from carpool_protocol.config.reading.workspaces import WORKSPACES
from carpool_protocol.config.text.jsonc import JsonValue

CARPOOL: Final = "carpool"
LENGTH: Final = "--tool-name-length"


def make_plan(
    sources: Sequence[ClientFile],
    own: CarpoolFile,
    project: CarpoolFile | None,
    secrets: SecretsFile,
    command: Callable[[ClientFilePath], list[str]],
    *,
    home: str,
    alive: Callable[[str], bool] = lambda _: True,
    starts: Callable[[str], bool] = lambda _: True,
    named: Collection[str] = (),
    remote: bool = True,
    separate: bool = False,
    shared: Collection[str] = (),
    places: Mapping[str, str] = {},
    tried: Mapping[ServerKey, TrialResult] = {},
) -> SetupPlan:
    """Make the plan.

    `command`: how a program starts carpool; `alive`: True for a directory that exists; `starts`: True for a
    command that is in PATH; `named`: programs that get the entry even if they have no server; `separate`:
    each program keeps the servers it had, by a profile; `shared`: files that others get as well, whose
    entries name no profile; `places`: variables that lead to carpool's files and are not set by default;
    `tried`: what follows from a trial of servers.
    """

    def planning(profiles: Sequence[ProgramProfile], needed: Mapping[str, tuple[str, ...]]) -> "_Planner":
        return _Planner(
            own,
            project,
            secrets,
            command,
            home,
            alive,
            starts,
            named,
            profiles,
            shared,
            places,
            needed,
            tried,
            remote=remote,
        )

    first = planning((), {})
    plan = first.run(sources)
    found, notes = plan_profiles(first.own.value, first.names(), plan.moved, first.entered)
    kept = [
        each for each in found if each.client in first.entered or (separate and each.client in first.entering)
    ]
    needed = first.needed_variables(kept)
    if kept or needed:
        # Under the same names: what decides them is the same.
        plan = planning(kept, needed).run(sources)
    if separate:
        notes += [
            f"{path} names no profile, since others have none of yours: there {title} sees all your servers"
            for path, title in first.entering_for_all.items()
        ]
    return replace(plan, given=tuple(kept), notes=(*plan.notes, *notes))


class _Planner:
    def __init__(  # noqa: PLR0917 - what `make_plan` was given
        self,
        own: CarpoolFile,
        project: CarpoolFile | None,
        secrets: SecretsFile,
        command: Callable[[ClientFilePath], list[str]],
        home: str,
        alive: Callable[[str], bool],
        starts: Callable[[str], bool],
        named: Collection[str],
        given: Sequence[ProgramProfile],
        shared: Collection[str],
        places: Mapping[str, str],
        needed: Mapping[str, tuple[str, ...]],
        tried: Mapping[ServerKey, TrialResult],
        *,
        remote: bool,
    ) -> None:
        self.own = TargetFile(own)
        self.project = TargetFile(project) if project is not None else None
        self.secrets = secrets
        self.command = command
        self.home = home
        self.alive = alive
        self.starts = starts
        self.named = named
        self.remote = remote
        self.profiles = {each.client: each for each in given}
        self.shared = shared
        self.places = places
        self.tried = tried
        self.needed = needed
        """By program: the variables that its entry names."""
        self.used: dict[str, set[str]] = {}
        """By program, and by file: the variables that the servers from there use."""
        self.elsewhere: dict[str, list[str]] = {}
        """By file: places that carpool's entry names and setup does not find."""
        self.entered: dict[str, str] = {}
        """Programs whose own file has the entry already, with the profile that it names."""
        self.entering: set[str] = set()
        """Programs that get an entry which can name a profile."""
        self.entering_for_all: dict[str, str] = {}
        """Files that others get as well and that get an entry, with the title of their program."""
        self.placed: list[str] = []
        """Files of the project with an entry that names carpool by its path."""
        self.variables: dict[str, str] = {}
        """The new variables of the `env_file`."""
        self.hidden: set[str] = set()
        self.values: set[str] = set()
        self.called: set[str] = set()
        """Names of servers, which are shown."""
        self.given: set[str] = set()
        """Programs that have the entry; a program without servers gets it once."""
        self.moved: list[MovedServer] = []
        self.brought: dict[tuple[str, KeyPath, str], str] = {}
        """By file, place and name: the program that brings a server in this run."""
        self.left: list[KeptInPlace] = []

    def run(self, sources: Sequence[ClientFile]) -> SetupPlan:
        changes = [each for source in sources for each in self.plan_source(source)]
        if self.variables and self.secrets.said:
            self.own.set(("env_file",), self.secrets.said)
        for each in self.profiles.values():
            if value_at(self.own.value, each.path) != each.value:
                self.own.set(each.path, each.value)
        ours: list[FileChange] = []
        if self.variables:
            after = with_lines(self.secrets.text or "", self.variables)
            ours.append(_change(self.secrets.path, "secrets", self.secrets.text, after, ()))
        ours += self.own.change("own")
        if self.project is not None:
            ours += self.project.change("project")
        self.check_result(ours)
        hidden = self.hidden | set(self.variables.values())
        return SetupPlan(
            changes=(*ours, *changes),
            moved=tuple(self.moved),
            left=tuple(self.left),
            secrets=tuple(self.variables),
            hidden=frozenset(hidden - self.called),
            values=frozenset(self.values | (hidden & self.called)),
            notes=tuple(self.notes()),
        )

    def needed_variables(self, profiles: Sequence[ProgramProfile]) -> dict[str, tuple[str, ...]]:
        """Return, by program, the variables that its entry must name.

        A program that leaves out a variable that is not set is asked for those of all servers that it sees,
        any other for those that its own file named: a variable that is not set gets a strange value there.
        """
        allowed = {each.client: each.value for each in profiles}
        profiled = {each.client: each.profile for each in profiles} | {
            client: profile for client, profile in self.entered.items() if profile
        }
        found: dict[str, tuple[str, ...]] = {}
        for client in CLIENTS:
            used = set(self.used.get(client.id, ()))
            if client.variables_in == "env_vars":
                said = value_at(self.own.value, (PROFILES, profiled.get(client.id, ""), "allow"))
                said = allowed.get(client.id, said)
                patterns = said.get("allow") if isinstance(said, dict) else said
                used |= self.visible_variables(patterns if isinstance(patterns, list) else None)
            names = used - self.variables.keys() - self.secrets.values.keys()
            if client.variables_in and names:
                found[client.id] = tuple(sorted(names))
        return found

    def visible_variables(self, patterns: Sequence[JsonValue] | None) -> set[str]:
        """Return the variables of the servers in carpool.json that a profile allows; None: of all."""
        holders = [self.own.value]
        workspaces = value_at(self.own.value, (WORKSPACES,))
        holders += workspaces.values() if isinstance(workspaces, dict) else []
        used: set[str] = set()
        for holder in holders:
            held = value_at(holder, (SERVERS,))
            for name, server in held.items() if isinstance(held, dict) else ():
                if patterns is None or any(fnmatchcase(f"mcp:{name}", str(each)) for each in patterns):
                    used |= used_variables(server)
        return used

    def notes(self) -> Iterator[str]:
        """Yield further notes."""
        written = writable_places(self.places)
        if left_out := [name for name in self.places if name not in written]:
            yield (
                f"{', '.join(left_out)} holds a `$` or a `{{` and is in no entry: set it where your programs "
                "start"
            )
        for path, names in self.elsewhere.items():
            yield f"carpool's entry in {path} sets {', '.join(names)}, which is not set here: it stays"
        for path, title in self.entering_for_all.items() if written else ():
            yield (
                f"{path} does not set {', '.join(written)}, since others have other places: {title} must "
                "have it in its environment"
            )
        if self.placed:
            yield (
                "the bare name of carpool is not in the PATH of your next shell: a path of this machine, "
                f"which others do not have, is in {', '.join(self.placed)}"
            )

    def names(self) -> set[str]:
        """Return the servers that carpool.json and its included files name, for everybody or for a
        directory.
        """
        found = {*map(str, self.own.taken)}
        places: list[KeyPath] = [()]
        workspaces = value_at(self.own.value, (WORKSPACES,))
        places += [(WORKSPACES, each) for each in workspaces] if isinstance(workspaces, dict) else []
        for place in places:
            held = value_at(self.own.value, (*place, SERVERS))
            found |= held.keys() if isinstance(held, dict) else set()
        return found

    def check_result(self, ours: Sequence[FileChange]) -> None:
        """Check that the new texts are sound. Raises `CannotEditError`."""
        for each in ours:
            if each.role != "secrets":
                project = each.role == "project"
                loaded = read_config(each.after.decode(), each.path, project=project)
                if loaded.config is None:
                    said = "; ".join(problem.text for problem in loaded.problems[:3])
                    raise CannotEditError(f"{each.path} would be broken by it: {said}")

    # --- one file of a program -------------------------------------------------------------------------

    def plan_source(self, source: ClientFile) -> list[FileChange]:
        """Return the change of a program's file."""
        client, before = source.candidate.client, len(self.moved)
        try:
            found = tables(client, source.path, source.text)
        except ValueError as error:
            self.left.append(KeptInPlace(source.path, f"{error}; it is left as it is"))
            return []
        for table in found:
            self.called |= table.servers.keys()
            self.values |= _values(table.servers)
            self.hidden |= secrets_of(table.servers)
        outs: dict[KeyPath, list[str]] = {}
        noted = (
            self.own.state(),
            self.project.state() if self.project is not None else None,
            dict(self.variables),
            dict(self.brought),
        )
        for table in found:
            outs[table.path] = self.plan_table(source, table)
        first = found[0]
        has = any(is_own_entry(each) for each in first.servers.values())
        wants = client.id in self.named and source.candidate.is_main and client.id not in self.given
        if source.candidate.is_main and (has or wants):
            self.given.add(client.id)
        if has and source.candidate.scope == "user":
            said = next(each for each in first.servers.values() if is_own_entry(each))
            self.entered.setdefault(client.id, named_in(said))
        updated = self.updated_entries(source, first)
        if len(self.moved) == before and not wants and not updated:
            return []
        try:
            after, regions = self.rewritten(source, first, outs, updated, has=has)
        except CannotEditError as error:
            self.own.restore(noted[0])
            if self.project is not None and noted[1] is not None:
                self.project.restore(noted[1])
            self.variables = noted[2]
            del self.moved[before:]
            self.brought = noted[3]
            self.left.append(KeptInPlace(source.path, f"is for you to edit: {error}"))
            return []
        if after == source.text:
            return []
        self.entry_added(source, has=has)
        before_it = source.text.encode() if source.existed else None
        return [FileChange(source.path, "client", before_it, after.encode(), regions, client.id)]

    def plan_table(self, source: ClientFile, table: ServerTable) -> list[str]:
        """Find a place for each server of a table. Returns the names of those that leave the file."""
        client = source.candidate.client
        gone = []
        if table.root and (why := self.missing_root_note(table.root)):
            self.left += [KeptInPlace(source.path, why, name) for name in table.servers]
            return []
        into = self.project if source.candidate.scope == "project" and self.project is not None else self.own
        for name, each in table.servers.items():
            mark = dict(self.variables)
            found = convert_server(
                client,
                name,
                each,
                self.variable,
                project=into is self.project or bool(table.root),
                remote=self.remote,
                asked=into is self.project,
            )
            if found is None:
                continue
            if isinstance(found, NotConverted):
                self.variables = mark
                self.left.append(KeptInPlace(source.path, found.why, name))
                continue
            under = table.root or (
                posixpath.dirname(posixpath.dirname(into.path)) if into is self.project else ""
            )
            result = self.tried.get((source.path, under, name), TrialResult())
            if result.stays:
                self.variables = mark
                self.left.append(KeptInPlace(source.path, result.stays, name))
                continue
            for key in (client.id, source.path):
                self.used.setdefault(key, set()).update(used_variables(found.server))
            place = into.workspace(table.root, self.home) if table.root else ()
            said, known = into.add_server(place, found.name, found.server, client.id)
            notes = found.notes
            if said != found.name:
                notes = (*notes, f"was called {found.name}: there is another one of that name")
            notes = (*notes, *self.missing_command_note(found.server), *filter(None, [result.note]))
            login = "url" in found.server and "headers" not in found.server
            brought = (into.path, place, said)
            same_as = self.brought.get(brought, "") if known else ""
            self.brought.setdefault(brought, client.title if not known else "")
            self.moved.append(
                MovedServer(
                    name=said,
                    client=client.title,
                    path=source.path,
                    to=into.path,
                    under=under,
                    known=known,
                    same_as=same_as,
                    notes=notes,
                    client_id=client.id,
                    was=name,
                    login=login,
                    server=found.server,
                )
            )
            gone.append(name)
        return gone

    def missing_command_note(self, server: Mapping[str, JsonValue]) -> list[str]:
        """Return a note about a command that is not found; empty if it is, or if only a start can tell."""
        program, env = server.get("command"), server.get("env")
        if not isinstance(program, str) or set(program) & set("/$~ "):
            return []
        if isinstance(env, dict) and "PATH" in env:
            return []
        return [] if self.starts(program) else [f"{program} is not in PATH here, so it cannot start yet"]

    def missing_root_note(self, root: str) -> str:
        """Return the reason why servers of a directory stay; empty if they are moved."""
        if not posixpath.isabs(root) or not self.alive(root):
            return f"it is for {root}, which is not there"
        if posixpath.normpath(root) == posixpath.normpath(self.home):
            return "it is for your home directory alone, and in carpool it would be for all below"
        return ""

    def variable(self, wished: str, value: str) -> str:
        """Return the variable for a secret; the same secret gets the same name."""
        self.hidden.add(value)
        known = {**self.secrets.values, **self.variables}
        name = free_name(wished, value, known.get)
        if name not in known:
            self.variables[name] = value
        return name

    def options(self, source: ClientFile, name: str) -> list[str]:
        """Return the options for carpool in the entry of a program's file. `name`: the name of the entry."""
        client, said = source.candidate.client, []
        profile = self.profiles.get(client.id)
        if profile is not None and source.path not in self.shared:
            said += [OPTION, profile.profile]
        if client.puts_prefix:
            said += [LENGTH, str(PREFIXED_CHARS + len(CARPOOL) - len(name))]
        return said

    def entry_added(self, source: ClientFile, *, has: bool) -> None:
        """Note an entry that is added, for the profiles and for the notes."""
        if has:
            return
        client = source.candidate.client
        if source.path in self.shared:
            self.entering_for_all[source.path] = client.title
        else:
            self.entering.add(client.id)
        program = self.command(source.candidate)[0]
        if source.candidate.scope == "project" and posixpath.isabs(program):
            self.placed.append(source.path)

    def environment(self, source: ClientFile) -> EntryEnvironment:
        """Return the environment of carpool's entry in a program's file.

        A file that others get as well has no places of yours, and no variables of your other servers.
        """
        names = self.needed.get(source.candidate.client.id, ())
        if source.path in self.shared:
            its = self.used.get(source.path, set())
            return EntryEnvironment({}, tuple(each for each in names if each in its))
        return EntryEnvironment(writable_places(self.places), names)

    def updated_entries(self, source: ClientFile, first: ServerTable) -> dict[str, JsonValue]:
        """Return the entries of carpool that are in the file and need another environment."""
        client, wished = source.candidate.client, self.environment(source)
        changed: dict[str, JsonValue] = {}
        for name, each in first.servers.items():
            if isinstance(each, dict) and is_connect_entry(each):
                new = with_environment(client, each, wished)
                if new != each:
                    changed[name] = new
                if others := other_places(client, each, self.places):
                    self.elsewhere[source.path] = others
        return changed

    def rewritten(
        self,
        source: ClientFile,
        first: ServerTable,
        outs: dict[KeyPath, list[str]],
        updated: dict[str, JsonValue],
        *,
        has: bool,
    ) -> tuple[str, tuple[KeyPath, ...]]:
        """Return the text without the moved servers and with carpool's entry. Raises `CannotEditError`."""
        client = source.candidate.client
        stay = [name for name in first.servers if name not in outs[first.path]]
        ours: dict[str, JsonValue] = {}
        if not has:
            name = CARPOOL if CARPOOL not in stay else f"{CARPOOL}-broker"
            said = entry(client, [*self.command(source.candidate), *self.options(source, name)])
            ours[name] = with_environment(client, said, self.environment(source))
        if client.form == "codex":
            plain = {key: value for key, value in (ours | updated).items() if isinstance(value, dict)}
            return toml.swap(source.text, [*outs[first.path], *updated], plain), ()
        text, regions = _rewritten(source.text, first, outs, ours)
        if updated:
            text = set_members(text, first.path, updated)
            regions = tuple(dict.fromkeys((*regions, first.path)))
        return text, regions


def _rewritten(
    text: str, first: ServerTable, outs: dict[KeyPath, list[str]], ours: dict[str, JsonValue]
) -> tuple[str, tuple[KeyPath, ...]]:
    swaps = {path: MemberSwap(gone, ours if path == first.path else {}) for path, gone in outs.items()}
    swaps = {path: each for path, each in swaps.items() if each.out or each.put_in}
    regions = tuple(swaps)
    if first.path in swaps and not first.written:
        text = set_member(text, first.path, {**swaps.pop(first.path).put_in})
    return swap_members(text, swaps) if swaps else text, regions


def _change(
    path: str, role: Role, before: str | None, after: str, regions: tuple[KeyPath, ...]
) -> FileChange:
    return FileChange(path, role, None if before is None else before.encode(), after.encode(), regions)


def _values(servers: dict[str, JsonValue]) -> set[str]:
    """Return the values of environments and headers in the program's form; none is shown, secret or not."""
    found: set[str] = set()
    for each in servers.values():
        if isinstance(each, dict):
            for key in ("env", "environment", "headers", "http_headers"):
                held = each.get(key)
                if isinstance(held, dict):
                    if is_connect_entry(each):
                        held = {name: value for name, value in held.items() if name not in PLACE_VARIABLES}
                    said = [v if isinstance(v, str) else json.dumps(v) for v in held.values()]
                    found |= {value for value in said if "${" not in value and "{env:" not in value}
    return found
