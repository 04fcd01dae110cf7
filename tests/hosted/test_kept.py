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
        builds.note(source(number), b"%d" % number)
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
    builds.note(source(1), b"1")
    builds.keep()
    assert seen == []
