"""Which hardware a plugin's devices are."""

import pytest

from hal.core.errors import PluginError
from hal.hosted.places import places

LINES = ("one", "two", "three")


@pytest.mark.parametrize(
    ("said", "positions"),
    [("0", [0, 1, 2]), ("2", [0, 0]), ("4 of 1", [1] * 4), ("1 of 2", [2] * 3)],
)
def test_one_of_several_devices_in_place_of_all(monkeypatch, said, positions):
    monkeypatch.setenv("TIMES", said)
    found = places(LINES, "TIMES")
    assert [(place.index, place.position) for place in found] == list(enumerate(positions))
    assert {(place.line, place.count) for place in found} == {
        (LINES[position], len(positions)) for position in positions
    }


@pytest.mark.parametrize("said", ["2 of 3", "2 of", "of 1", "2 of one", "-1"])
def test_no_such_device_to_present(monkeypatch, said):
    monkeypatch.setenv("TIMES", said)
    with pytest.raises(PluginError, match="TIMES"):
        places(LINES, "TIMES")
