"""Groups whose ranks are of several hosts: sockets between them, rings inside, chunk programs."""

import random
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from hal.core.errors import InvalidCall
from hal.core.values import CollectiveKind, ReduceKind
from stack.comm.engine.failures import CallMismatch, LateRank, PeerLost
from stack.comm.plan.error import PlanError
from stack.comm.plan.flat import flatten
from stack.comm.plan.generate.request import Request
from stack.comm.plan.generate.table import ALGORITHMS, build
from stack.comm.plan.interpret import interpret
from stack.comm.plan.program import REDUCING, PointKind, extent_count
from tests.comm.engine.crew import crews
from tests.comm.engine.model import parts_of, reduced

LAYOUTS = [(0, 0, 0), (0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 1, 0, 0)]


@pytest.fixture(scope="module")
def all_crews():
    with crews(*LAYOUTS) as made:
        yield made


def test_hosts_are_found_by_trying(all_crews):
    found = [crew.groups[-1].hosts for crew in all_crews]
    assert found == [(0, 0, 0), (0, 1), (0, 1, 2), (0, 0, 2, 2), (0, 1, 0, 0)]


@pytest.mark.parametrize("kind", [k for k in ALGORITHMS if k is not PointKind.SEND_RECV])
def test_every_program_gives_the_bits_of_the_interpreter(all_crews, kind):
    choose = random.Random(kind.value)
    for crew in all_crews:
        where = tuple((host,) for host in crew.hosts)
        for name in ALGORITHMS[kind]:
            dtype = np.dtype(choose.choice([np.float32, np.int8, np.float16, ml_dtypes.bfloat16]))
            how = choose.choice(list(ReduceKind)) if kind in REDUCING else ReduceKind.SUM
            root = choose.randrange(crew.size)
            wide = dtype.kind not in "iub" and dtype.itemsize == 2
            request = Request(kind, crew.size, root, wide=wide, places=where)
            program = build(name, request)
            longest = choose.choice([3, 70, 40_000])
            lengths = [choose.randrange(longest) for _ in range(extent_count(kind, crew.size))]
            places = [flatten(program, r, lengths).places for r in range(crew.size)]
            given = [
                np.random.default_rng([longest, r]).integers(-9, 9, n).astype(dtype)
                for r, (n, _, _) in enumerate(places)
            ]
            outs = [np.zeros(n, dtype) for _, n, _ in places]
            wanted = interpret(program, given, lengths, how)
            got = crew.do(
                lambda g, p=program, n=lengths, a=given, o=outs, h=how: g.follow(
                    p, a[g.rank], o[g.rank], h, n
                )
            )
            for rank in range(crew.size):
                assert got[rank].tobytes() == wanted[rank].tobytes(), (name, rank, dtype, how)


@pytest.mark.parametrize("n", [0, 5, 100_000])
def test_operations_choose_a_program(all_crews, n):
    for crew in (all_crews[1], all_crews[3]):
        size = crew.size
        own = [np.random.default_rng(r).integers(-50, 50, n * size) for r in range(size)]
        total = reduced(own, ReduceKind.SUM)

        def run(group, own=own, size=size, n=n):
            array = own[group.rank]
            summed = group.all_reduce(array.copy())
            apart = group.all_reduce(array, out=np.zeros_like(array))
            assert (apart == summed).all()
            at_root = group.reduce(array.copy(), size - 1)
            told = group.broadcast(array.copy(), size - 1)
            later = group.later.all_gather(array)
            part = group.reduce_scatter(array)
            exchanged = group.all_to_all(array)
            scattered = group.scatter(array, 0, np.zeros(n, array.dtype))
            gathered = group.gather(array, 0)
            group.barrier()
            at_root = at_root if group.rank == size - 1 else summed
            return summed, at_root, told, later.wait(100), part, exchanged, scattered, gathered

        for rank, got in enumerate(crew.do(run)):
            wanted = (
                total,
                total,
                own[size - 1],
                np.stack(own),
                parts_of(total, [n] * size)[rank],
                np.concatenate([parts_of(a, [n] * size)[rank] for a in own]),
                parts_of(own[0], [n] * size)[rank],
                np.stack(own) if rank == 0 else np.empty(0, int),
            )
            for mine, theirs in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(mine.ravel(), theirs.ravel())


def test_a_late_rank_of_another_host_is_named():
    # Longer than it takes a rank to tell by itself which calls it has made.
    with crews((0, 1, 1), deadline_s=6.0) as [crew]:

        def run(group):
            group.barrier()
            if group.rank == 2:
                return None
            with pytest.raises(LateRank) as raised:
                group.all_reduce(np.ones(3))
            return raised.value

        for error in crew.do(run)[:2]:
            assert "rank 2 did not come to call 1: all-reduce (sum) of 3 f64" in str(error)
            assert "its last call is call 0: barrier" in str(error)


def test_different_calls_between_hosts_are_named_on_all_ranks():
    with crews((0, 1)) as [crew]:

        def run(group):
            with pytest.raises(CallMismatch) as raised:
                group.all_reduce(np.ones(3 + group.rank, np.float32))
            return raised.value

        for error in crew.do(run):
            assert "of 3 f32" in str(error)
            assert "of 4 f32" in str(error)
            assert sorted(error.ranks) == [0, 1]


def test_a_rank_of_another_host_that_leaves_or_aborts_is_named():
    for end, text in (("close", "rank 1 has left"), ("abort", "rank 1 has aborted")):
        with crews((0, 1)) as [crew]:
            getattr(crew.groups[1], end)()
            with pytest.raises(PeerLost, match=text):
                crew.groups[0].barrier()


def test_programs_of_users_are_proved_before_they_run(all_crews):
    crew = all_crews[2]
    right = build("ring", Request(CollectiveKind.ALL_REDUCE, 3, in_place=True))
    wrong = replace(right, steps=(right.steps[0][:-1], *right.steps[1:]))

    def run(group):
        with pytest.raises(PlanError):
            group.follow(wrong, np.ones(6), np.ones(6))
        with pytest.raises(InvalidCall, match="takes 6 elements and gives 6, not 6 and 5"):
            group.follow(right, np.ones(6), np.ones(5))
        array = np.ones(6)
        return group.follow(right, array, array).tolist()

    assert crew.do(run) == [[3.0] * 6] * 3
    with pytest.raises(InvalidCall, match="group of 2 cannot follow a program of 3 ranks"):
        all_crews[1].groups[0].follow(right, np.ones(6), np.ones(6))


def test_a_word_that_nobody_understands_is_an_error_inside_a_host_too(monkeypatch):
    monkeypatch.setenv("HAL_COMM_PLANS", "all_reduce=rang")
    with pytest.raises(PlanError, match=r"all-reduce has ring.*got 'rang'"), crews((0, 0)):
        pass
