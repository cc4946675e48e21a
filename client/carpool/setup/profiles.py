"""The profile of carpool.json that each program gets, so that it keeps the servers it had.

Owns that decision. A program gets a profile if it would otherwise see a server that it did not have. If its
entry names a profile already, it keeps that profile, with its new servers added. If its entry names none, it
still sees all servers. Pure. Knows nothing of: files, the text of an entry.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from carpool.setup.model import KeyPath, MovedServer, ProgramProfile
from carpool_protocol.config.edit.edit import value_at
from carpool_protocol.config.reading.profiles import PROFILES
from carpool_protocol.config.text.jsonc import JsonValue

OPTION: Final = "--profile"


def plan_profiles(
    own: JsonValue, names: Collection[str], moved: Sequence[MovedServer], entered: Mapping[str, str]
) -> tuple[list[ProgramProfile], list[str]]:
    """Return the profiles, and sentences about programs that see fewer or more servers than they had.

    `own`: carpool.json; `names`: the servers in it; `entered`: by program, the profile that its entry names
    already, or empty.
    """
    there = value_at(own, (PROFILES,))
    taken = set(there) if isinstance(there, dict) else set()
    every = {*names, *(each.name for each in moved)}
    found: list[ProgramProfile] = []
    notes: list[str] = []
    for client in dict.fromkeys(each.client_id for each in moved):
        its = list(dict.fromkeys(each.name for each in moved if each.client_id == client))
        title = next(each.client for each in moved if each.client_id == client)
        if client in entered:
            profile = entered[client]
            held = _allowed(own, profile)
            if not profile:
                notes.append(f"{title} sees all servers: its entry for carpool names no profile")
            elif profile not in taken:
                notes.append(f"{title}'s entry for carpool names the profile {profile}, which is not there")
            if held is None:
                continue
        else:
            profile, held = client, _allowed(own, client)
            if held is None or value_at(own, (PROFILES, client)) != {"allow": held}:
                number = 1
                while profile in taken:
                    number += 1
                    profile = f"{client}-{number}"
                held = []
                if not every - set(its):
                    continue
            taken.add(profile)
        patterns = [f"mcp:{name}" for name in its]
        more = [*held, *(each for each in patterns if each not in held)]
        value: JsonValue = [*more]
        path: KeyPath = (PROFILES, profile, "allow")
        if profile not in (there if isinstance(there, dict) else {}):
            path, value = (PROFILES, profile), {"allow": value}
        had = len(set(more) & {f"mcp:{name}" for name in every})
        found.append(ProgramProfile(client, title, profile, had, len(every), path, value))
    return found, notes


def _allowed(own: JsonValue, profile: str) -> list[str] | None:
    """Return the names that a profile allows; None if there is no such profile, or if it allows all."""
    held = value_at(own, (PROFILES, profile, "allow"))
    return [each for each in held if isinstance(each, str)] if isinstance(held, list) else None


def named_in(entry: JsonValue) -> str:
    """Return the profile that carpool's entry in a program's file names; empty if it names none."""
    match entry:
        case {"command": [*words]} | {"args": [*words]}:
            said = [each for each in words if isinstance(each, str)]
        case _:
            return ""
    for at, word in enumerate(said):
        if word == OPTION and at + 1 < len(said):
            return said[at + 1]
        if word.startswith(f"{OPTION}="):
            return word.partition("=")[2]
    return ""
