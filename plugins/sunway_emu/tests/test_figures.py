"""The emulator keeps to the published figures, and the page that says so is what it gives."""

import re
from pathlib import Path

import pytest
from hal_plugin_sunway import figures

PAGE = Path(__file__).parents[3] / "docs" / "sunway-figures.md"

NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]\d+)?)")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(chip):
    return list(figures.rows(chip))


def test_every_published_figure_is_met(rows):
    missed = [row for row in rows if not row.holds]
    assert not missed
    assert len(rows) > 40


def test_the_page_is_up_to_date(chip, rows):
    """Its words are equal, and its figures to their last digit: where buffers begin in lines of
    memory is the host's, and moves a time by less than that."""
    advice = f"run python -m hal_plugin_sunway.figures > {PAGE.name}"
    page, now = (NUMBER.split(text) for text in (PAGE.read_text(), figures.page(chip, rows) + "\n"))
    assert page[::2] == now[::2], advice
    assert [float(n) for n in page[1::2]] == pytest.approx(
        [float(n) for n in now[1::2]], rel=1e-3
    ), advice
