"""The page of settings is what the table says."""

from pathlib import Path

from carpool_protocol.config.pages import formats_page
from carpool_protocol.config.pages.settings_page import page
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `python -m carpool_protocol.config.pages.settings_page > docs/settings.md`"
    )


def test_the_page_has_a_row_for_every_setting() -> None:
    for setting in (*FILE_SETTINGS, *SERVER_SETTINGS):
        assert f"| `{setting.key}` |" in page()


def test_the_page_of_other_programs_files_is_current() -> None:
    assert (PAGE.parent / "shapes.md").read_text(encoding="utf-8") == formats_page.page(), (
        "run `python -m carpool_protocol.config.pages.formats_page > docs/shapes.md`"
    )
