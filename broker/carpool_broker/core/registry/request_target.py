"""Which server a request goes to, by its subject. A pure function of a view.

Owns the rules per method: tools and prompts by name, resources by URI, completions by their reference; the
errors when no server fits, and the subject of a request that ends before its server is known. Refuses to
know: waiting for catalogs, which servers are away, sessions.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from carpool_broker.core.model.scope import Scope
from carpool_broker.core.registry.approvals import HeldReason
from carpool_broker.core.registry.builtin_tools import CARPOOL_SERVER
from carpool_broker.core.registry.uris import UnroutableUri, UriRoute, rewritten_uri
from carpool_broker.core.registry.view import (
    BadReference,
    BuiltinTool,
    CompletionTarget,
    DeniedName,
    HeldByPin,
    UnverifiedTool,
    View,
    ViewPrompt,
    ViewTool,
)
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.wire.content import text_of
from carpool_protocol.wire.params import capitalized_sentence
from carpool_protocol.wire.tool_name_resolver import AmbiguousName, NoSuchName

HELD_REASONS: Final[Mapping[HeldReason, str]] = {
    "new": "It is new.",
    "changed": "It has changed.",
    "unreadable": "What was approved cannot be read any more.",
}


class Target(Struct, frozen=True):
    """The server and the subject that a request goes to."""

    server: ServerName
    key: PoolKey
    subject: str
    """The name, URI or reference in the server's own spelling."""
    final: bool = True
    """False while a catalog that is still unknown may have a better target."""
    verified: bool = True
    """False while the server is pinned and has not told its catalog."""


class NoTarget(Struct, frozen=True, kw_only=True):
    """No known target fits."""

    fault: str
    detail: str = ""
    suspects: tuple[PoolKey, ...] = ()
    """The pools without a told catalog that the name may belong to."""
    server: str = ""
    subject: str = ""
    name: str = ""
    """The name that no server has, as the agent spelled it. `detail` is without similar names."""


def find_target(view: View, method: str, subject: str) -> Target | NoTarget:
    """Return the server that a request of this method about this subject goes to."""
    match method:
        case "tools/call":
            return _find_by_name(view, method, subject, view.resolve(subject))
        case "prompts/get":
            return _find_by_name(view, method, subject, view.resolve_prompt(subject))
        case "resources/read":
            return _find_by_uri(view, subject, view.route(subject))
        case _:
            ref = RawJson(subject.encode())
            return _find_completion(view, ref, view.completion_target(ref))


def error_subject(view: View, method: str, subject: str) -> tuple[ServerName, str]:
    """Return server and subject for an error that ends such a request: as far as they are known, else what
    the agent wrote.
    """
    found = find_target(view, method, subject)
    if isinstance(found, Target):
        return found.server, found.subject
    suspects = [entry.server for entry in view.scope.servers if entry.key in found.suspects]
    server = found.server or (suspects[0] if len(suspects) == 1 else "")
    return ServerName(server), found.subject or subject


def _find_by_name(
    view: View,
    method: str,
    subject: str,
    found: ViewTool | BuiltinTool | ViewPrompt | AmbiguousName | DeniedName | HeldByPin | NoSuchName,
) -> Target | NoTarget:
    fault = "unknown_tool" if method == TOOLS_CALL else "unknown_prompt"
    match found:
        case UnverifiedTool():
            return Target(found.server, found.key, found.tool, final=False, verified=False)
        case ViewTool():
            return Target(found.server, found.key, found.tool, final=is_stable(view, subject, found))
        case ViewPrompt():
            return Target(found.server, found.key, found.prompt, final=is_stable(view, subject, found))
        case BuiltinTool():
            return NoTarget(fault=fault, server=CARPOOL_SERVER, subject=found.qualified)
        case AmbiguousName():
            return NoTarget(fault=fault, detail=_candidate_text(found))
        case DeniedName():
            return _denied(view, found)
        case HeldByPin():
            detail = HELD_REASONS[found.why]
            return NoTarget(fault="quarantined", detail=detail, server=found.server, subject=found.tool)
        case NoSuchName():
            suspects = view.possible_pools(subject, "tools" if method == TOOLS_CALL else "prompts")
            if not suspects and (barred := view.scope.barred_server(subject)):
                return NoTarget(fault="not_permitted", detail=denied_by_profile(view.scope), server=barred)
            return NoTarget(fault=fault, detail=_finder_text(view, method), suspects=suspects, name=subject)


def is_stable(view: View, subject: str, found: ViewTool | ViewPrompt) -> bool:
    """True if the name means the same whatever other servers list later. A bare name does only while one
    server has it.
    """
    return (
        found.qualified == subject
        or not view.unknown_pools
        or view.scope.name_prefixes.all_servers_of(subject) == frozenset({found.server})
    )


def _find_by_uri(view: View, uri: str, found: UriRoute | UnroutableUri | DeniedName) -> Target | NoTarget:
    if isinstance(found, UriRoute):
        return Target(found.server, found.key, found.uri, final=found.by in ("listed", "named"))
    if isinstance(found, DeniedName):
        return _denied(view, found)
    spelled = ", ".join(rewritten_uri(each, uri).removesuffix(uri) for each in found.candidates)
    why = "More than one server lists it" if found.collides else "It does not say which server is meant"
    detail = f"{why}; put one of these before it: {spelled}." if spelled else ""
    return NoTarget(fault="unknown_resource", detail=detail, suspects=tuple(sorted(view.unknown_pools)))


def _find_completion(
    view: View,
    ref: RawJson,
    found: CompletionTarget | AmbiguousName | DeniedName | NoSuchName | UnroutableUri | BadReference,
) -> Target | NoTarget:
    name = text_of(ref, "name") or ""
    match found:
        case CompletionTarget():
            return Target(found.server, found.key, found.ref.decode(), final=_is_final(view, ref))
        case DeniedName():
            return _denied(view, found)
        case BadReference():
            return NoTarget(fault="bad_params", detail=capitalized_sentence(found.text))
        case AmbiguousName():
            return NoTarget(fault="unknown_prompt", detail=_candidate_text(found))
        case NoSuchName():
            return _find_by_name(view, "prompts/get", name, found)
        case UnroutableUri():
            return NoTarget(fault="unknown_resource", suspects=tuple(sorted(view.unknown_pools)))


def _is_final(view: View, ref: RawJson) -> bool:
    """True if the reference is to something listed: only that stays true whatever other servers
    list later.
    """
    if text_of(ref, "type") != "ref/resource":
        name = text_of(ref, "name") or ""
        prompt = view.resolve_prompt(name)
        return isinstance(prompt, ViewPrompt) and is_stable(view, name, prompt)
    route = view.route_template(text_of(ref, "uri") or "")
    return isinstance(route, UriRoute) and route.by in ("listed", "named")


def _denied(view: View, found: DeniedName) -> NoTarget:
    """Return the refusal of a name that is kept back, or wait for a server that has not told its lists and
    may have it.
    """
    entry = view.scope.entry_of(found.server)
    return NoTarget(
        fault="not_permitted",
        detail=denied_by(found.profile),
        suspects=(entry.key,) if entry is not None and entry.key in view.unknown_pools else (),
        server=found.server,
        subject=found.name,
    )


def denied_by(profile: str) -> str:
    """Return the profile that keeps it back; empty if the server's own configuration does."""
    return f"The profile {profile} keeps it back." if profile else ""


def denied_by_profile(scope: Scope) -> str:
    """Return the reason for all that the profile of this scope keeps back."""
    return denied_by(scope.profile)


def is_still_allowed(view: View, method: str, server: ServerName, subject: str) -> bool:
    """True if a request that was let through may still go to this server about this subject, in the server's
    own spelling. A server that has left the configuration is no matter of rights.
    """
    scope = view.scope
    if any(server == barred for barred, _ in scope.barred):
        return False
    entry = scope.entry_of(server)
    if entry is None:
        return True
    match method:
        case "tools/call":
            return scope.permits("tool", entry, subject)
        case "prompts/get":
            return scope.permits("prompt", entry, subject)
        case "completion/complete" if text_of(ref := RawJson(subject.encode()), "type") == "ref/prompt":
            return scope.permits("prompt", entry, text_of(ref, "name") or "")
        case "completion/complete":
            uri = text_of(RawJson(subject.encode()), "uri") or ""
            return view.still_readable(entry, uri) and scope.permits_completion(entry, uri)
        case _:
            return view.still_readable(entry, subject)


def _candidate_text(found: AmbiguousName) -> str:
    return f"More than one server has it; say which: {', '.join(found.candidates)}."


def _finder_text(view: View, method: str) -> str:
    finds = next((own.qualified for own in view.builtin_tools.values() if own.kind == "find_tools"), "")
    return f"{finds} tells the names." if method == TOOLS_CALL and finds else ""


def similar_names_text(names: Sequence[str]) -> str:
    """Return the question if one of these names was meant; empty without names."""
    return f"Did you mean {', '.join(names)}?" if names else ""


def with_similar_names(view: View, method: str, found: NoTarget) -> str:
    """Return the detail of this refusal with names that are similar to its name. Takes a millisecond or
    more.
    """
    similar = similar_names_text(view.similar_names(method, found.name)) if found.name else ""
    return f"{similar} {found.detail}".strip()
