"""The version that the next process of a pool is offered first."""

from carpool_supervisor.core.model.version_offers import VERSIONS, VersionOffers
from tests.behaviours import behaviour


@behaviour("versions:exit")
def test_each_version_is_offered_to_one_process_and_then_no_other_is_left() -> None:
    offers = VersionOffers()
    offered = [offers.next]
    while offers.failed([offers.next], offers.next):
        offered.append(offers.next)
    assert offered == list(VERSIONS)
    assert offers.next == VERSIONS[0]
    assert not offers.failed([VERSIONS[0]], VERSIONS[0]), "each one once"


@behaviour("versions:exit")
def test_a_version_that_a_process_was_offered_after_a_refusal_and_did_not_answer_is_next() -> None:
    offers = VersionOffers()
    assert offers.failed([VERSIONS[0]], VERSIONS[3])
    assert offers.next == VERSIONS[3]
    assert offers.failed([VERSIONS[3]], VERSIONS[3])
    assert offers.next == VERSIONS[1]


@behaviour("versions:exit")
def test_the_version_of_a_process_that_has_greeted_is_kept() -> None:
    offers = VersionOffers()
    assert offers.failed([VERSIONS[0]], VERSIONS[0])
    offers.accepted(VERSIONS[1])
    assert not offers.failed([VERSIONS[1]], VERSIONS[1]), "its end has another reason"
    assert offers.next == VERSIONS[1]
