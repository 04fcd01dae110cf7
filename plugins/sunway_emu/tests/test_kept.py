"""Programs in the cache folder: compiled by several at once, and not at all."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hal_plugin_sunway import toolchain

from hal.cache import Cache
from hal.core.errors import CompileError

TEXT = "void f(void *v) {}"


def test_sessions_that_compile_the_same_text_at_once_share_a_cache(tmp_path):
    cache = Cache(tmp_path / "cache")

    def compile_one(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = toolchain.program(TEXT, folder, "f", cache=cache)
        return path.stat().st_size

    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(compile_one, range(4)))
    assert all(sizes)
    assert len(cache.names()) == 1
    shutil.rmtree(cache.path)
    assert compile_one("later")


def test_what_does_not_compile_leaves_no_file(tmp_path):
    with pytest.raises(CompileError):
        toolchain.program("void f(", tmp_path, "f", cache=Cache(tmp_path / "cache"))
    assert not list(tmp_path.iterdir())
