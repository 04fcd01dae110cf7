"""The emulator keeps to the published figures."""

import pytest
from hal_plugin_sunway import figures

QUICK = ("peaks", "rings", "allocations")
MEASURED = ("one_cpe", "alignment", "rma", "pipelines")


@pytest.mark.parametrize("name", QUICK)
def test_figures_of_the_model(chip, name):
    for row in getattr(figures, name)(chip):
        assert row.holds, row


@pytest.mark.parametrize("name", MEASURED)
def test_figures_of_programs(bench, name):
    for row in getattr(figures, name)(bench):
        assert row.holds, row


@pytest.mark.slow
def test_figures_of_all_cpes(bench):
    for row in figures.dma(bench):
        assert row.holds, row
