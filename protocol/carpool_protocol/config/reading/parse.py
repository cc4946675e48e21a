"""Parses the text of a configuration file into `model.Config`.

Owns the structure of the file (which object holds which settings) and the rules between settings. Collects
every problem of a file, up to `MAX_PROBLEMS`; a file with one is refused as a whole. Unknown keys are
problems: a misspelt `disabled` that is ignored would start a server. A file of another program (by its path)
is judged server by server: one that carpool cannot run is `unusable`, and the others run.

Knows nothing of: the origin of the text, environments, the conversion of other shapes (`translate`).
"""

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from carpool_protocol.config.foreign.formats import (
    MCP_SERVERS,
    UNREAD_KEYS,
    ForeignProgram,
    program_of,
    shape_of,
)
from carpool_protocol.config.foreign.translate import SERVERS, Translated, translate
from carpool_protocol.config.reading.hooks import HOOKS, read_hooks
from carpool_protocol.config.reading.merge import least_instances
from carpool_protocol.config.reading.profiles import PROFILES, check_profile_names, read_profiles
from carpool_protocol.config.reading.workspaces import (
    WORKSPACES,
    check_token_workspaces,
    read_workspaces,
)
from carpool_protocol.config.schema.expand import BadTemplate, read_template
from carpool_protocol.config.schema.model import (
    AuditConfig,
    ClusterConfig,
    Config,
    HttpConfig,
    ServerConfig,
    SessionSettings,
    TraceConfig,
)
from carpool_protocol.config.schema.server_kinds import kind_problems
from carpool_protocol.config.schema.setting import with_defaults
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS, Setting, may_be_late
from carpool_protocol.config.schema.value_types import (
    FILE_LATER,
    IGNORED_KEYS,
    SERVER_LATER,
    ValueProblem,
    kind_of,
    read_value,
)
from carpool_protocol.config.text.jsonc import JsonValue, ParsedJson, ValueBudget, parse, without_nulls
from carpool_protocol.config.text.problems import (
    SIMILAR_KEY,
    ConfigProblem,
    KeyPath,
    did_you_mean,
    render_path,
    same_name,
)
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import Policy
from carpool_protocol.wire.tool_name_resolver import check_server_name

__all__ = ["SERVERS", "LoadedConfig", "empty_config", "order_problem", "read_config"]

MAX_PROBLEMS: Final = 100
"""Maximum number of problems that are reported; the same number for warnings."""
MAX_PROJECT_SERVERS: Final = 1000
"""Maximum number of servers of a project.

An untrusted project is read too, and its servers are named.
"""

_FILE_KEYS: Final = {spelling: each for each in FILE_SETTINGS for spelling in (each.key, *each.also)}
_SERVER_KEYS: Final = {spelling: each for each in SERVER_SETTINGS for spelling in (each.key, *each.also)}
_PROJECT_KEYS: Final = frozenset({"env_file", "include"})
"""Keys that a project's file may set beside its servers. All others concern all projects."""
_USERS_OWN: Final = (
    frozenset({WORKSPACES, PROFILES, HOOKS, *(key.split(".")[0] for key in _FILE_KEYS)}) - _PROJECT_KEYS
)
OWN_NAME: Final = "carpool.json"
"""The name of a file that no other program writes: there a `null` and a key written twice are mistakes."""
_OURS: Final = frozenset({key.split(".")[0] for key in (*_SERVER_KEYS, *SERVER_LATER)})


class LoadedConfig(Struct, frozen=True):
    """The result of reading a configuration file."""

    config: Config | None
    """`None` if there are problems."""
    problems: list[ConfigProblem]
    warnings: list[ConfigProblem] = []
    """Things that were ignored in files of other programs."""
    written: dict[ServerName, dict[str, JsonValue]] = {}
    """Each server as it is written, in carpool's keys."""

    def __repr__(self) -> str:
        """Configuration and problems without `written`, which may hold secrets."""
        return f"Loaded({self.config!r}, {self.problems!r})"


def read_config(
    text: str, file: str, *, project: bool = False, allowance: ValueBudget | None = None
) -> LoadedConfig:
    """Read a configuration from its text. Never raises.

    `file`: the name in problems, which also shows the program it belongs to. `project`: it is a project's
    file. `allowance`: see `parse`.
    """
    parsed = parse(text, file, allowance=allowance)
    if not parsed.complete:
        return LoadedConfig(None, parsed.problems)
    program, is_own = program_of(file), posixpath.basename(file) == OWN_NAME
    parsed = parsed if is_own else without_nulls(parsed)
    ours = _in_our_form(parsed, file, program)
    reading = _ConfigReader(file, ours, lenient=program is not None, project=project)
    config = reading.file_shape(ours.value if isinstance(parsed.value, dict | list) else parsed.value)
    # In a file that another program may have written, a double key costs nothing: every reader of JSON takes
    # the last one.
    doubles = [] if is_own else parsed.doubles
    unreadable = [each for each in parsed.problems if each not in doubles]
    problems = sorted([*unreadable, *ours.problems, *reading.problems], key=lambda problem: problem.line)
    if problems:
        return LoadedConfig(None, _bounded_problems(problems, "problems"))
    last = [
        ConfigProblem(each.file, each.line, each.where, f"{each.text}; this one counts") for each in doubles
    ]
    warnings = _bounded_problems([*last, *ours.warnings, *reading.unread.values()], "warnings")
    return LoadedConfig(config, [], warnings, reading.written)


def _bounded_problems(problems: list[ConfigProblem], of_these: str) -> list[ConfigProblem]:
    """The first `MAX_PROBLEMS` problems, and a line with the number of the others."""
    left = problems[MAX_PROBLEMS:]
    if not left:
        return problems
    more = ConfigProblem(left[0].file, left[0].line, "", f"and {len(left)} more {of_these}")
    return [*problems[:MAX_PROBLEMS], more]


def empty_config(file: str) -> Config:
    """The configuration of a missing file: no servers, every default."""
    loaded = read_config("{}", file)
    assert loaded.config is not None  # the defaults are valid; a test checks that
    return loaded.config


def _in_our_form(parsed: ParsedJson, file: str, program: ForeignProgram | None) -> Translated:
    """The file in carpool's shape. A file of carpool's own may have other shapes and is still read
    strictly.
    """
    value = parsed.value
    shape = shape_of(value)
    if shape is None and program is not None and isinstance(value, dict):
        # No servers: fine in a program's settings. In another file each key gets its warning.
        settings = {} if program.holds_more else value
        value, shape = {SERVERS: {}, **settings}, MCP_SERVERS
    if shape is None or (program is None and shape is MCP_SERVERS):
        same = value if isinstance(value, dict) else {}
        return Translated(same, parsed.lines, {}, [], [], {})
    return translate(value, parsed.lines, file, shape, program=program, ours=_OURS)


class _ConfigReader:
    """Turns the JSON of one file into a `Config` and collects problems with their lines."""

    def __init__(self, file: str, ours: Translated, *, lenient: bool, project: bool) -> None:
        lines = ours.lines
        self.file = file
        self.lines = lines
        self.spelled = ours.spelled
        self.lenient = lenient
        self.project = project
        self.cannot = ours.unusable
        self.unusable: dict[ServerName, str] = {}
        self.written: dict[ServerName, dict[str, JsonValue]] = {}
        self.late: dict[KeyPath, str] = {}
        """Numbers and switches of the present server that contain a variable, by path below it."""
        self.problems: list[ConfigProblem] = []
        self.unread: dict[str, ConfigProblem] = {}
        """By key of a server that concerns another program: the warning about its first place."""
        self.at: KeyPath = ()
        """The path of the server that is being read."""
        self.below: dict[KeyPath, dict[KeyPath, int]] = {}
        """The lines of each server, by path below its name. One pass: a file may hold many servers."""
        for path, line in lines.items():
            depth = 2 if path[:1] == (SERVERS,) else 4
            if len(path) >= depth and (depth == 2 or (path[0], path[2]) == (WORKSPACES, SERVERS)):
                self.below.setdefault(path[:depth], {})[path[depth:]] = line

    def add_problem(self, path: KeyPath, text: str) -> None:
        """Report a problem at the line of `path`, or of the nearest written path around it."""
        self.problems.append(self.problem_at(path, text))

    def warn_of_unread(self, path: KeyPath, key: str) -> None:
        """Warn of a key of a server that concerns another program, once for any number of servers."""
        if key not in self.unread:
            text = f"{key} concerns another program, and carpool ignores it"
            self.unread[key] = self.problem_at(path, text)

    def problem_at(self, path: KeyPath, text: str) -> ConfigProblem:
        """The problem with the line of `path`, or of the nearest written path around it."""
        at = path
        while at not in self.lines:
            at = at[:-1]
        return ConfigProblem(self.file, self.lines[at], render_path(self.spelled_path(path)), text)

    def spelled_path(self, path: KeyPath) -> KeyPath:
        """The path in the file for a path in carpool's own keys."""
        at = path
        while at not in self.spelled and at:
            at = at[:-1]
        return (*self.spelled.get(at, at), *path[len(at) :])

    def file_shape(self, value: JsonValue) -> Config | None:
        if not isinstance(value, dict):
            self.add_problem((), f'must be an object like {{ "{SERVERS}": {{ … }} }}, found {kind_of(value)}')
            return None
        apart = {SERVERS, *IGNORED_KEYS}
        if not self.project:
            apart |= {WORKSPACES, PROFILES, HOOKS}
        rest = {key: inner for key, inner in value.items() if key not in apart}
        known = {key: each for key, each in _FILE_KEYS.items() if not self.project or key in _PROJECT_KEYS}
        found = self.section((), rest, known, FILE_LATER, others=(SERVERS, WORKSPACES, PROFILES, HOOKS))
        servers = self.servers(value.get(SERVERS, {}), (SERVERS,))
        fields = with_defaults(FILE_SETTINGS, found)
        cap = fields["max_instances"]
        self.check_cap(cap, servers)
        written = {} if self.project else value.get(WORKSPACES, {})
        workspaces = read_workspaces(self, written, servers, cap, SERVERS)
        profiles = read_profiles(self, {} if self.project else value.get(PROFILES, {}))
        http = HttpConfig(**_under("http", fields))
        cluster = ClusterConfig(**_under("cluster", fields))
        check_profile_names(self, http, cluster, profiles)
        check_token_workspaces(self, http, workspaces)
        # Hooks of other programs have another meaning and are not run.
        hooks = read_hooks(self, [] if self.project or self.lenient else value.get(HOOKS, []), profiles)
        if self.problems:
            return None
        lines = {path: line for path, line in self.lines.items() if path[:1] != (SERVERS,)}
        bounds = SessionSettings(**_under("session", fields))
        audit = AuditConfig(**_under("audit", fields))
        return Config(
            file=self.file,
            servers=servers,
            unusable=self.unusable,
            session=bounds,
            audit=audit,
            trace=TraceConfig(**_under("trace", fields)),
            http=http,
            cluster=cluster,
            workspaces=workspaces,
            profiles=profiles,
            hooks=hooks,
            lines=lines,
            **_under("", fields),
        )

    def servers(
        self, value: JsonValue, path: KeyPath, workspace: str = "", root: str = ""
    ) -> dict[ServerName, ServerConfig]:
        if not isinstance(value, dict):
            self.add_problem(path, f"must be an object of names and servers, found {kind_of(value)}")
            return {}
        if self.project and len(value) > MAX_PROJECT_SERVERS:
            self.add_problem(path, f"a project may have {MAX_PROJECT_SERVERS} servers, found {len(value)}")
            return {}
        within = (workspace, root)
        read = (self.server((*path, name), ServerName(name), inner, within) for name, inner in value.items())
        return {server.name: server for server in read if server is not None}

    def server(
        self, path: KeyPath, name: ServerName, value: JsonValue, within: tuple[str, str]
    ) -> ServerConfig | None:
        """Read one server. In another program's file an unreadable one is set aside with the reason."""
        before = len(self.problems)
        read = self.strict_server(path, name, value, within)
        if not self.lenient or len(self.problems) == before:
            return read
        found = self.problems[before:]
        del self.problems[before:]
        self.unusable[name] = "; ".join(each.render() for each in found[:3])
        return None

    def strict_server(
        self, path: KeyPath, name: ServerName, value: JsonValue, within: tuple[str, str]
    ) -> ServerConfig | None:
        """Read one server and report every problem.

        `within`: name and root of the named workspace that it is written under; empty for none.
        """
        workspace, root = within
        before = len(self.problems)
        if (why := check_server_name(name)) is not None:
            self.add_problem(path, why)
        if not isinstance(value, dict):
            self.add_problem(path, f'must be an object like {{ "command": "…" }}, found {kind_of(value)}')
            return None
        self.at, self.late = path, {}
        found = self.section(path, value, _SERVER_KEYS, SERVER_LATER)
        cannot = name in self.cannot and not workspace
        off = found.get("disabled") is True and (self.lenient or cannot or bool(workspace))
        if cannot and not off:
            self.add_problem(*self.cannot[name])
        elif not off and not SERVER_LATER.keys() & value.keys():
            for key, why in kind_problems(value):
                self.add_problem((*path, *key), why)
        if len(self.problems) > before:
            return None
        fields = with_defaults(SERVER_SETTINGS, found)
        if (self.project or root) and "cwd" not in found:
            fields["cwd"] = "${workspace}"
        self.check_server(path, fields)
        if not workspace:
            self.written[name] = value
        policy = Policy(**_under("policy", fields))
        return ServerConfig(
            name=name,
            file=self.file,
            under=self.spelled_path(path),
            project=self.project,
            workspace=workspace,
            policy=policy,
            late=self.late,
            lines=self.below[path],
            **_under("", fields),
        )

    def section(
        self,
        path: KeyPath,
        value: dict[str, JsonValue],
        known: Mapping[str, Setting],
        later: Mapping[str, str],
        *,
        prefix: str = "",
        others: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """The values of one object and the groups inside it, by their field in `model`."""
        found: dict[str, Any] = {}
        for key, inner in value.items():
            at = (*path, key)
            dotted = prefix + key
            setting = known.get(dotted)
            if setting is not None and "." not in key:
                found[setting.field] = self.value(at, setting, inner)
            elif not prefix and any(each.startswith(f"{key}.") for each in known):
                if isinstance(inner, dict):
                    found.update(self.section(at, inner, known, later, prefix=f"{key}."))
                else:
                    self.add_problem(at, f"must be an object, found {kind_of(inner)}")
            elif dotted in later:
                self.add_problem(at, later[dotted])
            elif self.project and not prefix and at[:1] != (SERVERS,) and key in _USERS_OWN:
                self.add_problem(at, "concerns all projects: it belongs in the user's own file")
            elif known is _SERVER_KEYS and not prefix and key in UNREAD_KEYS:
                self.warn_of_unread(at, key)
            elif setting is not None:
                group, _, name = key.partition(".")
                self.add_problem(at, f'write it as "{group}": {{ "{name}": … }}')
            else:
                # A guess takes a millisecond, and a file may hold a hundred thousand unknown keys.
                guess = len(self.problems) < MAX_PROBLEMS
                self.add_problem(at, _unknown(key, prefix, (*known, *others)) if guess else "unknown key")
        return found

    def value(self, path: KeyPath, setting: Setting, value: JsonValue) -> Any:
        def refuse(refusal: ValueProblem) -> None:
            self.add_problem((*path, *refusal.inner), refusal.text)

        depth = len(self.at)
        within = bool(depth) and path[:depth] == self.at
        late = within and may_be_late(setting)
        if late and isinstance(value, str) and "${" in value:
            if isinstance(bad := read_template(value), BadTemplate):
                self.add_problem(path, bad.text)
            self.late[path[depth:]] = value
            return setting.default
        return read_value(setting, value, refuse)

    def check_server(self, path: KeyPath, fields: Mapping[str, Any]) -> None:
        """Check the rules between settings of one server."""
        late = {_SERVER_KEYS[".".join(map(str, each))].field for each in self.late}
        for at, why in order_problem(fields, lambda key: (*path, *key) in self.lines, late):
            self.add_problem((*path, *at), why)

    def check_cap(self, cap: int, servers: Mapping[ServerName, ServerConfig]) -> None:
        """Check that the instances that must always run fit into the cap (rule 14)."""
        least = least_instances(servers)
        if least > cap:
            self.add_problem(
                ("max_instances",) if ("max_instances",) in self.lines else (SERVERS,),
                f"the servers' pool.min add up to {least} instances, but max_instances is {cap}; "
                "raise max_instances or lower a pool.min",
            )


def order_problem(
    fields: Mapping[str, Any],
    is_written: Callable[[KeyPath], bool],
    without: frozenset[str] | set[str] = frozenset(),
) -> list[tuple[KeyPath, str]]:
    """Problems between settings of one server, with their places: each pair must be in order.

    `fields`: values by their field in `model`; `without`: fields that are not known yet.
    """
    found: list[tuple[KeyPath, str]] = []
    for low, high in _ORDERED:
        if {_SERVER_KEYS[low].field, _SERVER_KEYS[high].field} & without:
            continue
        least, most = fields[_SERVER_KEYS[low].field], fields[_SERVER_KEYS[high].field]
        if least > most and (high, most) != ("pool.max", 0):  # 0: no fixed number
            # The problem is reported at the setting that is written.
            keys: list[KeyPath] = [tuple(key.split(".")) for key in (low, high)]
            at = next((key for key in keys if is_written(key)), ())
            found.append((at, f"{low} ({least:g}) is above {high} ({most:g}); lower one or raise the other"))
    if "policy.max_total_s" in without:
        return found
    limit = fields["policy.max_total_s"]
    for tool, timeout_s in fields["policy.tool_timeouts_s"].items():
        if timeout_s > limit:
            why = f"is above max_total_s ({limit:g}), which would end the call first; raise that too"
            found.append((("tool_timeouts_s", tool), why))
    return found


_ORDERED: Final = (
    ("pool.min", "pool.max"),
    ("timeout_s", "max_total_s"),
    ("restart.first_delay_s", "restart.max_delay_s"),
)
"""Pairs of settings; the first must not be above the second."""


def _under(group: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of one struct: `policy`, `session` or, with an empty group, the outer one."""
    return {
        field.rpartition(".")[2]: value
        for field, value in fields.items()
        if field.rpartition(".")[0] == group
    }


def _unknown(key: str, prefix: str, known: tuple[str, ...]) -> str:
    """The sentence about an unknown key.

    Similar names are suggested only at the same place of the file. At another place the name must be equal
    except for case and separators (`idle_s` is `pool.idle_s`).
    """
    inside = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
    here = [each for each in inside if "." not in each]
    meant = did_you_mean(key, [*here, *_groups(tuple(inside))], SIMILAR_KEY) or same_name(key, known)
    return "unknown key" + (f"; did you mean `{meant}`?" if meant else "; `carpool schema` has every key")


def _groups(known: tuple[str, ...]) -> list[str]:
    return sorted({key.split(".")[0] for key in known if "." in key})
