"""From graphs to records, on real devices."""

from itertools import count

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.values import KernelSource, OpenOptions
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.compiler.targets import Target
from stack.compiler.templates.blocking import MatmulShape
from stack.compiler.templates.schedule import Block, LoopProblem
from stack.compiler.tune import candidates
from stack.runtime import engine_of
from stack.runtime.tuned import read_record, records_of
from stack.tune import session
from stack.tune.bench import contents
from stack.tune.process import Process
from stack.tune.rig import Rig
from stack.tune.session import KeepError, problems_of, tune
from tests.compiler.lowered import SIMD

F32 = DType.F32
LIMIT_S = 60.0


def layer(m, n, k):
    """gelu-like(a @ b) with its sum, and the inputs."""
    a, b = build.input(0, Type((m, k), F32)), build.input(1, Type((k, n), F32))
    y = build.tanh(build.matmul(a, b))
    return GraphRequest((y, build.reduce("sum", build.mul(y, y), (1,))), (a, b))


def info_of(name):
    with hal.open(name) as device:
        return device.info


def usable(name):
    try:
        info_of(name)
    except HalError:
        pytest.skip(f"there is no {name} here")


def clock():
    """A clock that goes on by a second whenever it is read, however slow the machine is."""
    reads = count()
    return lambda: next(reads)


def told_into(found):
    def told(tunable, record, note):
        found.append((tunable.problem, record, note))

    return told


def no_process():
    raise AssertionError("nothing needs to be measured")


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", ["cpu:0", "reference:0", "opencl:0"])
def test_a_graphs_kernels_are_tuned_and_it_computes_the_same(name, tmp_path):
    usable(name)
    info, request, found = info_of(name), layer(5, 6, 7), []
    problems = problems_of([request], info)
    with Rig(lambda: Process(name), LIMIT_S) as rig:
        tune(problems, info, rig, str(tmp_path), 16, False, told_into(found), clock())
    assert [p for p, _, _ in found] == [t.problem for t in problems]
    assert found[0][1] is not None
    for problem, record, note in found:
        assert note == ("" if record else "the budget is spent")
        if record is None:
            continue
        assert record.results[0].schedule == candidates(problem, info)[0].schedule
        assert record.results[0].refused == ""
        assert record.seconds > 0
        assert read_record(records_of(str(tmp_path), info), problem) == record
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7)), rng.standard_normal((7, 6))
    with engine_of(hal.open(name), cache_dir=str(tmp_path)) as engine:
        y, total = engine.plan(request).run([engine.put(a, F32), engine.put(b, F32)])
        np.testing.assert_allclose(engine.get(y), np.tanh(a @ b), rtol=1e-4, atol=1e-5)
        expected = (np.tanh(a @ b) ** 2).sum(1, keepdims=True)
        np.testing.assert_allclose(engine.get(total), expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.turns
def test_blocks_of_groups_of_lanes_are_tuned(tmp_path):
    usable("opencl:0")
    lanes, request, found = {"lanes": "16"}, layer(20, 24, 12), []
    with hal.open("opencl:0", options=OpenOptions(settings=lanes)) as device:
        info = device.info
        problems = [t for t in problems_of([request], info) if isinstance(t.problem, MatmulShape)]
        with Rig(lambda: Process("opencl:0", settings=lanes), LIMIT_S) as rig:
            tune(problems, info, rig, str(tmp_path), 6, False, told_into(found), clock())
    ((problem, record, _),) = found
    assert all(isinstance(r.schedule, Block) and not r.refused for r in record.results)
    assert len(record.results) > 1
    assert read_record(records_of(str(tmp_path), info), problem) == record


@pytest.mark.slow
@pytest.mark.turns
def test_what_was_measured_is_not_measured_again_unless_it_is_damaged(tmp_path):
    info, first, second, third = info_of("cpu:0"), [], [], []
    problems = problems_of([layer(8, 8, 8)], info)[:1]
    with Rig(lambda: Process("cpu:0"), LIMIT_S) as rig:
        tune(problems, info, rig, str(tmp_path), 10, False, told_into(first), clock())
        tune(problems, info, Rig(no_process, 1), str(tmp_path), 0, False, told_into(second))
        assert second == [(*first[0][:2], "cached")]
        (path,) = records_of(str(tmp_path), info).path.iterdir()
        path.write_bytes(path.read_bytes()[:-20])
        tune(problems, info, rig, str(tmp_path), 10, False, told_into(third), clock())
    assert third[0][2] == ""
    assert read_record(records_of(str(tmp_path), info), problems[0].problem) == third[0][1]


def test_without_a_budget_nothing_is_measured_and_that_is_said(tmp_path):
    info, found = info_of("cpu:0"), []
    problems = problems_of([layer(8, 8, 8)], info)
    tune(problems, info, Rig(no_process, 1), str(tmp_path), 1.0, False, told_into(found))
    assert {note for _, _, note in found} == {"the budget is spent"}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.turns
def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "tuned").write_text("a file where a folder should be")
    info = info_of("cpu:0")
    problems = problems_of([layer(8, 8, 8)], info)[:1]
    with (
        Rig(lambda: Process("cpu:0"), LIMIT_S) as rig,
        pytest.raises(KeepError, match="cannot be kept in"),
    ):
        tune(problems, info, rig, str(tmp_path), 8, False, told_into([]), clock())


@pytest.mark.slow
@pytest.mark.turns
def test_a_default_that_cannot_be_built_is_said_and_not_kept(tmp_path, monkeypatch):
    real = Target.writer

    def garbage(target, info):
        def write(kernel, info):
            whole = real(target, info)(kernel, info)
            return KernelSource(whole.format, "garbage", whole.entry, whole.params)

        return write

    monkeypatch.setattr(Target, "writer", garbage)
    info, found = info_of("cpu:0"), []
    problems = problems_of([layer(8, 8, 8)], info)[:1]
    with Rig(lambda: Process("cpu:0"), LIMIT_S) as rig:
        tune(problems, info, rig, str(tmp_path), 10, False, told_into(found), clock())
    assert found[0][1] is None
    assert "the rules' own kernel was refused: build" in found[0][2]
    assert not list(tmp_path.iterdir())


def first_contents(request):
    """What the buffers of a request's kernels hold at first, by element type."""
    return {
        extent.dtype: contents(extent, 0).view(NUMPY[extent.dtype])
        for tunable in problems_of([request], SIMD)
        for extent in session.extents_of(
            tunable.problem, tunable.kernel(candidates(tunable.problem, SIMD)[0].schedule)
        )
    }


def test_integers_are_zeros_only_where_they_may_be_indices():
    table, at = build.input(0, Type((5, 4), F32)), build.input(1, Type((3,), DType.I64))
    gathered = build.add(build.gather(table, at, 0), build.full((3, 4), 1, F32))
    held = first_contents(GraphRequest((gathered,), (table, at)))
    assert not held[DType.I64].any()
    assert 0.5 <= held[F32].min() < held[F32].max() <= 1.5
    a, b = (build.input(i, Type((4, 4), DType.I32)) for i in range(2))
    held = first_contents(GraphRequest((build.matmul(a, b),), (a, b)))
    assert set(held[DType.I32]) == {0, 1, 2, 3}


def test_problems_come_by_their_share_of_all_graphs():
    info = info_of("cpu:0")
    small, large = layer(16, 16, 16), layer(64, 64, 64)
    problems = problems_of([small, large, small], info)
    assert len({t.problem for t in problems}) == len(problems)
    shapes = [t.problem for t in problems if isinstance(t.problem, MatmulShape)]
    assert [s.m for s in shapes] == [64, 16]
    counts = {t.problem.m: t.count for t in problems if isinstance(t.problem, MatmulShape)}
    assert counts == {64: 1, 16: 2}
    assert any(isinstance(t.problem, LoopProblem) for t in problems)
