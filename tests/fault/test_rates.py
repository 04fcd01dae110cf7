"""Rates of saving, against published figures and failures that are drawn."""

import math

import pytest
from click.testing import CliRunner

from hal.core.errors import InvalidCall
from hal_tools.cli import main
from stack.fault.rates import Tier, best_interval_s, goodput, simulated

HOUR_S = 3600.0


@pytest.mark.parametrize(("minutes", "wanted"), [(3, 0.681), (20, 0.279)])
def test_an_hour_between_failures(minutes, wanted):
    tier = Tier(minutes * 60, minutes * 60)
    assert goodput(tier, HOUR_S) == pytest.approx(wanted, abs=0.001)
    every_s = best_interval_s(tier.save_s, HOUR_S)
    assert simulated([tier], [every_s], HOUR_S, 5000, seed=3) == pytest.approx(wanted, abs=0.01)


def test_the_best_interval_is_the_best():
    for save_s in (1.0, 60.0, 600.0):
        tier, every_s = Tier(save_s, save_s), best_interval_s(save_s, HOUR_S)
        best = goodput(tier, HOUR_S)
        others = [goodput(tier, HOUR_S, every_s * factor) for factor in (0.5, 0.8, 1.25, 2.0)]
        assert max(others) < best
        tried = max(goodput(tier, HOUR_S, math.exp(k / 20)) for k in range(40, 200))
        assert best > tried - 1e-3


def test_copies_in_memory_raise_what_counts():
    far, near, mtbf_s = Tier(180, 600), Tier(1, 10, 0.95), 3 * HOUR_S
    alone = simulated([far], [best_interval_s(180, mtbf_s)], mtbf_s, 1500)
    assert simulated([near, far], [60, 2 * HOUR_S], mtbf_s, 1500) > alone + 0.1


def test_what_is_no_rate():
    with pytest.raises(InvalidCall):
        Tier(-1, 0)
    with pytest.raises(InvalidCall):
        best_interval_s(1, 0)
    with pytest.raises(InvalidCall):
        simulated([Tier(1, 1)], [], 1, 1)


def test_the_command():
    done = CliRunner().invoke(main, ["goodput", "--mtbf", "60", "--save", "3", "--restore", "3"])
    assert "goodput 68.1% (Daly, 2006)" in done.output
    done = CliRunner().invoke(main, ["goodput", "--hosts", "16"])
    assert "3 of 16 hosts lost at once, 2 copies: 80.0% in groups, 62.9% in a ring" in done.output
    done = CliRunner().invoke(main, ["goodput", "--hosts", "16"])
    assert "3 of 16 hosts lost at once, 2 copies: 80.0% in groups, 62.9% in a ring" in done.output
