"""The page of states is what the table says."""

from pathlib import Path

from carpool_supervisor.core.model.lifecycle import InstanceState, LifecycleEvent
from carpool_supervisor.states_page import page

PAGE = Path(__file__).parent.parent / "docs" / "states.md"


def test_the_page_of_states_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it again: python -m carpool_supervisor.states_page > docs/states.md"
    )


def test_the_page_names_every_state_and_every_happening() -> None:
    for word in (*InstanceState, *LifecycleEvent):
        assert f"| {word} |" in page()
