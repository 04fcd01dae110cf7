"""Tests that take turns: each commit runs a third of them, and each has its turn."""

from tests import draw


def test_of_three_neighbours_one_has_its_turn_and_each_has_it_some_time(monkeypatch):
    monkeypatch.delenv("HAL_TEST_ALL", raising=False)
    units = ["a", "b", "c", "d", "e", "f", "g", "h"]
    seen = set()
    for seed in range(40):
        monkeypatch.setattr(draw, "SEED", seed)
        chosen = draw.in_turn(units)
        assert chosen == draw.in_turn(units)
        assert [len(chosen & {*some}) for some in (units[:3], units[3:6], units[6:])] == [1, 1, 1]
        seen |= chosen
    assert seen == {*units}


def test_where_all_is_asked_for_none_waits(monkeypatch):
    monkeypatch.setenv("HAL_TEST_ALL", "1")
    assert draw.in_turn(["a", "b", "c"]) == {"a", "b", "c"}
