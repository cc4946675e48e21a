"""Catalogs on disk: what is written, what is read back, and what is passed over."""

import json
import logging
import os
import subprocess
from pathlib import Path

import msgspec
import pytest
import trio

from carpool_broker.storage.catalog_cache import (
    MAX_FILE_BYTES,
    MAX_FILES,
    CachedCatalog,
    CatalogCache,
    contains_secret,
    definition_bytes,
    remove_old_files,
    seal_catalog,
    unseal,
    write_files,
)
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson
from carpool_protocol.link.messages import Catalog, ResourceOffer, ToolOffer
from tests.kit.waits import until

SECRET = b"s" * 32
KEY = PoolKey("git:0123456789abcdef")
T = "2026-11-22T10:00:00.000Z"


def catalog(*tools: str, key: PoolKey = KEY, description: str = "") -> Catalog:
    texts = {name: json.dumps({"name": name, "description": description}) for name in tools}
    offers = [ToolOffer(name, RawJson(text.encode())) for name, text in texts.items()]
    return Catalog(key, offers, "Commit often.", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")


async def written(kept: CatalogCache) -> None:
    await kept.flush()


def file_of(state: Path, key: PoolKey = KEY) -> Path:
    return state / "catalogs" / f"{key.rpartition(':')[2]}.catalog"


async def test_a_cached_catalog_is_found_by_the_next_broker_with_its_time(tmp_path: Path) -> None:
    one = CatalogCache(str(tmp_path), SECRET)
    one.catalog_received(catalog("log"), ())
    await written(one)
    found = CatalogCache(str(tmp_path), SECRET).find(KEY)
    assert found is not None
    assert found.catalog == catalog("log")
    assert found.told_at == one.told_at(KEY) != ""
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600


async def test_the_last_catalog_counts(tmp_path: Path) -> None:
    one = CatalogCache(str(tmp_path), SECRET)
    for tools in (("log",), ("log", "add")):
        one.catalog_received(catalog(*tools), ())
    await written(one)
    found = CatalogCache(str(tmp_path), SECRET).find(KEY)
    assert found is not None
    assert found.catalog == catalog("log", "add")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data.replace(b"catalog 1", b"catalog 2", 1),
        lambda data: b"",
        lambda data: seal_catalog(
            CachedCatalog(catalog("log", key=PoolKey("git:ffffffffffffffff")), T), b"x" * 32
        ),
    ],
    ids=["cut", "longer", "version", "empty", "seal"],
)
async def test_a_foreign_file_is_passed_over_with_one_line(
    change: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(change)
    one = CatalogCache(str(tmp_path), SECRET)
    one.catalog_received(catalog("log"), ())
    await written(one)
    file = file_of(tmp_path)
    file.write_bytes(change(file.read_bytes()))
    other = CatalogCache(str(tmp_path), SECRET)
    with caplog.at_level(logging.WARNING):
        assert [other.find(KEY), other.find(KEY)] == [None, None]
    assert [record.getMessage().count("is not a catalog of this carpool") for record in caplog.records] == [1]


async def test_a_file_of_another_pool_under_this_name_is_passed_over(tmp_path: Path) -> None:
    other = PoolKey("time:0123456789abcdef")
    one = CatalogCache(str(tmp_path), SECRET)
    one.catalog_received(catalog("log", key=other), ())
    await written(one)
    assert CatalogCache(str(tmp_path), SECRET).find(KEY) is None
    assert CatalogCache(str(tmp_path), SECRET).find(other) is not None


def test_a_link_and_a_fifo_are_passed_over(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    file.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(seal_catalog(CachedCatalog(catalog("log"), T), SECRET))
    file.symlink_to(elsewhere)
    assert CatalogCache(str(tmp_path), SECRET).find(KEY) is None
    file.unlink()
    os.mkfifo(file)
    assert CatalogCache(str(tmp_path), SECRET).find(KEY) is None


async def test_a_catalog_with_a_secret_or_too_large_goes_from_the_disk(tmp_path: Path) -> None:
    for what in (catalog("log", description="token: hush-hush-1"), catalog("x" * MAX_FILE_BYTES)):
        one = CatalogCache(str(tmp_path), SECRET)
        one.catalog_received(catalog("log"), ["hush-hush-1"])
        await written(one)
        one.catalog_received(what, ["hush-hush-1"])
        await written(one)
        assert one.find(KEY) is None
        assert not file_of(tmp_path).exists()


async def test_the_catalog_of_a_pool_whose_values_are_not_known_is_not_written(tmp_path: Path) -> None:
    one = CatalogCache(str(tmp_path), SECRET)
    one.catalog_received(catalog("log"), ())
    await written(one)
    later = CatalogCache(str(tmp_path), SECRET)
    later.catalog_received(catalog("log", description="token: hush-hush-1"), None)
    await written(later)
    found = later.find(KEY)
    assert found is not None
    assert found.catalog == catalog("log"), "what was known to be clean stays"


def test_values_are_found_as_they_are_and_as_json_writes_them() -> None:
    assert contains_secret(b"a open-sesame z", ["open-sesame"])
    assert contains_secret(b'{"x":"open \\"sesame\\""}', ['open "sesame"'])
    assert contains_secret("caché caché".encode(), ["caché caché"])
    assert contains_secret(b"cach\\u00e9 cach\\u00e9", ["caché caché"])
    assert not contains_secret(b"true", ["true"])


def test_a_path_of_this_machine_is_no_secret_and_a_key_that_looks_like_one_is(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "not-there-yet"):
        assert not contains_secret(f"Reads {path} alone".encode(), [str(path)])
    for key in ("/wJalrXUtnFEMI", "/wJalrXUtn/FEMI+K7", "~wJalrXUtnFEMI", "/nul\0wJalrXUtn"):
        assert contains_secret(f"Signs with {key}.".encode(), [key])


def test_a_sealed_file_of_other_content_is_read_as_nothing() -> None:
    data = seal_catalog(CachedCatalog(catalog("log"), T), SECRET)
    assert unseal(data, SECRET) == CachedCatalog(catalog("log"), T)
    assert unseal(data, b"x" * 32) is None


def test_the_oldest_files_go_first_and_foreign_ones_stay(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        path = tmp_path / f"{number:016x}.catalog"
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    (tmp_path / "note.txt").write_text("mine")
    assert remove_old_files(str(tmp_path)) == ""
    left = sorted(path.name for path in tmp_path.glob("*.catalog"))
    assert len(left) == MAX_FILES
    assert left[0] == f"{3:016x}.catalog"
    assert (tmp_path / "note.txt").exists()


def test_a_file_that_cannot_be_removed_does_not_end_the_removal(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    for number in range(MAX_FILES + 3):
        (tmp_path / f"{number:016x}.catalog").write_bytes(b"x")
        (tmp_path / f"{number:016x}.catalog.part-{ended.pid}").mkdir()
    remove_old_files(str(tmp_path))
    assert len(list(tmp_path.glob("*.catalog"))) == MAX_FILES


def test_an_unfinished_file_of_a_dead_broker_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    dead, alive = (tmp_path / f"{17:016x}.catalog.part-{pid}" for pid in (ended.pid, os.getpid()))
    for part in (dead, alive):
        part.write_bytes(b"x")
    remove_old_files(str(tmp_path))
    assert list(tmp_path.iterdir()) == [alive]


def test_entries_are_counted_before_anything_is_written_and_never_for_more_than_they_take() -> None:
    told = catalog(*(f"tool{number}" for number in range(300)), description="x" * 40)
    resource = ResourceOffer("shop:/bread", RawJson(b'{"uri":"shop:/bread"}'))
    told = msgspec.structs.replace(told, prompts=told.tools, resources=[resource], templates=[resource])
    data = seal_catalog(CachedCatalog(told, T), SECRET)
    assert 0.8 * len(data) < definition_bytes(told) < len(data)


def test_a_disk_that_takes_nothing_is_said_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "catalogs").write_text("no directory")
    said = write_files(str(tmp_path / "catalogs"), {str(tmp_path / "catalogs" / "a.catalog"): b"x"})
    assert "cannot be written" in said


async def test_without_a_secret_nothing_is_kept(tmp_path: Path) -> None:
    one = CatalogCache(str(tmp_path), b"")
    one.catalog_received(catalog("log"), ())
    await written(one)
    assert one.find(KEY) is None
    assert not file_of(tmp_path).parent.exists()


async def test_a_catalog_that_comes_while_the_cache_runs_is_written_soon(tmp_path: Path) -> None:
    one = CatalogCache(str(tmp_path), SECRET)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        one.catalog_received(catalog("log"), ())
        await until(file_of(tmp_path).exists, "it is written")
        nursery.cancel_scope.cancel()
