"""The emulator keeps to the published figures, and the page that says so is what it gives."""

from pathlib import Path

import pytest
from hal_plugin_sunway import figures

PAGE = Path(__file__).parents[3] / "docs" / "sunway-figures.md"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(chip):
    return list(figures.rows(chip))


def test_every_published_figure_is_met(rows):
    missed = [row for row in rows if not row.holds]
    assert not missed
    assert len(rows) > 40


def test_the_page_is_up_to_date(chip, rows):
    advice = f"run python -m hal_plugin_sunway.figures > {PAGE.name}"
    assert PAGE.read_text() == figures.page(chip, rows) + "\n", advice
