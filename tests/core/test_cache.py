"""Cache folders: whole entries or none, and nothing from a folder that others could have written.

Where a test needs another user, it runs as root and gives files away.
"""

import os
import resource
import select
import signal
import stat
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from hal import cache as rules
from hal.cache import Cache, UntrustedCache
from hal.files import clear_parts, write_whole

DATA = bytes(range(256)) * 40
STRANGER = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")


@pytest.fixture
def cache(tmp_path):
    made = Cache(tmp_path / "cache", "inner")
    made.write("entry", DATA)
    return made


@contextmanager
def masked(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(top):
    return {p.name: stat.S_IMODE(p.stat().st_mode) for p in (top, *top.rglob("*"))}


def entry(cache, name="entry"):
    return cache.path / name


DAY_S = 86400


def used(cache, name, days):
    """Let an entry have been used so many days ago."""
    then = time.time() - days * DAY_S
    os.utime(entry(cache, name), (then, then))


def test_a_folder_that_is_too_full_loses_what_was_not_used_for_longest(tmp_path, monkeypatch):
    whole = len(DATA) + 65  # with its seal and a line's end
    monkeypatch.setattr(rules, "MOST_NBYTES", 9 * whole)
    cache = Cache(tmp_path, "inner")
    for i in range(9):
        cache.write(f"{i}", DATA)
        used(cache, f"{i}", 20 - i)
    (cache.path / "folder").mkdir()
    (cache.path / "link").symlink_to(tmp_path / "elsewhere")
    others = {"folder", "link"}
    Cache(tmp_path, "inner").write("9", DATA)
    assert set(cache.names()) == {*"0123456789", *others}  # it was full, and not too full
    assert cache.get("0") == DATA  # from now on the newest but one
    monkeypatch.setattr(rules, "MOST_NBYTES", 8 * whole)
    Cache(tmp_path, "inner").write("10", DATA)
    assert set(cache.names()) == {"0", "5", "6", "7", "8", "9", "10", *others}


def test_a_use_is_noted_once_a_day(cache):
    used(cache, "entry", 0.5)
    before = entry(cache).stat().st_mtime
    assert cache.get("entry") == DATA
    assert entry(cache).stat().st_mtime == before
    used(cache, "entry", 1.5)
    assert cache.get("entry") == DATA
    assert entry(cache).stat().st_mtime > before


def test_an_entry_comes_back_and_another_replaces_it(cache):
    assert cache.get("entry") == DATA
    cache.write("entry", b"")
    assert cache.get("entry") == b""
    assert cache.names() == ["entry"]
    cache.remove("entry")
    cache.remove("entry")
    assert (cache.get("entry"), cache.names()) == (None, [])


def test_an_empty_directory_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = Cache("", "inner")
    cache.put("entry", DATA)
    assert (cache.get("entry"), cache.names(), cache.is_open) == (None, [], False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_folders_that_are_made_are_the_users_alone(tmp_path, mask):
    with masked(mask):
        Cache(tmp_path / "a" / "b" / "c", "d", "e").write("entry", DATA)
    made = modes(tmp_path / "a")
    assert made.pop("entry") == 0o600
    assert set(made.values()) == {0o700}
    assert set(made) == set("abcde")


DAMAGES = {
    "empty": lambda d: b"",
    "cut": lambda d: d[:-1],
    "half": lambda d: d[: len(d) // 2],
    "flipped": lambda d: bytes([d[0] ^ 1]) + d[1:],
    "flipped-content": lambda d: d[:-1] + bytes([d[-1] ^ 1]),
    "longer": lambda d: d + b"x",
    "no-seal": lambda d: d.partition(b"\n")[2],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_removed(cache, name):
    entry(cache).write_bytes(DAMAGES[name](entry(cache).read_bytes()))
    assert cache.get("entry") is None
    assert cache.names() == []
    cache.put("entry", DATA)
    assert cache.get("entry") == DATA


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_what_is_no_file_is_no_entry_and_nobody_waits_for_it(cache, tmp_path, kind):
    whole = entry(cache).read_bytes()
    entry(cache).unlink()
    if kind == "folder":
        entry(cache).mkdir()
    elif kind == "pipe":
        os.mkfifo(entry(cache))
    else:
        target = tmp_path / "target"
        entry(cache).symlink_to(target)
        if kind == "link":
            target.write_bytes(whole)
    assert cache.get("entry") is None
    cache.put("entry", DATA)
    assert cache.get("entry") == (None if kind == "folder" else DATA)
    assert not (tmp_path / "target").exists() or (tmp_path / "target").read_bytes() == whole


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("which", ["cache", "inner"])
def test_a_folder_that_others_may_write_is_refused_with_a_sentence(cache, tmp_path, which, mode):
    folder = tmp_path / "cache" if which == "cache" else cache.path
    folder.chmod(mode)
    words = rf"others than .* may write the cache folder {folder} \(mode {mode:04o}\).*chmod go-w"
    with pytest.warns(UntrustedCache, match=words):
        assert cache.get("entry") is None
    with pytest.warns(UntrustedCache, match="HAL_CACHE_DIR"):
        assert cache.names() == []
    cache.put("other", DATA)
    cache.remove("entry")
    with pytest.raises(OSError, match=words):
        cache.write("other", DATA)
    assert os.listdir(cache.path) == ["entry"], "nothing in it is touched"
    folder.chmod(0o700)
    assert cache.get("entry") == DATA


def test_it_is_said_once(cache):
    cache.path.chmod(0o777)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for _ in range(3):
            assert cache.get("entry") is None
    assert len(heard) == 1


@root
@pytest.mark.parametrize("which", ["cache", "inner"])
def test_another_users_folder_is_refused_with_a_sentence(cache, tmp_path, which):
    folder = tmp_path / "cache" if which == "cache" else cache.path
    os.chown(folder, STRANGER, -1)
    words = rf"the cache folder {folder} belongs to .*user {STRANGER}.*, not to .*user 0.*HAL_CACHE"
    with pytest.warns(UntrustedCache, match=words):
        assert cache.get("entry") is None
    cache.put("other", DATA)
    assert os.listdir(cache.path) == ["entry"]


@root
def test_another_users_entry_is_removed(cache):
    os.chown(entry(cache), STRANGER, -1)
    with pytest.warns(UntrustedCache, match=rf"cache file {entry(cache)} belongs to .*{STRANGER}"):
        assert cache.get("entry") is None
    assert cache.names() == []


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_may_write_is_removed(cache, mode):
    entry(cache).chmod(mode)
    with pytest.warns(UntrustedCache, match=rf"may write the cache file {entry(cache)}"):
        assert cache.get("entry") is None
    assert cache.names() == []


def test_a_link_to_a_folder_is_followed_for_the_directory_and_not_within_it(cache, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "cache")
    assert Cache(link, "inner").get("entry") == DATA
    (tmp_path / "cache" / "other").symlink_to(cache.path)
    assert Cache(tmp_path / "cache", "other").get("entry") is None


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_place_that_cannot_be_a_folder_is_no_error(tmp_path, where):
    (tmp_path / "file").write_text("this is no folder")
    cache = Cache(tmp_path / where, "inner")
    cache.put("entry", DATA)
    assert (cache.get("entry"), cache.names()) == (None, [])
    assert (tmp_path / "file").read_text() == "this is no folder"


@contextmanager
def small_files(nbytes):
    """Files can be no longer: the kernel refuses what is written behind."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_cannot_be_written_whole_leaves_nothing(cache):
    with small_files(2000):
        cache.put("entry", DATA[::-1])
        cache.put("other", DATA)
    assert os.listdir(cache.path) == ["entry"]
    assert cache.get("entry") == DATA


@root
def test_a_full_disk_leaves_nothing(tmp_path):
    """A file system of 64 KiB, in a mount namespace of a process of its own."""
    text = f"""
import ctypes, os
from hal.cache import Cache
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None):
    raise SystemExit(77)
if libc.mount(b"tmpfs", {str(tmp_path).encode()!r}, b"tmpfs", 0, b"size=64k"):
    raise SystemExit(77)
cache = Cache({str(tmp_path)!r} + "/cache")
for number in range(30):
    cache.put(str(number), os.urandom(9000))
kept = cache.names()
assert os.listdir(cache.path) and sorted(os.listdir(cache.path)) == kept, os.listdir(cache.path)
assert 0 < len(kept) < 30 and all(cache.get(name) for name in kept)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("no mounts in this environment")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_killed_writers_part_is_removed_and_a_living_ones_stays(tmp_path):
    """The writer stops in the middle of its file, and is killed there."""
    text = f"""
import os, sys, time
from hal.files import write_whole
def parts():
    yield b"x" * 100_000
    print("begun", flush=True)
    time.sleep(60)
write_whole(os.open({str(tmp_path)!r}, os.O_RDONLY), "entry", parts(), 0o600)
"""
    writer = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    try:
        assert select.select([writer.stdout], [], [], 60)[0]
        assert os.read(writer.stdout.fileno(), 100).startswith(b"begun")
        (part,) = os.listdir(tmp_path)
        folder = os.open(tmp_path, os.O_RDONLY)
        for name in (None, "entry"):
            clear_parts(folder, name)
            assert os.listdir(tmp_path) == [part]
    finally:
        writer.kill()
        writer.wait(20)
        writer.stdout.close()
    clear_parts(folder, "another")
    clear_parts(folder, "ent.y")
    assert os.listdir(tmp_path) == [part]
    clear_parts(folder, "entry")
    assert os.listdir(tmp_path) == []
    os.close(folder)


def test_a_cache_clears_what_killed_writers_left(cache):
    left = cache.path / f".entry.{'0' * 16}.part"
    left.write_bytes(b"half")
    Cache(cache.path.parent, "inner").put("other", DATA)
    assert not left.exists()


@pytest.mark.slow
def test_writers_clearers_and_readers_at_once(tmp_path):
    """Nobody's file is taken for a dead writer's."""
    folder = os.open(tmp_path, os.O_RDONLY)
    whole = {bytes([65 + n]) * (5000 + n) for n in range(4)}

    def work(number):
        data = bytes([65 + number]) * (5000 + number)
        for _ in range(60):
            write_whole(folder, "entry", (data,), 0o600)
            clear_parts(folder)
            assert (tmp_path / "entry").read_bytes() in whole
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
    assert os.listdir(tmp_path) == ["entry"]
    os.close(folder)


@pytest.mark.parametrize("mask", [0, 0o022, 0o027])
def test_a_files_mode_is_the_umasks_or_exactly_what_was_asked(tmp_path, mask):
    folder = os.open(tmp_path, os.O_RDONLY)
    with masked(mask):
        write_whole(folder, "new", (DATA,), 0o666)
        write_whole(folder, "same", (DATA,), 0o664, exactly=True, durable=True)
    os.close(folder)
    found = modes(tmp_path)
    assert (found["new"], found["same"]) == (0o666 & ~mask, 0o664)
