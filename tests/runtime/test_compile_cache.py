"""Compiled graphs in the cache folder: what is no graph for the request is compiled again."""

import json
import os
import pickle
import resource
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

import hal.core
import stack.compiler
from hal.cache import Cache, UntrustedCache
from hal.core.dtypes import DType
from hal.core.values import OpenOptions
from hal.tile.node import Type
from hal.tile.size import Facts
from stack import ops as build
from stack.compiler.compile import compile_graph
from stack.compiler.program import GraphRequest
from stack.compiler.program_text import from_text, to_text
from stack.compiler.templates.schedule import NO_CHOICES, Choices, LoopProblem, LoopSizes
from stack.runtime import target
from stack.runtime.compile_cache import cached
from stack.runtime.families import Families
from stack.runtime.opening import engine_of


def request(count=5):
    a = build.input(0, Type((count,), DType.F32))
    return GraphRequest((build.mul(a, a),), (a,))


@pytest.fixture(scope="module")
def device():
    with hal.open("cpu:0") as device:
        yield device


@pytest.fixture
def compiled():
    """The requests that were compiled."""
    return []


@pytest.fixture
def look_up(tmp_path, device, compiled):
    def compile(request):
        compiled.append(request)
        return compile_graph(request, device.info, NO_CHOICES)

    return cached(compile, device.info, NO_CHOICES, str(tmp_path))


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path, "graphs")


class Foreign:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def without_key(content):
    """A text of a class that has had one field less."""
    head, _, texts = content.partition(b"\n")
    facts = json.loads(head)
    for program in facts["programs"]:
        program["params"] = [param[:-1] for param in program["params"]]
    return json.dumps(facts).encode() + b"\n" + texts


ENTRIES = {
    "empty": lambda whole, tmp: b"",
    "a-pickle-of-ours": lambda whole, tmp: pickle.dumps(from_text(whole)),
    "a-pickle-that-runs-code": lambda whole, tmp: pickle.dumps(Foreign(tmp / "ran")),
    "a-field-less": lambda whole, tmp: without_key(whole),
    "another-request's": lambda whole, tmp: whole.replace(b"[5]", b"[4]").replace(b",20]", b",16]"),
    "no-calls": lambda whole, tmp: to_text(replace(from_text(whole), outputs=())),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_no_graph_for_the_request_is_removed_and_compiled_again(
    tmp_path, cache, look_up, compiled, name
):
    wanted = look_up(request())
    (entry,) = cache.names()
    whole = cache.get(entry)
    cache.write(entry, ENTRIES[name](whole, tmp_path))
    assert look_up(request()) == wanted
    assert cache.get(entry) == whole
    assert look_up(request()) == wanted
    assert len(compiled) == 2
    assert not (tmp_path / "ran").exists()


def test_a_graph_comes_from_the_cache(look_up, compiled):
    assert look_up(request()) == look_up(request())
    look_up(request(6))
    assert len(compiled) == 2


def reached(n):
    """Sums over windows that lie apart or reach into one another, by the number of elements."""
    a = build.input(0, Type((n,), DType.F32))
    front, back = build.slice(a, (0,), (n - 3,)), build.slice(a, (3,), (n,))
    return GraphRequest((build.mul(front, back),), (a,))


def test_a_graph_of_many_sizes_comes_from_the_cache_where_its_conditions_hold(
    device, look_up, compiled, cache
):
    """Each of these families is that of another process."""

    def graphs(*sizes):
        family = Families(device.info, look_up)
        return [family.instance(reached(n)).graph() for n in sizes]

    wanted = graphs(9, 11, 12)
    assert len(compiled) == 2, "one alone, and one for all"
    assert graphs(9, 11, 12) == wanted
    assert len(compiled) == 2
    graphs(900, 1100)
    assert len(compiled) == 4, "schedules for such sizes may be others"
    assert graphs(9, 11, 12) == wanted
    assert len(compiled) == 4


def test_sizes_that_do_not_meet_the_conditions_have_an_entry_of_their_own(tmp_path, device):
    """As if a kernel were for fewer or for more than ten elements."""
    compiled = []

    def compile(request):
        (size,) = request.outputs[0].shape
        compiled.append(bool(size < 10))
        return compile_graph(request, device.info, NO_CHOICES)

    look_up = cached(compile, device.info, NO_CHOICES, str(tmp_path))

    def conditions(hint):
        facts = Facts()
        size = facts.symbol("s0", hint, 2)
        look_up(replace(request(size), facts=facts))
        return [str(c) for c in facts.conditions if "10" in str(c)]

    small, large = conditions(9), conditions(12)
    assert small != large
    assert compiled == [True, False]
    assert [conditions(n) for n in (8, 15, 9, 10)] == [small, large, small, large]
    assert compiled == [True, False]


def test_other_schedules_and_another_device_have_entries_of_their_own(tmp_path, cache, device):
    graph = compile_graph(request(), device.info, NO_CHOICES)
    wider = replace(device.info.limits, instances=device.info.limits.instances + 1)
    measured = Choices({LoopProblem("mul", "digest", 5, 1, 5): LoopSizes(unroll=2)})
    asked = [
        (device.info, NO_CHOICES),
        (device.info, measured),
        (replace(device.info, limits=wider), NO_CHOICES),
        (replace(device.info, fingerprint="another compiler"), NO_CHOICES),
    ]
    for count, (info, choices) in enumerate(asked, 1):
        cached(lambda _: graph, info, choices, str(tmp_path))(request())
        assert len(cache.names()) == count


def test_a_folder_that_others_may_write_is_not_used_and_that_is_said(tmp_path, look_up, compiled):
    look_up(request())
    tmp_path.chmod(0o777)
    with pytest.warns(UntrustedCache, match="chmod go-w"):
        look_up(request())
    assert len(compiled) == 2


def test_an_engine_computes_without_the_cache_it_was_given(tmp_path):
    tmp_path.chmod(0o777)
    x = np.arange(5, dtype=np.float32)
    with engine_of(hal.open("cpu:0"), cache_dir=str(tmp_path)) as engine:
        with pytest.warns(UntrustedCache):
            plan = engine.plan(request())
        (y,) = plan.run([engine.put(x, DType.F32)])
        assert engine.get(y).tolist() == (x * x).tolist()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("package", "name"), [(hal.core, "values.py"), (stack.compiler, "program_text.py")]
)
def test_the_key_covers_the_source_of_what_is_kept(tmp_path, monkeypatch, device, package, name):
    """A package with one more line is another package."""

    def fresh():
        target._toolchain.cache_clear()
        return target.target_of(device.info)

    folder = tmp_path / "package"
    shutil.copytree(package.__path__[0], folder, ignore=shutil.ignore_patterns("*.pyc"))
    with monkeypatch.context() as elsewhere:
        before = fresh()
        elsewhere.setattr(package, "__path__", [str(folder)])
        assert fresh() == before
        with (folder / name).open("a") as source:
            source.write("\n")
        assert fresh() != before
    assert fresh() == before


def test_an_engine_computes_when_the_disk_is_full_and_leaves_nothing(tmp_path):
    """The kernel refuses every byte of a file behind the first hundred."""
    x = np.arange(5, dtype=np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with hal.open("cpu:0", options=OpenOptions(cache_dir=str(tmp_path))) as device:
            engine = engine_of(device, cache_dir=str(tmp_path))
            (y,) = engine.plan(request()).run([engine.put(x, DType.F32)])
            assert engine.get(y).tolist() == (x * x).tolist()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert {path.name for path in tmp_path.rglob("*")} == {"graphs", "cpu"}
