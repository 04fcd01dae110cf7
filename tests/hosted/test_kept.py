"""Builds of a driver that wait to be kept: in a cache alone, and not without end."""

from hal.cache import Cache
from hal.core.values import KernelSource
from hal.hosted import kept
from hal.hosted.kept import KeptBuilds


def source(number):
    return KernelSource("text/1", str(number), "f", ())


def test_the_newest_builds_are_held_and_all_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_MOST", 4)
    asked = []
    builds = KeptBuilds[bytes](Cache(tmp_path, "driver"), lambda b: asked.append(b) or b, "1")
    for number in range(10):
        builds.note(source(number), b"%d" % number, 10)
    assert asked == [b"%d" % number for number in range(6)]
    assert [builds.get(source(number)) for number in range(10)] == [*asked, *[None] * 4]
    builds.keep()
    assert [builds.get(source(n)) for n in range(10)] == [b"%d" % n for n in range(10)]
    other = KeptBuilds[bytes](Cache(tmp_path, "driver"), bytes, "2")
    assert other.get(source(9)) is None
    builds.remove(source(9))
    assert builds.get(source(9)) is None


def test_without_a_cache_no_build_is_held():
    seen = []
    builds = KeptBuilds[bytes](Cache("", "driver"), lambda b: seen.append(b))
    builds.note(source(1), b"1", 1)
    builds.keep()
    assert seen == []


def test_those_of_short_texts_are_kept_first(tmp_path, monkeypatch):
    """A driver that takes as long for a binary as the text is."""
    clock = Clock()
    monkeypatch.setattr(kept, "time", clock)
    monkeypatch.setattr(kept, "_KEEPING_S", 6)
    builds = KeptBuilds[int](Cache(tmp_path, "driver"), clock.binary)
    for number in (4, 1, 9, 3):
        builds.note(source(number), number, number)
    builds.keep()
    assert [builds.get(source(n)) is not None for n in (1, 3, 4, 9)] == [True, True, True, False]
    assert clock.now_s == 8


class Clock:
    """The time, which goes on while a driver makes a binary."""

    def __init__(self) -> None:
        self.now_s = 0

    def monotonic(self) -> int:
        return self.now_s

    def binary(self, length: int) -> bytes:
        self.now_s += length
        return b"%d" % length
