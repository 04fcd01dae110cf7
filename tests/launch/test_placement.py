"""Copies of a host's state on other hosts, beside every way to lose some of them."""

from itertools import combinations

import pytest

from hal.core.errors import InvalidCall
from stack.launch.placement import grouped, ringed


@pytest.mark.parametrize("placed", [grouped, ringed])
def test_the_probability_is_the_share_of_all_ways(placed):
    for size in range(1, 9):
        hosts = tuple(range(10, 10 + size))
        for copies in range(1, size + 1):
            found = placed(hosts, copies)
            held = [set(found.holders(host)) for host in hosts]
            assert {len(own) for own in held} == {copies}
            assert all(host in own for host, own in zip(hosts, held, strict=True))
            for lost in range(size + 1):
                ways = [set(gone) for gone in combinations(hosts, lost)]
                well = [all(own - gone for own in held) for gone in ways]
                assert found.survives(lost) == pytest.approx(sum(well) / len(ways))


def test_what_the_paper_says_of_16_hosts():
    hosts = range(16)
    assert grouped(hosts, 2).survives(2) == pytest.approx(0.933, abs=5e-4)
    assert grouped(hosts, 2).survives(3) == pytest.approx(0.8)
    assert ringed(hosts, 2).survives(2) < grouped(hosts, 2).survives(2)


def test_what_is_no_placement():
    with pytest.raises(InvalidCall, match="3 copies are for 3 hosts or more, not 2"):
        grouped((0, 1), 3)
    with pytest.raises(InvalidCall, match="5 of 4 hosts cannot be lost"):
        grouped(range(4), 2).survives(5)
    with pytest.raises(InvalidCall, match="host 7 is not among those that hold copies"):
        grouped(range(4), 2).holders(7)
