"""Builds of a driver that wait to be kept: in a cache alone, and not without end."""

from hal.cache import Cache
from hal.core.values import KernelSource
from hal.hosted import kept
from hal.hosted.kept import KeptBuilds


def source(number):
    return KernelSource("text/1", str(number), "f", ())


def test_only_the_newest_builds_are_held_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "_MOST", 4)
    builds = KeptBuilds[bytes](Cache(tmp_path, "driver"), "driver 1")
    for number in range(10):
        builds.note(source(number), b"%d" % number)
    builds.keep(lambda built: built)
    found = [builds.get(source(number)) for number in range(10)]
    assert found == [None] * 6 + [b"6", b"7", b"8", b"9"]
    assert KeptBuilds[bytes](Cache(tmp_path, "driver"), "driver 2").get(source(9)) is None
    builds.remove(source(9))
    assert builds.get(source(9)) is None


def test_without_a_cache_no_build_is_held():
    builds, seen = KeptBuilds[bytes](Cache("", "driver")), []
    builds.note(source(1), b"1")
    builds.keep(seen.append)
    assert seen == []
