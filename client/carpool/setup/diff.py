"""The output of `carpool setup`: the difference that it makes, without a single secret.

Owns the masking. Keys, commands and plain arguments are shown. Every value of an environment or a header,
and every text that is or looks like a secret, is shown as `…`, also in lines that stay. Pure. Knows nothing
of: terminals, except that texts are made printable.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from carpool.setup.model import FileChange, GitStatus, KeptInPlace, MovedServer, ProgramProfile, SetupPlan
from carpool.setup.other_programs import OtherProgramFound
from carpool.setup.permission_rules import ORDER, PermissionRule
from carpool.terminal import display
from carpool.terminal.table import Colour
from carpool_protocol.carrier.secret_texts import is_secret_name, looks_secret

_LITERAL = re.compile(
    r"(?P<before>(?:\"(?P<key>[^\"\\\n]{1,200})\"|(?P<word>[A-Za-z_][\w-]{0,200}))\s{0,9}[:=]\s{0,9})?"
    r"(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')"
)
_MASK = '"…"'
_LEAST = 4
"""The least length of a text that is masked inside other texts.

A shorter one is part of too many others, so it is masked only if it is a whole value.
"""
_SHOWN_MEMBERS = frozenset({"command", "cwd", "type", "transport", "name", "description"})
"""Members of a server that are no values of an environment or a header, also where the text is equal."""
_KEY = re.compile(r"\s*(?::|=(?!=)|\.|\])")
"""Matches what follows a key of JSON or TOML."""
_AROUND = 2
_MOST_LINES = 400


def masked(text: str, hidden: Collection[str], values: Collection[str] = ()) -> str:
    """Mask the secrets of a text of JSON or TOML, so that anybody may see it.

    `hidden`: texts that are masked everywhere; `values`: texts that are masked where they are a whole value,
    but neither a key (the name of a server) nor an argument nor one of a server's plain members.
    """
    whole, plain = frozenset(hidden), frozenset(values)
    parts = sorted(
        {line for each in hidden for line in each.splitlines() if len(line.strip()) >= _LEAST},
        key=len,
        reverse=True,
    )

    def literal(found: re.Match[str]) -> str:
        said = _decoded(found["text"])
        key = found["key"] or found["word"] or ""
        told = said in whole or any(each in said for each in parts) or looks_secret(said)
        told = told or (said in plain and not _is_elsewhere(found, key))
        refers = "${" in said or "{env:" in said
        if told or (key and is_secret_name(key) and not refers):
            return (found["before"] or "") + _MASK
        return found.group()

    text = _LITERAL.sub(literal, text)
    for each in parts:
        text = text.replace(each, "…")
    return text


def _is_elsewhere(found: re.Match[str], key: str) -> bool:
    """True if a literal is no value of an environment or a header: a key, an argument, a plain member."""
    if key:
        return key in _SHOWN_MEMBERS
    before = found.string[: found.start("text")].rstrip()
    return before.endswith(("[", ",")) or _KEY.match(found.string, found.end("text")) is not None


def _decoded(literal: str) -> str:
    if literal.startswith('"'):
        try:
            return str(json.loads(literal))
        except ValueError:
            pass
    return literal[1:-1]


def difference(change: FileChange, plan: SetupPlan) -> str:
    """Return the change of a file as a unified diff. Of the `env_file` only names are shown."""
    if change.role == "secrets":
        before = (change.before or b"").decode().split("\n")
        new = [line for line in change.after.decode().split("\n") if line not in before]
        return "\n".join(
            [f"--- {change.path} (only you may read it)", *(f"+{_name(line)}=…" for line in new)]
        )
    return text_difference(change.before, change.after, change.path, plan.hidden, plan.values)


def text_difference(
    before: bytes | None,
    after: bytes | None,
    path: str,
    hidden: Collection[str],
    values: Collection[str] = (),
) -> str:
    """Return the difference of two states of a file as a unified diff. None as a state: there is no file."""
    old, new = (
        masked(each.decode("utf-8", "replace"), hidden, values).splitlines() if each is not None else []
        for each in (before, after)
    )
    first, then = (path if each is not None else "(no file)" for each in (before, after))
    lines = list(difflib.unified_diff(old, new, first, then, n=_AROUND, lineterm=""))
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"(and {len(lines) - _MOST_LINES} more lines)"]
    if not lines:
        lines = [f"--- {path}", "(a difference in values that are not shown, or in white space)"]
    return display.printable("\n".join(lines), lines=True)


def _name(line: str) -> str:
    return line.partition("=")[0]


def summary(plan: SetupPlan) -> str:
    """Return the numbers of a plan as one line: servers, programs, files."""
    new = {(each.under, each.name) for each in plan.moved if not each.known}
    programs = {each.client for each in plan.changes if each.client}
    parts = [
        f"{_count(len(new), 'server')} {'goes' if len(new) == 1 else 'go'} to carpool" if new else "",
        f"{_count(len(programs), 'program')} {'gets' if len(programs) == 1 else 'get'} its entry"
        if programs
        else "",
        f"{_count(len(plan.changes), 'file')} {'changes' if len(plan.changes) == 1 else 'change'}",
    ]
    return "In short: " + ", ".join(filter(None, parts)) + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _coloured(text: str) -> str:
    """Return a difference with its added and removed lines in colour, where the terminal has any."""
    colours: dict[str, Colour] = {"+": "green", "-": "red", "@": "dim"}
    return "\n".join(
        display.coloured(line, colours[line[0]]) if line[:1] in colours else line for line in text.split("\n")
    )


def page(plan: SetupPlan) -> str:
    """Return the whole plan as text for people."""
    said = [summary(plan), *(_coloured(difference(each, plan)) for each in plan.changes)]
    said.append("\n".join(_moves(plan.moved)))
    said.append(kept_lines(plan.left))
    said.append("\n".join(map(display.printable, [*_profiles(plan.given), *plan.notes])))
    return "\n\n".join(each for each in said if each)


def _moves(moved: tuple[MovedServer, ...]) -> Iterator[str]:
    for each in moved:
        where = f" (in {each.under})" if each.under else ""
        what = "is in carpool already" if each.known else "goes to carpool"
        what = f"is the same server as that of {each.same_as}" if each.same_as else what
        notes = "".join(f"; {note}" for note in each.notes)
        yield display.printable(f"{each.name}{where}: {what}, from {each.client}{notes}")


def _profiles(given: tuple[ProgramProfile, ...]) -> Iterator[str]:
    for each in given:
        count = f"{each.had} of {each.of}"
        yield f"{each.title} keeps the servers it had, {count}: profile {each.profile} in carpool.json"
    if given:
        yield (
            "A server that you add later is seen there once the profile allows it. A profile is for "
            "convenience, no boundary: a program that runs as you can connect without it"
        )


def plan_difference(whole: SetupPlan, part: SetupPlan) -> SetupPlan:
    """Return the changes of a plan that a smaller plan, which is part of it, does not make."""
    done = {each.path: each.after for each in part.changes}
    given = [(each.path, each.value) for each in part.given]
    changes = [
        structs.replace(each, before=done.get(each.path, each.before))
        for each in whole.changes
        if each.after != done.get(each.path)
    ]
    return structs.replace(
        whole,
        changes=tuple(changes),
        moved=tuple(each for each in whole.moved if each not in part.moved),
        left=tuple(each for each in whole.left if each not in part.left),
        given=tuple(each for each in whole.given if (each.path, each.value) not in given),
        notes=tuple(each for each in whole.notes if each not in part.notes),
    )


def rule_lines(rules: Sequence[PermissionRule]) -> list[str]:
    """Return a line for each rule that names a tool whose name changes; protecting rules come first."""
    if not rules:
        return []
    said = ["These rules name tools that are called otherwise from then on. Setup changes none of them:"]
    ordered = sorted(rules, key=lambda each: ORDER.index(each.kind))
    said += [f"{each.kind}  {each.path}: {each.text} -> {each.needs}" for each in ordered]
    if any(each.protects for each in rules):
        said.append(
            "Until you change those of deny, ask and hook, nothing keeps their tools back. What no program "
            "may call goes into `tools.deny` of the server in carpool.json."
        )
    return [display.printable(each) for each in said]


def other_program_lines(found: Sequence[OtherProgramFound]) -> list[str]:
    """Return a line for each file of a program that setup does not look into."""
    read = 'carpool can read a copy in servers.d beside carpool.json, by "include": ["servers.d/*.json"]'
    cannot = "carpool cannot read it; `carpool add` adds a server of it"
    return [
        display.printable(
            f"{each.path} ({each.title}) is not looked into: {read if each.readable else cannot}"
        )
        for each in found
    ]


def rule_facts(rules: Sequence[PermissionRule]) -> list[dict[str, Any]]:
    """Return the rules as facts for `--json`."""
    return [
        {
            "file": each.path,
            "kind": each.kind,
            "rule": each.text,
            "needs": each.needs,
            "protects": each.protects,
        }
        for each in sorted(rules, key=lambda each: ORDER.index(each.kind))
    ]


def other_facts(found: Sequence[OtherProgramFound]) -> list[dict[str, Any]]:
    """Return the other programs' files as facts for `--json`."""
    return [{"program": each.title, "file": each.path, "readable": each.readable} for each in found]


def git_lines(project: str, plan: SetupPlan, known: GitStatus) -> list[str]:
    """Return lines about the project's changed files that git tracks or will show as new.

    If git could not be asked, a line gives the reason.
    """
    tracked, new = _seen_by_git(plan, known)
    said = []
    if known.why:
        said.append(f"git could not be asked about {project} ({known.why}): its files count as tracked")
    elif tracked:
        said.append(f"git tracks {', '.join(tracked)}: others get this change with your next commit")
    if new:
        said.append(f"git will show {', '.join(new)} as new")
    return [display.printable(each) for each in said]


def _seen_by_git(plan: SetupPlan, known: GitStatus) -> tuple[list[str], list[str]]:
    paths = [each.path for each in plan.changes]
    return [each for each in paths if each in known.tracked], [each for each in paths if each in known.new]


def project_facts(
    project: str, whole: SetupPlan, known: GitStatus, *, changed: bool
) -> dict[str, Any] | None:
    """Return the project's part as facts for `--json`; None if nothing changes.

    `whole`: the plan with that part.
    """
    if not any(each.role == "project" for each in whole.changes):
        return None
    tracked, new = _seen_by_git(whole, known)
    return {"root": project, "changed": changed, "tracked": tracked, "new": new}


def kept_lines(stays: tuple[KeptInPlace, ...]) -> str:
    """Return a line for each server or file that stays, with the reason."""
    lines = [
        f"{each.name} stays in {each.path}: {each.why}" if each.name else f"{each.path} {each.why}"
        for each in stays
    ]
    return "\n".join(map(display.printable, lines))


def facts(plan: SetupPlan, stays: Iterable[KeptInPlace], *, done: bool) -> dict[str, Any]:
    """Return the plan as facts for `--json`.

    `stays`: everything that stays, including what is not part of the plan.
    """
    return {
        "changed": done and bool(plan.changes),
        "files": [
            {
                "file": each.path,
                "role": each.role,
                "new": each.before is None,
                "diff": difference(each, plan),
            }
            for each in plan.changes
        ],
        "moved": [
            {
                "name": each.name,
                "client": each.client,
                "from": each.path,
                "to": each.to,
                "under": each.under,
                "known": each.known,
                "same_as": each.same_as,
                "notes": list(each.notes),
            }
            for each in plan.moved
        ],
        "left": [{"file": each.path, "name": each.name, "why": each.why} for each in stays],
        "secrets": list(plan.secrets),
        "profiles": [
            {"client": each.client, "profile": each.profile, "servers": each.had, "of_servers": each.of}
            for each in plan.given
        ],
        "notes": list(plan.notes),
    }
