"""Whatever stands in a file: it is read, or refused with a sentence, and nothing is raised.

Level: each file's own reader and writer, and what is made of what it gave.
"""

import json
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest

from carpool import launcher_lock
from carpool.launcher.http_door import read_door_url
from carpool_broker.core.configuration.resolve_servers import resolve
from carpool_broker.storage.catalog_cache import CachedCatalog, CatalogCache, seal_catalog, unseal
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.pages.describe import describe
from carpool_protocol.config.reading.load import ConfigFile, load_config
from carpool_protocol.config.reading.tools_file import read_tools
from carpool_protocol.config.schema.environment import read_env_file
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS
from carpool_protocol.config.text.jsonc import parse
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import (
    CallAnswered,
    CancelCall,
    Catalog,
    SetPools,
    ToBroker,
    ToolOffer,
    ToSupervisor,
)
from carpool_protocol.machine import journal
from carpool_protocol.machine.journal import Journal
from carpool_supervisor.era.list_pages import legible
from carpool_supervisor.knowledge import era_cache, sharing_evidence
from carpool_supervisor.knowledge.era_cache import EraVerdict
from tests.behaviours import behaviour
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import NAMES, members, mutated, one_of, scalar, text

T: Final = "2026-11-21T10:00:00.000Z"
FILE_KEYS: Final = tuple(setting.key for setting in FILE_SETTINGS)
SERVER_KEYS: Final = tuple(setting.key for setting in SERVER_SETTINGS)


def nested(key: str, raw: bytes) -> tuple[str, bytes]:
    """`pool.min` as a member of `pool`."""
    first, _, rest = key.partition(".")
    return (first, b"{%b}" % b":".join((text(rest), raw))) if rest else (first, raw)


def setting(rng: Random, keys: tuple[str, ...]) -> tuple[str, bytes]:
    words = (
        b'"auto"',
        b'"session"',
        b'"${workspace}/x"',
        b'"${A:-${B}}"',
        b'"${"',
        b"[]",
        b'["a","b"]',
        b"true",
    )
    counts = (b"0", b"1", b"-1", b"1e3", b"2.5", b"1e308", b"9" * 64, b"1e-320", b"99999999999999999999")
    return nested(rng.choice(keys), one_of(rng, *words, *counts, odd=0.3))


def configuration(rng: Random) -> bytes:
    """A `carpool.json`, now and then with comments."""
    servers = []
    for _ in range(rng.randrange(4)):
        fields = [("command", one_of(rng, b'"python"', b'"${HOME}/x"', odd=0.05))]
        fields += [("args", one_of(rng, b'["-m","x"]', b'["${A}"]', odd=0.1))] if rng.random() < 0.5 else []
        fields += [setting(rng, SERVER_KEYS) for _ in range(rng.randrange(3))]
        servers.append(
            (rng.choice(("git", "a-b", "a_b", *NAMES)), one_of(rng, members(rng, fields), odd=0.05))
        )
    fields = [
        ("mcpServers", members(rng, servers)),
        *(setting(rng, FILE_KEYS) for _ in range(rng.randrange(3))),
    ]
    whole = members(rng, fields)
    if rng.random() < 0.2:
        whole = rng.choice((b"// a\n", b"/* \x1b */", b"\xef\xbb\xbf", b"/*", b"#")) + whole
    return mutated(rng, whole) if rng.random() < 0.3 else whole


def configured(rng: Random, folder: Path) -> None:
    """To the very bytes that would go to the supervisor."""
    file = folder / "carpool.json"
    file.write_bytes(configuration(rng))
    loaded = load_config(ConfigFile(str(file), asked_for=True))
    assert (loaded.config is None) == bool(loaded.problems)
    for problem in loaded.problems:
        assert problem.line > 0
        problem.render().encode()
    if loaded.config is None:
        return
    describe(loaded.config)
    found = resolve(
        loaded.config,
        environment={"A": "1"},
        base_environment={"HOME": "/root"},
        env_file={},
        workspace="/tmp",
        cwd="/tmp",
        home="/root",
        secret=b"s" * 32,
        roots=None,
        interpreter="/usr/bin/python3",
    )
    wanted = SetPools(list(found.specs), loaded.config.max_instances, loaded.config.max_greeting)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(wanted), type=SetPools) == wanted


def evidence(rng: Random) -> bytes:
    kinds = (b'"asks"', b'"probe_diverged"', b'"asked_ambiguously"', b'"probe_agreed"')
    fields = [("kind", one_of(rng, *kinds, odd=0.03)), ("first", one_of(rng, text(T), odd=0.1))]
    fields += [
        ("last", one_of(rng, text(T), odd=0.1)),
        ("times", scalar(rng) if rng.random() < 0.2 else b"3"),
    ]
    return members(rng, [*fields, ("detail", text(rng.choice(NAMES)))])


def era(rng: Random) -> bytes:
    fields = [
        ("era", one_of(rng, b'"handshake"', b'"stateless"', odd=0.05)),
        ("why", text(rng.choice(NAMES))),
    ]
    fields += [("server", text(rng.choice(NAMES))), ("at", one_of(rng, text(T), odd=0.1))]
    return members(rng, fields)


def state_file(rng: Random, one: Callable[[Random], bytes]) -> bytes:
    entries = [(rng.choice(("k", *NAMES)), one(rng)) for _ in range(rng.randrange(4))]
    version = one_of(rng, b"1", odd=0.03)
    whole = members(rng, [("version", version), ("servers", one_of(rng, members(rng, entries), odd=0.03))])
    return mutated(rng, whole) if rng.random() < 0.3 else whole


def remembered(rng: Random, folder: Path) -> None:
    """Both files of verdicts: read, used, written and read again."""
    path, eras = str(folder / "verdicts.json"), str(folder / "eras.json")
    Path(path).write_bytes(
        state_file(rng, lambda rng: b'{"evidence":[%b]}' % b",".join(evidence(rng) for _ in range(2)))
    )
    Path(eras).write_bytes(state_file(rng, era))
    found, trouble = sharing_evidence.load_evidence(path)
    trouble.encode()
    if not trouble:
        for known in found.servers.values():
            kinds = {each.kind: each for each in known.evidence}
            assert len(kinds) <= len(known.evidence)
        whole, _ = sharing_evidence.save_evidence(
            path, sharing_evidence.with_evidence(found, "k", "asks", T, "x")
        )
        again, trouble = sharing_evidence.load_evidence(path)
        assert trouble == ""
        assert again == whole
    speak, trouble = era_cache.load_eras(eras)
    if not trouble:
        for key in speak.servers:
            era_cache.era_of(speak, key, T)
        seen = era_cache.with_observation(speak, "k", EraVerdict("stateless", "why", "s 1", T))
        whole_eras, _ = era_cache.save_eras(eras, seen)
        assert era_cache.load_eras(eras) == (whole_eras, "")


def kept(rng: Random, folder: Path) -> None:
    """A catalog on disk, changed in a place or two, or written whole by somebody with our secret."""
    secret, key = b"s" * 32, PoolKey("git:0123456789abcdef")
    names = [legible(name) for name in rng.sample(NAMES, 3)]  # others do not cross the link
    offers = [ToolOffer(name, RawJson(scalar(rng))) for name in names]
    written = CachedCatalog(Catalog(key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"), T)
    data = seal_catalog(written, secret)
    if rng.random() < 0.2:
        body = mutated(rng, msgspec.msgpack.encode(written))
        seal = blake2b(body, key=secret, digest_size=32).digest()
        found = unseal(data[: -len(msgspec.msgpack.encode(written)) - 32] + seal + body, secret)
        assert found is None or isinstance(found, CachedCatalog)
        return
    data = mutated(rng, data)
    found = unseal(data, secret)
    assert found is None or found == written
    (folder / "catalogs").mkdir(exist_ok=True)
    (folder / "catalogs" / "0123456789abcdef.catalog").write_bytes(data)
    assert CatalogCache(str(folder), b"t" * 32).find(key) is None


def listed_tools(rng: Random) -> None:
    """A `tools_file`, from nearly right to nothing of the kind."""
    tools = []
    for _ in range(rng.randrange(4)):
        fields = [("name", one_of(rng, *map(text, NAMES), odd=0.1))]
        fields += [("inputSchema", one_of(rng, b'{"type":"object"}', odd=0.2))] if rng.random() < 0.5 else []
        tool = members(rng, fields)
        if rng.random() < 0.2:
            server = one_of(rng, b'"git"', b'"time"', odd=0.2)
            tool = members(rng, [("server", server), ("definition", tool)])
        tools.append(one_of(rng, tool, odd=0.05))
    whole = b"[%b]" % b",".join(tools)
    whole = members(rng, [("tools", whole)]) if rng.random() < 0.5 else whole
    whole = mutated(rng, whole) if rng.random() < 0.3 else whole
    found = read_tools(whole.decode(errors="replace"), "x", ServerName("git"))
    if isinstance(found, list):
        assert found
        "".join(each.render() for each in found).encode()
        return
    for offer in found:
        assert offer.definition.count(b"\n") == 0
        assert msgspec.json.decode(offer.definition)["name"] == offer.name


def dumped(rng: Random) -> bytes:
    """A journal, nearly as it was written."""
    ring = Journal(8)
    ring.record(1.0, CancelCall(call=1, reason="r"), [])  # type: ignore[arg-type]  # ids are ints
    ring.record(2.0, CallAnswered(call=1, is_error=False, body=b"{}"), [CancelCall(1, "x")])  # type: ignore[arg-type]
    lines = []
    for line in ring.dump().splitlines():
        entry: dict[str, Any] = json.loads(line)
        event = [(key, one_of(rng, json.dumps(it).encode(), odd=0.2)) for key, it in entry["event"].items()]
        if rng.random() < 0.3:
            event[rng.randrange(len(event))] = ("body", one_of(rng, b'{"bytes":1e15}', b'{"bytes":-1}', b"5"))
        if rng.random() < 0.2:
            event.pop()
        raw = members(
            rng,
            [("seq", b"0"), ("now", one_of(rng, b"1.5")), ("event", members(rng, event)), ("effects", b"[]")],
        )
        lines.append(mutated(rng, raw) if rng.random() < 0.2 else raw)
    return b"\n".join(lines)


def replayed(rng: Random) -> None:
    try:
        pairs = journal.load_journal(dumped(rng), [ToSupervisor, ToBroker])
    except ValueError:
        return
    for now, event in pairs:
        assert isinstance(now, float)
        assert isinstance(event, msgspec.Struct)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@behaviour("bad-input:files")
def test_whatever_a_configuration_says_it_is_in_force_or_refused_with_its_lines(folder: Path) -> None:
    fuzz(lambda rng: configured(rng, folder), examples=60, seeds=1500)


@behaviour("bad-input:files")
def test_whatever_a_file_of_verdicts_says_it_is_kept_or_set_aside(folder: Path) -> None:
    fuzz(lambda rng: remembered(rng, folder), examples=20, seeds=150)


@behaviour("bad-input:files")
def test_whatever_a_kept_catalog_says_it_is_what_was_written_or_passed_over(folder: Path) -> None:
    fuzz(lambda rng: kept(rng, folder), examples=20, seeds=300)


@behaviour("bad-input:files")
def test_whatever_a_tools_file_says_it_lists_tools_or_has_problems() -> None:
    fuzz(listed_tools, examples=30, seeds=600)


@behaviour("bad-input:files")
def test_whatever_a_journal_says_it_replays_or_is_no_dump() -> None:
    fuzz(replayed, examples=60, seeds=1500)


def test_whatever_a_lock_or_a_door_file_says_it_names_a_holder_or_nobody(folder: Path) -> None:
    def play(rng: Random) -> None:
        pid = one_of(rng, b"1", b"0", b"-1", b"9" * 30, odd=0.4)
        door = members(rng, [("pid", pid), ("url", one_of(rng, b'"http://x"', text(rng.choice(NAMES))))])
        (folder / "http.json").write_bytes(mutated(rng, door) if rng.random() < 0.2 else door)
        assert read_door_url(str(folder)).isprintable()
        (folder / "lock").write_bytes(b"pid=%b\nconfig=%b\n" % (pid, scalar(rng)))
        descriptor = os.open(paths.lock_file(str(folder)), os.O_RDONLY)
        try:
            assert launcher_lock._read(descriptor).pid >= 0
        finally:
            os.close(descriptor)

    fuzz(play, examples=30, seeds=600)


def test_whatever_an_env_file_says_it_has_values_or_problems() -> None:
    def play(rng: Random) -> None:
        lines = [
            rng.choice(("A=1", "export B='x'", "#", "=", "C", "D=\x00", "A=2", *NAMES)) for _ in range(5)
        ]
        values, problems = read_env_file(rng.choice(("\n", "\r\n", "\r", "\u2028")).join(lines), "x")
        assert all(name.isidentifier() for name in values)
        "".join(problem.render() for problem in problems).encode()
        parse("".join(lines), "x")

    fuzz(play, examples=30, seeds=600)
