"""A cache folder may hold anything, go away or take nothing: what it gives is whole or nothing."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hal_plugin_sunway import toolchain
from hal_plugin_sunway.kept import fetch, keep

from hal.core.errors import CompileError

TEXT = "void f(void *v) {}"


@pytest.fixture
def built(tmp_path):
    file = tmp_path / "built" / "program.so"
    file.parent.mkdir()
    file.write_bytes(bytes(range(256)))
    return file


def copied(cache, folder):
    """What the cache gives for a program that is not there yet; None for nothing."""
    file = folder / "program.so"
    return file.read_bytes() if fetch(str(cache), file) else None


def test_what_was_kept_comes_back(built, tmp_path):
    cache = tmp_path / "not" / "there" / "yet"
    assert copied(cache, tmp_path) is None
    keep(str(cache), built)
    assert copied(cache, tmp_path) == built.read_bytes()
    assert [file.name for file in cache.iterdir()] == ["program.so"]


def flipped(data):
    return bytes([data[0] ^ 1]) + data[1:]


DAMAGES = {
    "empty": lambda d: b"",
    "short": lambda d: d[:-1],
    "flipped": flipped,
    "long": lambda d: d + b"x",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_not_there_and_is_kept_anew(built, tmp_path, name):
    cache = tmp_path / "cache"
    keep(str(cache), built)
    file = cache / built.name
    file.write_bytes(DAMAGES[name](file.read_bytes()))
    assert copied(cache, tmp_path) is None
    keep(str(cache), built)
    assert copied(cache, tmp_path) == built.read_bytes()


def test_a_folder_that_takes_nothing_is_no_error(built, tmp_path):
    file = tmp_path / "file"
    file.write_text("this is no folder")
    in_place = tmp_path / "cache" / built.name
    in_place.mkdir(parents=True)
    for cache in (file, file / "below", in_place.parent):
        keep(str(cache), built)
        assert copied(cache, tmp_path) is None
    assert file.read_text() == "this is no folder"
    assert list(in_place.parent.iterdir()) == [in_place]


def test_sessions_that_compile_the_same_text_at_once_share_a_cache(tmp_path):
    cache = tmp_path / "cache"

    def compile_one(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = toolchain.program(TEXT, folder, "f", cache_dir=str(cache))
        return path.stat().st_size

    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(compile_one, range(4)))
    assert all(sizes)
    assert len(list(cache.iterdir())) == 1
    shutil.rmtree(cache)
    assert compile_one("later")


def test_what_does_not_compile_leaves_no_file(tmp_path):
    cache = tmp_path / "cache"
    with pytest.raises(CompileError):
        toolchain.program("void f(", tmp_path, "f", cache_dir=str(cache))
    assert not list(tmp_path.iterdir())
