"""Configurations that are read again: what is in force, and which pools are wanted for it."""

import pytest
from msgspec.structs import replace

from carpool_broker.core.configuration.effective_sources import EffectiveSources
from carpool_broker.core.model.events import SourceId, SourceRead
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.registry import Registry
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import (
    Catalog,
    Era,
    Mode,
    Policy,
    PoolChanged,
    PoolSpec,
    PoolState,
    ToolOffer,
)
from tests.behaviours import behaviour
from tests.kit.broker_rig import no_effect

ONE, TWO = SourceId("one"), SourceId("two")
A, B = ServerName("a"), ServerName("b")


def spec(key: str, *, asking: bool = False) -> PoolSpec:
    server = ServerName(key[0])
    return PoolSpec(key=PoolKey(key), server=server, argv=[], env={}, cwd="/", policy=Policy(), asking=asking)


def reading(
    *keys: str,
    source: SourceId = ONE,
    stop_first: bool = False,
    cap: int = 8,
    twins: bool = False,
    match: bool = False,
) -> SourceRead:
    """`twins`: the pool for agents that can be asked is the key and a question mark. `match`: that for those
    of the stateless era is the key and a star.
    """
    entries = tuple(ScopeEntry(server=ServerName(key[0]), key=PoolKey(key)) for key in keys)
    specs = tuple(spec(entry.key) for entry in entries)
    return SourceRead(
        source=source,
        scope=Scope(entries),
        specs=specs,
        misconfigured={},
        stop_first=frozenset({ServerName("a"), ServerName("b")} if stop_first else ()),
        max_processes=cap,
        max_greeting=3,
        twins={PoolKey(key): spec(f"{key}?", asking=True) for key in keys} if twins else {},
        stateless={PoolKey(key): spec(f"{key}*") for key in keys} if match else {},
    )


class SourcesRig:
    def __init__(self, *readings: SourceRead) -> None:
        self.states: dict[PoolKey, PoolChanged] = {}
        self.registry = Registry(no_effect, mark="m")
        self.sources = EffectiveSources(self.registry, self.states)
        for each in readings:
            self.sources.source_read(each)

    def pool(
        self, key: str, state: PoolState, mode: Mode = "concurrent", *, both: bool | None = None
    ) -> bool:
        self.states[PoolKey(key)] = PoolChanged(PoolKey(key), state, "", mode=mode, both_eras=both)
        return self.sources.pools_changed([PoolKey(key)])

    def tells(self, key: str, *tools: str, asks: bool = False, era: Era = "handshake") -> bool:
        """The pool greets: its catalog comes."""
        offers = [ToolOffer(tool, RawJson(b"{}")) for tool in tools]
        catalog = Catalog(
            PoolKey(key), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", asks=asks, era=era
        )
        self.registry.catalog_received(catalog)
        changed = self.sources.pools_changed([PoolKey(key)])
        state = self.states.get(PoolKey(key))
        if state is None or state.state != "serving":
            changed = self.pool(key, "serving") or changed
        return changed

    def in_force(self, source: SourceId = ONE, *, asking: bool = False, stateless: bool = False) -> list[str]:
        self.sources.check()
        scope = self.sources.scope(source, asking=asking, stateless=stateless)
        return [entry.key for entry in scope.servers]

    def replaced(self) -> dict[str, str]:
        return {spec.key: spec.replaces for spec in self.sources.wanted_pools().pools}

    def wanted(self) -> dict[str, str]:
        return {spec.key: spec.start_after for spec in self.sources.wanted_pools().pools}


def test_a_first_reading_is_in_force_at_once() -> None:
    rig = SourcesRig(reading("a:1", "b:1"))
    assert rig.in_force() == ["a:1", "b:1"]
    assert rig.wanted() == {"a:1": "", "b:1": ""}


def test_a_changed_server_that_serves_stays_until_the_new_pool_serves() -> None:
    rig = SourcesRig(reading("a:1", "b:1"))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2", "b:1"))
    assert rig.in_force() == ["a:1", "b:1"]
    assert rig.wanted() == {"a:1": "", "a:2": "", "b:1": ""}
    assert rig.sources.pools_to_discover() == ["a:2"]
    assert not rig.pool("a:2", "starting")
    assert rig.pool("a:2", "serving")
    assert rig.in_force() == ["a:2", "b:1"]
    assert rig.wanted() == {"a:2": "", "b:1": ""}
    assert rig.sources.pools_to_discover() == []


def test_a_new_pool_that_gives_up_leaves_the_old_one_in_force() -> None:
    rig = SourcesRig(reading("a:1"))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2"))
    assert not rig.pool("a:2", "given_up")
    assert rig.in_force() == ["a:1"]


def test_a_changed_server_that_does_not_serve_is_replaced_at_once() -> None:
    rig = SourcesRig(reading("a:1"))
    rig.pool("a:1", "backing_off")
    rig.sources.source_read(reading("a:2"))
    assert rig.in_force() == ["a:2"]


def test_a_change_taken_back_before_the_new_pool_served_leaves_no_trace() -> None:
    rig = SourcesRig(reading("a:1"))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2"))
    rig.sources.source_read(reading("a:1"))
    assert rig.wanted() == {"a:1": ""}
    assert rig.sources.pools_to_discover() == []


def test_stop_first_is_in_force_at_once_and_starts_after_the_old_pool_however_often_it_is_read() -> None:
    rig = SourcesRig(reading("a:1", stop_first=True))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2", stop_first=True))
    assert rig.in_force() == ["a:2"]
    assert rig.wanted() == {"a:2": "a:1"}
    rig.sources.source_read(reading("a:2", "b:1", stop_first=True))
    assert rig.wanted() == {"a:2": "a:1", "b:1": ""}
    rig.sources.source_read(reading("a:1", stop_first=True))
    assert rig.wanted() == {"a:1": "a:2"}


def test_stop_first_does_not_wait_for_a_pool_that_another_source_wants_still_until_that_one_gives_it_up() -> (
    None
):
    rig = SourcesRig(reading("a:1"), reading("a:1", source=TWO))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2", stop_first=True))
    assert rig.wanted() == {"a:1": "", "a:2": ""}
    assert rig.replaced() == {"a:1": "", "a:2": "a:1"}, "what was leased there is told as lost"
    rig.sources.drop_source(TWO)
    assert rig.wanted() == {"a:2": "a:1"}


def test_pools_of_two_sources_are_wanted_once_and_until_the_last_of_them_goes() -> None:
    rig = SourcesRig(reading("a:1", cap=4), reading("a:1", "b:1", source=TWO, cap=9))
    assert rig.wanted() == {"a:1": "", "b:1": ""}
    assert rig.sources.wanted_pools().max_processes == 9
    rig.sources.drop_source(TWO)
    assert rig.wanted() == {"a:1": ""}
    rig.sources.drop_source(TWO)
    rig.sources.drop_source(ONE)
    assert rig.wanted() == {}


# --- a pool that takes another's place ---------------------------------------------------------------------


@behaviour("lease:reload")
def test_a_pool_says_whose_place_it_takes_from_the_moment_it_is_wanted() -> None:
    rig = SourcesRig(reading("a:1", "b:1"))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2", "b:1"))
    assert rig.replaced() == {"a:1": "", "a:2": "a:1", "b:1": ""}
    rig.pool("a:2", "serving")
    assert rig.replaced() == {"a:2": "a:1", "b:1": ""}
    rig.sources.source_read(reading("a:3", "b:1", stop_first=True))
    assert rig.replaced() == {"a:3": "a:2", "b:1": ""}


@behaviour("lease:reload")
def test_a_pool_that_takes_the_place_of_two_says_both_whichever_agents_came_from_which() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    rig.sources.add_variant(ONE, asking=True, stateless=True)
    rig.tells("a:1", "t")
    rig.tells("a:1?", "u")
    assert rig.in_force(stateless=True) == ["a:1"]
    assert rig.in_force(asking=True, stateless=True) == ["a:1?"]
    rig.sources.source_read(reading("a:2", match=True))
    (new,) = [spec for spec in rig.sources.wanted_pools().pools if spec.key == "a:2*"]
    assert {new.replaces, *new.replaces_too} == {"a:1", "a:1?"}


@behaviour("lease:never-silently")
def test_the_pool_for_both_eras_takes_the_place_of_the_one_that_turned_out_not_to_be_needed() -> None:
    rig = SourcesRig(reading("a:1", match=True))
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    rig.tells("a:1", "t")
    rig.tells("a:1*", "t", era="handshake")
    assert rig.in_force(stateless=True) == ["a:1"]
    assert rig.replaced() == {"a:1": "a:1*"}


def test_only_the_newer_of_two_alternating_pools_replaces_the_other() -> None:
    rig = SourcesRig(reading("a:1"))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2"))
    rig.pool("a:2", "serving")
    rig.pool("a:1", "cold")
    rig.sources.source_read(reading("a:1"))
    assert rig.replaced() == {"a:2": "", "a:1": "a:2"}


def test_a_source_that_comes_later_hides_no_replacement_of_another() -> None:
    rig = SourcesRig(reading("a:1"))
    rig.pool("a:1", "serving")
    rig.sources.source_read(reading("a:2"))
    rig.sources.source_read(reading("a:2", source=TWO))
    assert rig.replaced() == {"a:1": "", "a:2": "a:1"}


# --- classes of agents (rule 12) ---------------------------------------------------------------------------


@behaviour("classes:apart")
def test_the_asking_pool_is_wanted_once_an_agent_can_be_asked_and_stays() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    assert rig.wanted() == {"a:1": ""}
    assert rig.in_force(asking=True) == ["a:1"], "who only looks starts nothing"
    assert rig.sources.add_variant(ONE, asking=True, stateless=False)
    assert not rig.sources.add_variant(ONE, asking=True, stateless=False)
    assert (rig.in_force(), rig.in_force(asking=True)) == (["a:1"], ["a:1?"])
    assert rig.wanted() == {"a:1": "", "a:1?": ""}
    assert rig.replaced() == {"a:1": "", "a:1?": ""}
    assert rig.sources.pools_to_discover() == []


@behaviour("classes:merged")
def test_equal_catalogs_make_one_pool_for_both_and_the_plain_one_goes() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    assert not rig.tells("a:1", "x", "y")
    assert rig.tells("a:1?", "y", "x")
    assert rig.in_force() == rig.in_force(asking=True) == ["a:1?"]
    assert rig.wanted() == {"a:1?": ""}
    assert rig.replaced() == {"a:1?": ""}, "nobody's lease ends by this"


def test_equal_variants_stay_one_pool_when_the_plain_pool_is_gone_and_for_later_sources() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.tells("a:1", "x")
    rig.tells("a:1?", "x")
    rig.registry.forget_pool(PoolKey("a:1"))
    assert not rig.pool("a:1?", "cold")
    assert not rig.tells("a:1?", "x", "z"), "a changed list of the one pool that is left splits nothing"
    rig.sources.source_read(reading("a:1", source=TWO, twins=True))
    assert rig.in_force() == rig.in_force(TWO) == ["a:1?"]
    rig.sources.drop_source(ONE)
    assert rig.in_force(TWO) == ["a:1?"]
    rig.sources.drop_source(TWO)
    rig.sources.source_read(reading("a:1", twins=True))
    assert rig.in_force() == ["a:1"], "of launches that nobody uses nothing is remembered"


@behaviour("classes:apart")
def test_catalogs_that_differ_keep_two_pools_until_they_are_equal() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    assert not rig.tells("a:1", "x")
    assert not rig.tells("a:1?", "x", "sample")
    assert (rig.in_force(), rig.in_force(asking=True)) == (["a:1"], ["a:1?"])
    assert rig.tells("a:1?", "x")
    assert rig.in_force() == ["a:1?"]


@behaviour("classes:merged")
def test_a_server_that_asks_is_not_merged_and_split_again_once_the_plain_pool_greets() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.tells("a:1", "x")
    assert not rig.tells("a:1?", "x", asks=True)
    assert rig.tells("a:1?", "x")
    rig.registry.forget_pool(PoolKey("a:1"))
    rig.pool("a:1", "cold")
    assert rig.tells("a:1?", "x", asks=True), "the plain pool is wanted again"
    assert rig.in_force() == ["a:1?"], "nobody meets a broken window"
    assert rig.sources.pools_to_discover() == ["a:1"]
    assert rig.wanted() == {"a:1": "", "a:1?": ""}
    assert rig.tells("a:1", "x")
    assert (rig.in_force(), rig.in_force(asking=True)) == (["a:1"], ["a:1?"])


def test_a_server_shared_as_session_stays_as_it_is() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.pool("a:1", "serving", "session")
    rig.pool("a:1?", "serving", "session")
    rig.tells("a:1", "x")
    assert not rig.tells("a:1?", "x")
    assert rig.in_force() == ["a:1"]
    rig.pool("a:1", "serving", "serial")
    assert rig.pool("a:1?", "serving", "serial")
    rig.pool("a:1?", "serving", "session")
    assert not rig.tells("a:1?", "x", asks=True), "its leases would be left behind"
    assert rig.in_force() == ["a:1?"]


def test_two_pools_become_one_also_while_nothing_runs() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.tells("a:1?", "x")
    rig.pool("a:1?", "cold")
    assert rig.tells("a:1", "x")
    assert rig.in_force() == ["a:1?"]
    assert rig.sources.pools_to_discover() == []


def test_a_merged_pool_must_be_able_to_serve_before_plain_agents_go_there() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.tells("a:1?", "x")
    rig.pool("a:1?", "given_up")
    rig.registry.catalog_received(
        Catalog(
            PoolKey("a:1"), [ToolOffer("x", RawJson(b"{}"))], "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"
        )
    )
    rig.pool("a:1", "serving")
    assert rig.in_force() == ["a:1"]
    assert rig.pool("a:1?", "serving")
    assert rig.in_force() == ["a:1?"]


def test_a_reload_replaces_both_pools_each_after_its_own_greeting() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.tells("a:1", "x")
    rig.tells("a:1?", "x", "sample")
    rig.sources.source_read(reading("a:2", twins=True))
    assert rig.sources.pools_to_discover() == ["a:2", "a:2?"]
    assert rig.tells("a:2?", "x", "sample")
    assert (rig.in_force(), rig.in_force(asking=True)) == (["a:1"], ["a:2?"])
    assert rig.tells("a:2", "x")
    assert rig.in_force() == ["a:2"]
    assert rig.replaced() == {"a:2": "a:1", "a:2?": "a:1?"}


def test_a_reload_of_a_merged_server_starts_with_two_pools_again() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.tells("a:1", "x")
    rig.tells("a:1?", "x")
    rig.sources.source_read(reading("a:2", twins=True))
    assert rig.in_force() == ["a:1?"]
    assert rig.replaced() == {"a:1?": "", "a:2": "a:1?", "a:2?": "a:1?"}
    rig.tells("a:2?", "x")
    rig.tells("a:2", "x")
    assert rig.in_force() == rig.in_force(asking=True) == ["a:2?"]
    assert rig.wanted() == {"a:2?": ""}


# --- servers that are spoken to in each agent's era ------------------------------------------------------


def matched() -> SourcesRig:
    """One server that may speak both eras, which an agent of each uses."""
    rig = SourcesRig(reading("a:1", match=True, twins=True))
    rig.tells("a:1", "t")
    assert rig.in_force(stateless=True) == ["a:1"], "nobody of that era is here"
    assert rig.wanted() == {"a:1": ""}
    assert rig.sources.add_variant(ONE, asking=False, stateless=True)
    assert not rig.sources.add_variant(ONE, asking=False, stateless=True)
    return rig


@behaviour("eras:match")
def test_an_agent_of_the_stateless_era_has_a_pool_of_its_own_where_the_server_speaks_both() -> None:
    rig = matched()
    assert rig.in_force() == ["a:1"]
    assert rig.in_force(stateless=True) == ["a:1*"]
    assert rig.wanted() == {"a:1": "", "a:1*": ""}
    rig.tells("a:1*", "t", era="stateless")
    assert rig.in_force(stateless=True) == ["a:1*"]
    assert rig.in_force() == ["a:1"]


@behaviour("eras:match")
def test_a_stateless_agent_that_can_be_asked_uses_the_same_pool() -> None:
    rig = matched()
    assert rig.sources.add_variant(ONE, asking=True, stateless=True)
    assert rig.in_force(asking=True, stateless=True) == ["a:1*"]
    assert rig.wanted() == {"a:1": "", "a:1*": ""}, "no agent of the handshake era can be asked here"
    assert rig.sources.add_variant(ONE, asking=True, stateless=False)
    assert rig.in_force(asking=True) == ["a:1?"]


@behaviour("eras:match")
def test_a_server_that_turns_out_to_know_the_handshake_only_has_no_pool_for_the_other_era() -> None:
    rig = matched()
    assert rig.tells("a:1*", "t")
    assert rig.in_force(stateless=True) == ["a:1"]
    assert rig.wanted() == {"a:1": ""}
    assert rig.replaced() == {"a:1": "a:1*"}, "a lease there ends"
    rig.registry.forget_pool(PoolKey("a:1*"))
    rig.sources.source_read(reading("a:1", match=True, twins=True))
    assert rig.in_force(stateless=True) == ["a:1"], "it is not tried again while the launch is in use"


@behaviour("eras:match")
def test_a_server_that_turns_out_to_be_stateless_only_has_one_pool_for_both() -> None:
    rig = SourcesRig(reading("a:1", match=True, twins=True))
    rig.tells("a:1", "t", era="stateless")
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    assert rig.in_force(stateless=True) == ["a:1"]
    assert rig.wanted() == {"a:1": ""}


@behaviour("eras:asked-once")
def test_a_server_that_is_known_to_speak_one_era_has_one_pool_without_being_asked() -> None:
    rig = SourcesRig(reading("a:1", match=True, twins=True))
    assert not rig.pool("a:1", "cold"), "nobody knows yet"
    rig.pool("a:1", "cold", both=True)
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    assert rig.in_force(stateless=True) == ["a:1"]
    assert rig.wanted() == {"a:1": ""}
    assert not rig.pool("a:1", "cold"), "a new supervisor has not read what is known"
    assert rig.pool("a:1", "cold", both=False), "it is not known any more"
    assert rig.in_force(stateless=True) == ["a:1*"]


@behaviour("eras:asked-once")
def test_knowledge_of_a_program_does_not_overrule_the_catalog_of_its_server() -> None:
    rig = matched()
    rig.tells("a:1*", "t", era="stateless")
    assert not rig.pool("a:1", "serving", both=True)
    assert rig.in_force(stateless=True) == ["a:1*"]


@behaviour("eras:match")
def test_a_server_that_does_not_start_twice_serves_agents_of_both_eras_from_one_pool() -> None:
    rig = matched()
    assert not rig.pool("a:1*", "starting")
    assert rig.pool("a:1*", "backing_off")
    assert rig.in_force(stateless=True) == ["a:1"]
    assert rig.wanted() == {"a:1": ""}
    alone = SourcesRig(reading("a:1", match=True))
    alone.sources.add_variant(ONE, asking=False, stateless=True)
    assert not alone.pool("a:1*", "backing_off"), "the other one does not run: nothing says that it would"
    assert alone.in_force(stateless=True) == ["a:1*"]


def test_knowledge_of_a_launch_counts_for_a_pool_variant_added_later() -> None:
    rig = SourcesRig(reading("a:1"))
    rig.pool("a:1", "serving", both=True)
    rig.sources.source_read(reading("a:1", match=True))
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    assert rig.in_force(stateless=True) == ["a:1"]


def test_an_agent_stays_with_the_pool_it_has_until_the_one_for_both_serves() -> None:
    rig = SourcesRig(reading("a:1", match=True))
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    rig.pool("a:1*", "serving")
    rig.tells("a:1*", "t")
    assert rig.in_force(stateless=True) == ["a:1*"]
    assert rig.sources.pools_to_discover() == ["a:1"]
    assert rig.tells("a:1", "t")
    assert rig.in_force(stateless=True) == ["a:1"]


def test_another_launch_is_tried_anew() -> None:
    rig = matched()
    rig.tells("a:1*", "t")
    rig.sources.source_read(reading("a:2", match=True))
    assert rig.sources.pools_to_discover() == ["a:2", "a:2*"]
    rig.tells("a:2", "t")
    rig.tells("a:2*", "t", era="stateless")
    assert rig.in_force() == ["a:2"]
    assert rig.in_force(stateless=True) == ["a:2*"]


def test_a_server_whose_era_is_configured_is_one_for_agents_of_both_eras() -> None:
    rig = SourcesRig(reading("a:1", twins=True))
    rig.sources.add_variant(ONE, asking=True, stateless=True)
    assert rig.in_force(asking=True, stateless=True) == ["a:1?"]
    rig.sources.add_variant(ONE, asking=False, stateless=True)
    assert rig.in_force(stateless=True) == ["a:1"]


def test_a_dropped_source_takes_all_its_pool_variants_along() -> None:
    rig = matched()
    rig.sources.drop_source(ONE)
    assert rig.wanted() == {}


# --- what was told to an earlier carpool -------------------------------------------------------------------


def told_before(key: str, *tools: str) -> dict[PoolKey, Catalog]:
    offers = [ToolOffer(tool, RawJson(b"{}")) for tool in tools]
    return {PoolKey(key): Catalog(PoolKey(key), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25")}


def listed(rig: SourcesRig) -> list[str]:
    return [tool.tool for tool in rig.registry.view(rig.sources.scope(ONE)).tools]


def test_a_cached_catalog_does_not_let_a_new_pool_replace_one_that_serves() -> None:
    rig = SourcesRig(reading("a1"))
    rig.tells("a1", "x")
    rig.sources.source_read(replace(reading("a2"), kept=told_before("a2", "y")))
    assert rig.in_force() == ["a1"]
    assert rig.sources.pools_to_discover() == ["a2"]
    assert rig.tells("a2", "y")
    assert rig.in_force() == ["a2"]


def test_equal_cached_catalogs_do_not_merge_two_pool_variants() -> None:
    kept = told_before("a1", "x") | told_before("a1?", "x")
    rig = SourcesRig(replace(reading("a1", twins=True), kept=kept))
    rig.sources.add_variant(ONE, asking=True, stateless=False)
    rig.pool("a1", "cold")
    rig.pool("a1?", "cold")
    assert rig.in_force() == ["a1"]
    assert rig.in_force(asking=True) == ["a1?"]


def test_a_cached_catalog_goes_with_the_last_source_that_brought_it() -> None:
    rig = SourcesRig(replace(reading("a1"), kept=told_before("a1", "x")))
    assert listed(rig) == ["x"]
    rig.sources.source_read(reading("a1", source=TWO))
    changed = rig.sources.source_read(reading("a1"))
    assert list(changed.values()) == [frozenset({"tools"})]
    assert listed(rig) == []


def test_a_server_is_unset_where_nothing_else_is_wrong_with_it_in_any_source() -> None:
    one = replace(reading(), misconfigured={A: "unset here", B: "unset here"}, unset=frozenset({A, B}))
    two = replace(reading(source=TWO), misconfigured={A: "wrong"}, untrusted=frozenset({A}))
    for first, second in ((one, two), (two, one)):
        amiss = SourcesRig(first, second).sources.problems()
        assert amiss.misconfigured == {A: "wrong", B: "unset here"}
        assert (amiss.unset, amiss.untrusted) == (frozenset({B}), frozenset({A}))


@behaviour("looking:own-view")
def test_the_one_who_asks_sees_the_problems_of_its_own_source_and_no_others() -> None:
    lacking = replace(reading(), misconfigured={A: "unset here", B: "unset here"}, unset=frozenset({A, B}))
    able = reading("a1", source=TWO)
    rig = SourcesRig(lacking, able)
    assert rig.sources.problems(frozenset({TWO})).misconfigured == {A: "unset here", B: "unset here"}
    assert rig.sources.problems(frozenset({TWO}), TWO).misconfigured == {B: "unset here"}
    wrong = replace(reading(source=TWO), misconfigured={A: "wrong"})
    amiss = SourcesRig(lacking, wrong).sources.problems(frozenset({TWO}), TWO)
    assert (amiss.misconfigured, amiss.unset) == ({A: "wrong", B: "unset here"}, frozenset({B}))


@behaviour("children:layers-start-in-turn")
@pytest.mark.parametrize("order", [(ONE, TWO), (TWO, ONE)])
def test_a_pool_that_the_users_file_has_too_is_of_that_layer(order: tuple[SourceId, SourceId]) -> None:
    """Else a project could put the servers of all others behind its own."""
    of_project = reading("a:1", "b:1", source=TWO)
    of_project = replace(of_project, specs=tuple(replace(each, layer="/p") for each in of_project.specs))
    both = {ONE: reading("a:1"), TWO: of_project}
    rig = SourcesRig(*(both[source] for source in order))
    rig.sources.check()
    layers = {each.key: each.layer for each in rig.sources.wanted_pools().pools}
    assert layers == {"a:1": "", "b:1": "/p"}
    rig.sources.drop_source(ONE)
    rig.sources.check()
    assert {each.layer for each in rig.sources.wanted_pools().pools} == {"/p"}
