"""Names agents see: formation, collisions, and every spelling of other systems (docs/names.md)."""

import re
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_name_resolver import (
    MAX_NAME_CHARS,
    MAX_SERVER_NAME_CHARS,
    MIN_NAME_CHARS,
    AmbiguousName,
    NamePrefixes,
    NoSuchName,
    ResolvedName,
    Resolver,
    Tool,
    check_name_length,
    check_separator,
    check_server_name,
    check_tools_prefix,
    may_be_of,
    qualify,
    qualify_all,
    safe_server_names,
    spellings,
)
from tests.behaviours import behaviour

A = ServerName("a")
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def tools(*pairs: tuple[str, str]) -> list[Tool]:
    return [(ServerName(server), tool) for server, tool in pairs]


def resolver(*pairs: tuple[str, str], separator: str = "__", **prefixes: str) -> Resolver:
    given_prefixes = {ServerName(server): prefix for server, prefix in prefixes.items()}
    return Resolver(qualify_all(tools(*pairs), given_prefixes, separator))


# --- server names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["time", "a", "my-server", "a_b_c", "9", "-", "A-1_b", "x" * 40])
def test_a_usable_server_name_has_no_problem(name: str) -> None:
    assert check_server_name(name) is None


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "needs a name"),
        ("a__b", "underscore"),
        ("_a", "underscore"),
        ("a_", "underscore"),
        ("a b", "only"),
        ("a.b", "only"),
        ("a/b", "only"),
        ("ä", "only"),
        ("a\n", "only"),
        ("x" * 41, "40"),
    ],
)
def test_an_unusable_server_name_is_refused_with_a_sentence(name: str, word: str) -> None:
    problem = check_server_name(name)
    assert problem is not None
    assert word in problem
    assert problem.endswith(".")
    assert problem.isascii()
    assert "\n" not in problem


def test_separators_and_prefixes_are_checked() -> None:
    assert check_separator("__") is None
    assert check_separator("-") is None
    assert check_separator("") is not None
    assert check_separator(".") is not None
    assert check_tools_prefix("") is None
    assert check_tools_prefix("gh") is None
    assert check_tools_prefix("g h") is not None
    assert check_tools_prefix("x" * 41) is not None


# --- one name ----------------------------------------------------------------------------------------------


def test_a_name_is_the_server_two_underscores_and_the_tool() -> None:
    assert qualify("github", "search") == "github__search"


def test_prefix_and_separator_are_as_configured() -> None:
    assert qualify("github", "search", "-") == "github-search"
    assert qualify("github", "search", prefix="gh") == "gh__search"
    assert qualify("github", "search", prefix="") == "search"


def test_illegal_characters_become_underscores_also_without_a_prefix() -> None:
    assert qualify("docs", "get.page/v2 é") == "docs__get_page_v2__"
    assert qualify("docs", "get.page", prefix="") == "get_page"
    assert qualify("docs", "", prefix="") == "_"


def test_a_name_of_64_characters_is_left_alone_and_one_of_65_is_shortened() -> None:
    assert qualify("s", "t" * 61) == "s__" + "t" * 61
    short = qualify("s", "t" * 62)
    assert len(short) == 64
    assert short.startswith("s__" + "t" * 52 + "_")


def test_shortening_keeps_the_server_and_the_beginning_of_the_tool_and_is_the_same_for_ever() -> None:
    server = "a" * MAX_SERVER_NAME_CHARS
    name = qualify(server, "search_all_repositories_of_the_organisation")
    assert name.startswith(server + "__search_all_re")
    # Written down: agents remember names across restarts and releases.
    assert qualify("github", "x" * 80) == "github__" + "x" * 47 + "_5e0244cf"


def test_long_names_that_differ_only_at_the_end_stay_apart() -> None:
    names = {qualify("s", "t" * 70 + str(number)) for number in range(1000)}
    assert len(names) == 1000


def test_a_prefix_of_any_length_leaves_room_for_the_tool() -> None:
    assert "search" in qualify("s", "search", prefix="p" * 100)


# --- a set of names ----------------------------------------------------------------------------------------


def test_two_tools_on_one_name_both_get_a_hash_and_the_others_keep_theirs() -> None:
    names = qualify_all(tools(("a", "get.x"), ("a", "get_x"), ("a", "put")), {})
    assert names[ServerName("a"), "put"] == "a__put"
    shared = {names[ServerName("a"), "get.x"], names[ServerName("a"), "get_x"]}
    assert len(shared) == 2
    assert all(re.fullmatch(r"a__get_x_[0-9a-f]{8}", name) for name in shared)


def test_servers_without_prefix_share_names_only_where_they_must() -> None:
    prefixes = {ServerName("a"): "", ServerName("b"): ""}
    names = qualify_all(tools(("a", "search"), ("b", "search"), ("b", "read")), prefixes)
    assert names[ServerName("b"), "read"] == "read"
    assert names[ServerName("a"), "search"] != names[ServerName("b"), "search"]
    assert "search" not in names.values()


def test_a_tool_named_like_anothers_hashed_name_takes_nothing_over() -> None:
    first = qualify_all(tools(("a", "get.x"), ("a", "get_x")), {})
    forged = first[ServerName("a"), "get.x"].removeprefix("a__")
    names = qualify_all(tools(("a", "get.x"), ("a", "get_x"), ("a", forged)), {})
    assert len(set(names.values())) == 3
    assert first[ServerName("a"), "get.x"] not in names.values()
    assert names[ServerName("a"), "get_x"] == first[ServerName("a"), "get_x"]


def test_a_tool_given_twice_counts_once() -> None:
    assert qualify_all(tools(("a", "x"), ("a", "x")), {}) == {(ServerName("a"), "x"): "a__x"}


server_names = st.sampled_from([ServerName(name) for name in ("a", "b", "a-b", "a_b", "ab")])
tool_names = st.one_of(
    st.sampled_from(["x", "x.y", "x_y", "b_x", "_x", "", "a__x", "é" * 3, "t" * 70, "t" * 70 + "u"]),
    st.text(max_size=80),
)
prefixes_of_servers = st.dictionaries(server_names, st.sampled_from([None, "", "a", "p" * 60, "ü"]))


owner_names = st.sampled_from([ServerName(name) for name in ("a", "b", "a-b", "a_b", "mcp", "mcp_a", "p")])
owned_tools = st.sampled_from(
    [
        "x",
        "_x",
        "b_x",
        "a__x",
        "a_x",
        "a.x",
        "mcp__a__x",
        "mcp:a:x",
        "b__x",
        "a_b__x",
        "p_x",
        "mcp_a__x",
        "-x",
    ]
)


@given(
    st.lists(st.tuples(server_names, tool_names), max_size=12),
    prefixes_of_servers,
    st.sampled_from(["__", "_", "-", "."]),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_names_are_legal_distinct_and_independent_of_order(
    entries: list[Tool], prefixes: dict[ServerName, str | None], separator: str, shuffle: Random
) -> None:
    names = qualify_all(entries, prefixes, separator)
    assert names.keys() == set(entries)
    assert all(LEGAL.fullmatch(name) for name in names.values())
    assert len(set(names.values())) == len(names)
    again = list(entries)
    shuffle.shuffle(again)
    assert qualify_all(again, prefixes, separator) == names


@given(st.lists(st.tuples(server_names, tool_names), max_size=12), server_names)
@settings(deadline=None)
def test_with_default_prefixes_a_server_leaving_changes_no_other_servers_names(
    entries: list[Tool], leaving: ServerName
) -> None:
    before = qualify_all(entries, {})
    after = qualify_all([entry for entry in entries if entry[0] != leaving], {})
    legal_only = {tool for tool in after if LEGAL.fullmatch(f"{tool[0]}__{tool[1]}")}
    for tool in legal_only:
        assert before[tool] == after[tool]


# --- spellings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        "github__search",
        "github_search",
        "mcp__github__search",
        "mcp:github:search",
        "mcp:github.search",
        "mcp_github_search",
        "github.search",
        "search",
    ],
)
@pytest.mark.parametrize(
    "prefixed", [resolver(("github", "search")), resolver(("github", "search"), separator="-", github="gh")]
)
def test_every_spelling_of_the_design_resolves(spelling: str, prefixed: Resolver) -> None:
    found = prefixed.resolve(spelling)
    assert isinstance(found, ResolvedName)
    assert (found.server, found.tool) == ("github", "search")


def test_aliases_are_the_spellings_that_resolve_to_this_tool_alone() -> None:
    names = resolver(("github", "search"), ("gitlab", "search"))
    assert names.aliases(ServerName("github"), "search") == [
        "github_search",
        "mcp__github__search",
        "mcp:github:search",
        "mcp:github.search",
        "mcp_github_search",
        "github.search",
    ]
    assert names.aliases(ServerName("github"), "other") == []


def test_an_ambiguous_bare_name_lists_the_candidates_sorted() -> None:
    names = resolver(("gitlab", "search"), ("github", "search"), ("jira", "search"))
    assert names.resolve("search") == AmbiguousName(("github__search", "gitlab__search", "jira__search"))


def test_spellings_that_read_alike_once_joined_are_ambiguous_never_guessed() -> None:
    names = resolver(("a", "b_c"), ("a_b", "c"))
    assert names.resolve("a_b_c") == AmbiguousName(("a__b_c", "a_b__c"))
    found = names.resolve("a_b__c")
    assert isinstance(found, ResolvedName)
    assert found.server == "a_b"


def test_a_qualified_name_beats_every_other_spelling_of_another_tool() -> None:
    names = resolver(("shell", "github_search"), ("github", "search"), shell="")
    found = names.resolve("github_search")
    assert isinstance(found, ResolvedName)
    assert found.server == "shell"


def test_a_name_that_two_tools_came_to_share_is_ambiguous_not_the_other_ones() -> None:
    names = resolver(("a", "search"), ("b", "search"), a="", b="")
    answer = names.resolve("search")
    assert isinstance(answer, AmbiguousName)
    assert len(answer.candidates) == 2


def test_an_illegal_tool_name_is_found_raw_and_legalised() -> None:
    names = resolver(("docs", "get.page"))
    for spelling in ("docs__get_page", "docs__get.page", "get.page", "get_page", "mcp__docs__get_page"):
        assert isinstance(names.resolve(spelling), ResolvedName), spelling


def test_a_shortened_name_is_also_found_in_full() -> None:
    long = "t" * 80
    assert isinstance(resolver(("s", long)).resolve(f"s__{long}"), ResolvedName)


def test_an_unknown_name_gets_suggestions_that_look_alike() -> None:
    names = resolver(("github", "search_repositories"), ("github", "get_file"), ("time", "get_current_time"))
    assert names.resolve("github__serach_repositories") == NoSuchName(("github__search_repositories",))
    assert names.resolve("get_curent_time") == NoSuchName(("time__get_current_time",))
    assert names.resolve("zzz") == NoSuchName(())


@pytest.mark.parametrize("spelling", ["", "_", "\0", "x" * 1_000_000, "é", "mcp:", "__", "\ud800"])
def test_any_string_gets_an_answer(spelling: str) -> None:
    assert resolver(("github", "search")).resolve(spelling) == NoSuchName(())


@given(st.lists(st.tuples(server_names, tool_names), max_size=8), prefixes_of_servers)
@settings(deadline=None)
def test_what_resolves_is_what_was_spelled_and_aliases_tell_the_truth(
    entries: list[Tool], prefixes: dict[ServerName, str | None]
) -> None:
    names = qualify_all(entries, prefixes)
    found = Resolver(names)
    spelled = [way for server, tool in names for way in spellings(server, tool)]
    for spelling in (*names.values(), *spelled):
        meaning = [tool for tool, name in names.items() if name == spelling] or [
            tool for tool in names if spelling in spellings(*tool)
        ]
        answer = found.resolve(spelling)
        if len(meaning) == 1:
            assert isinstance(answer, ResolvedName)
            assert (answer.server, answer.tool) == meaning[0]
        else:
            assert answer == AmbiguousName(tuple(sorted(names[tool] for tool in meaning)))
    for tool, name in names.items():
        aliases = found.aliases(*tool)
        assert name not in aliases
        assert _all_mean(found, aliases, tool)


def _all_mean(found: Resolver, aliases: Sequence[str], tool: Tool) -> bool:
    answers = [found.resolve(alias) for alias in aliases]
    return all(
        isinstance(answer, ResolvedName) and (answer.server, answer.tool) == tool for answer in answers
    )


def test_a_name_reads_as_that_of_the_server_with_the_longest_name() -> None:
    heads = NamePrefixes({A: None, ServerName("a_b"): None, ServerName("c"): "pw", ServerName("d"): "a"})
    read = {
        "a__b": "a", "a_b_c": "a_b", "mcp__a_b__c": "a_b", "mcp:pw.x": "c", "c_x": "c", "pw__x": "c", "x": "",
        "a": "", "a_": "a", "A__b": "",
    }  # fmt: skip
    for spelling, server in read.items():
        assert heads.servers_of(spelling) == ({server} if server else set()), spelling
    assert heads.all_servers_of("a_b_c") == {"a", "a_b"}
    assert heads.may_mean("x", A)
    assert not heads.may_mean("pw__x", A)
    assert not heads.may_mean("a__x", ServerName("d")), "nobody takes over a name by a prefix"


def test_a_server_that_is_not_known_any_more_takes_no_prefix_from_one_that_is() -> None:
    heads = NamePrefixes({A: "pw"}, former={ServerName("pw"): None, ServerName("b"): "bb"})
    assert heads.servers_of("pw__x") == {"a"}
    assert heads.servers_of("b__x") == heads.servers_of("bb__x") == {"b"}


@behaviour("names:owner")
@given(
    st.lists(st.tuples(owner_names, owned_tools), max_size=12, unique=True),
    st.dictionaries(owner_names, st.sampled_from([None, "", "a", "p", "mcp", "a_b_c"])),
    owner_names,
    st.sampled_from(["__", "_", "-"]),
)
@settings(deadline=None, max_examples=300)
def test_what_means_a_tool_of_one_server_never_comes_to_mean_anothers_when_that_one_is_away(
    entries: list[Tool], prefixes: dict[ServerName, str | None], away: ServerName, separator: str
) -> None:
    known = {server: prefixes.get(server) for server in (*(server for server, _ in entries), away)}
    heads = NamePrefixes(known, separator)

    def seen(tools: list[Tool]) -> Resolver:
        return Resolver(qualify_all(tools, prefixes, separator, heads), prefixes, heads)

    before, after = seen(entries), seen([tool for tool in entries if tool[0] != away])
    ways = [way for server, tool in entries for way in spellings(server, tool, prefixes.get(server))]
    for spelling in ways:
        was, found = before.resolve(spelling), after.resolve(spelling)
        if not isinstance(was, ResolvedName) or was.server != away or not isinstance(found, ResolvedName):
            continue
        shared = {away, found.server} <= heads.servers_of(spelling)
        bare = not heads.servers_of(spelling)
        assert shared or bare, f"{spelling} meant {was.qualified} and means {found.qualified}"


@given(
    st.lists(st.tuples(owner_names, owned_tools), max_size=12, unique=True),
    st.dictionaries(owner_names, st.sampled_from([None, "", "a", "p", "mcp"])),
    st.sampled_from(["__", "_", "-"]),
)
@settings(deadline=None)
def test_no_spelling_and_no_plain_name_reads_as_that_of_another_server(
    entries: list[Tool], prefixes: dict[ServerName, str | None], separator: str
) -> None:
    heads = NamePrefixes(
        {server: prefixes.get(server) for server in (A, *(each for each, _ in entries))}, separator
    )
    names = qualify_all(entries, prefixes, separator, heads)
    found = Resolver(names, prefixes, heads)
    assert len(set(names.values())) == len(names)
    for (server, tool), name in names.items():
        assert LEGAL.fullmatch(name)
        assert heads.may_mean(name, server) or re.search("_[0-9a-f]{8,}$", name)
        for way in found.aliases(server, tool):
            assert heads.may_mean(way, server), way


@behaviour("names:length")
@given(
    st.lists(st.tuples(server_names, tool_names), max_size=12),
    prefixes_of_servers,
    st.integers(MIN_NAME_CHARS, MAX_NAME_CHARS),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_names_keep_their_bound_and_the_longer_ones_mean_the_same_tools(
    entries: list[Tool], prefixes: dict[ServerName, str | None], most: int, shuffle: Random
) -> None:
    names, longer = qualify_all(entries, prefixes, most=most), qualify_all(entries, prefixes)
    assert all(LEGAL.fullmatch(name) and len(name) <= most for name in names.values())
    assert len(set(names.values())) == len(names)
    again = list(entries)
    shuffle.shuffle(again)
    assert qualify_all(again, prefixes, most=most) == names
    found = Resolver(names, prefixes, longer=longer)
    for (server, tool), name in longer.items():
        answer = found.resolve(name)
        assert isinstance(answer, ResolvedName)
        if name not in names.values():
            assert (answer.server, answer.tool) == (server, tool)
            assert name in found.aliases(server, tool)
        if len(name) <= most and (server, tool) not in _cut(longer, most):
            assert names[server, tool] in (name, answer.qualified)


def _cut(names: dict[Tool, str], most: int) -> set[Tool]:
    return {tool for tool, name in names.items() if len(name) > most}


@behaviour("names:length")
def test_a_shorter_name_is_cut_as_a_longer_one_is_and_is_the_same_for_ever() -> None:
    tool = "add_pull_request_review_comment_to_pending_review"
    assert qualify("github", tool) == f"github__{tool}"
    assert qualify("github", tool, most=50) == "github__add_pull_request_review_comment_t_ff7b8697"
    assert [chars for chars in (31, 32, 50, 64, 65) if check_name_length(chars) is None] == [32, 50, 64]


def test_what_looks_like_a_name_of_another_server_is_not_suggested() -> None:
    names = {(ServerName("evil"), name): f"evil__{name}" for name in ("vault__read", "read")}
    found = Resolver(names, heads=NamePrefixes({ServerName("evil"): None, ServerName("vault"): None}))
    assert found.resolve("vault__read") == found.resolve("vault__reed") == NoSuchName(())
    assert found.resolve("evil__reed") == NoSuchName(("evil__read", "evil__vault__read"))


def test_a_name_may_belong_to_a_server_whose_tools_are_not_known_yet() -> None:
    assert all(may_be_of(way, "time", "__") for way in spellings("time", "now") if way != "now")
    assert may_be_of("t-now", "time", "-", "t")
    assert may_be_of("anything", "time", "__", "")
    assert not may_be_of("timer__now", "time", "__")
    assert not may_be_of("now", "time", "__")


@given(st.lists(st.text(max_size=50) | st.text("aA_- .", max_size=50), unique=True, max_size=12))
def test_whatever_another_program_calls_its_servers_each_has_a_name_of_its_own(names: list[str]) -> None:
    found = safe_server_names(names)
    assert all(check_server_name(each) is None for each in found.values())
    assert len(set(found.values())) == len(names)
    assert all(found[name] == name for name in names if check_server_name(name) is None)
    assert safe_server_names(reversed(names)) == found
