"""Tests that take turns: each commit runs half of them, and each has its turn."""

from tests import draw


def test_of_two_neighbours_one_has_its_turn_and_each_has_it_some_time(monkeypatch):
    monkeypatch.delenv("HAL_TEST_ALL", raising=False)
    units = ["a", "b", "c", "d", "e"]
    seen = set()
    for seed in range(20):
        monkeypatch.setattr(draw, "SEED", seed)
        chosen = draw.in_turn(units)
        assert chosen == draw.in_turn(units)
        assert [len(chosen & {*pair}) for pair in (units[:2], units[2:4], units[4:])] == [1, 1, 1]
        seen |= chosen
    assert seen == {*units}


def test_where_all_is_asked_for_none_waits(monkeypatch):
    monkeypatch.setenv("HAL_TEST_ALL", "1")
    assert draw.in_turn(["a", "b", "c"]) == {"a", "b", "c"}
