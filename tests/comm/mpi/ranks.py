"""What every rank of the tests of the MPI engine runs: `mpirun -n 3 hal run --mpi -m ...`."""

import re
import signal
import sys
import threading
import time
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from hal.core.values import ReduceKind
from stack.comm.engine.failures import CallMismatch, GroupAborted, LateRank
from stack.comm.group import Group
from stack.comm.store import Store
from stack.comm.world import World
from stack.parallel import Mesh
from tests.comm.engine.model import DTYPES, HOWS, SHORT, is_reduction, parts_of, reduced


def own(rank, n, dtype):
    return np.random.default_rng([n, rank]).integers(0, 9, n).astype(dtype)


def alike(rtol, got, wanted):
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol)


def reductions(g):
    for dtype in DTYPES:
        for how in HOWS:
            if not is_reduction(dtype, how):
                continue
            for n in (0, 3, 3000):
                every = [own(r, n, dtype) for r in range(g.size)]
                wanted, mine = reduced(every, how), every[g.rank]
                rtol = 1e-6 if dtype.kind == "f" and dtype not in SHORT else 0
                same = partial(alike, rtol)
                same(g.all_reduce(mine, how, np.zeros_like(mine)), wanted)
                same(g.all_reduce(mine.copy(), how), wanted)
                at_root = g.reduce(mine.copy(), 1, how)
                same(at_root, wanted if g.rank == 1 else mine)
                same(g.reduce_scatter(mine, how), parts_of(wanted, [n // g.size] * g.size)[g.rank])
    counts = [5, 0, 2]
    every = [own(r, 7, np.float32) for r in range(3)]
    got = g.reduce_scatter(every[g.rank], counts=counts)
    np.testing.assert_allclose(got, parts_of(reduced(every, ReduceKind.SUM), counts)[g.rank])


def movements(g):
    n, every = 4, [own(r, 12, np.int16) for r in range(g.size)]
    mine = every[g.rank]
    assert (g.broadcast(mine.copy(), 2) == every[2]).all()
    assert (g.all_gather(mine) == np.stack(every)).all()
    counts = [3, 0, 2]
    parts = np.concatenate([every[r][: counts[r]] for r in range(3)])
    assert (g.all_gather(mine[: counts[g.rank]], counts=counts) == parts).all()
    gathered = g.gather(mine, 1)
    assert gathered.size == 0 if g.rank != 1 else (gathered == np.stack(every)).all()
    scattered = g.scatter(every[0] if g.rank == 0 else None, 0, np.zeros(n, np.int16))
    assert (scattered == parts_of(every[0], [n] * 3)[g.rank]).all()
    wanted = np.concatenate([parts_of(a, [n] * 3)[g.rank] for a in every])
    assert (g.all_to_all(mine) == wanted).all()
    assert (g.all_to_all(mine.copy(), out=mine.copy()) == wanted).all()
    rows = [[1, 2, 3], [0, 4, 1], [2, 2, 2]]
    given = own(g.rank, sum(rows[g.rank]), np.float64)
    sent = [parts_of(own(r, sum(rows[r]), np.float64), rows[r])[g.rank] for r in range(3)]
    assert (g.all_to_all_v(given, rows) == np.concatenate(sent)).all()


def background(g):
    arrays = [np.full(1000, g.rank + i, np.float32) for i in range(5)]
    works = [g.later.all_reduce(array) for array in arrays]
    after, before = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    outs = [np.zeros(3), np.zeros(4)]
    messages = [g.later.receive(out, before) for out in outs]
    messages += [g.later.send(np.full(3 + i, g.rank + 10.0 * i), after) for i in range(2)]
    g.barrier()
    for i, work in enumerate(works):
        assert (work.wait(100) == 3 + 3 * i).all()
        assert work.done
    for message in messages:
        message.wait(100)
    assert [out[0] for out in outs] == [before, before + 10.0]


def tags(g):
    """Received in another order than sent."""
    after, before = (g.rank + 1) % g.size, (g.rank - 1) % g.size
    every = [0, 1, (1 << 31) - 1, 1 << 30, 7]  # MPIs have fewer
    sent = [g.later.send(np.full(2, g.rank + 10.0 * tag), after, tag) for tag in every]
    for tag in (every[2], 0, 1, 7, every[3]):
        assert g.receive(np.zeros(2), before, tag)[0] == before + 10.0 * tag
    for work in sent:
        work.wait(100)
    whoever(g)


def whoever(g):
    """Rank 0 receives what the others send, some without naming them, and hears who they are."""
    if g.rank:
        for i in range(4):
            g.send(np.full(2, 10.0 * g.rank + i), 0, 5)
        return
    sources = (None, 1, None, 2, None, None, 1, 2)
    works = [g.later.receive(np.zeros(2), source, 5) for source in sources]
    got = [(float(work.wait(100)[0]), work.peer) for work in works]
    assert sorted(got) == [(10.0 * r + i, r) for r in (1, 2) for i in range(4)]
    for source, (_, peer) in zip(sources, got, strict=True):
        assert source in (None, peer)


def smaller(g):
    """A group that follows has a communicator of its own; its ranks call one sum by two names."""
    with g.grow("again", g.size) as again:
        assert again.all_reduce(np.ones(1))[0] == 3
        assert again.way == "mpi"
        assert (again.hosts, again.failure) == ((0, 0, 0), None)
        with pytest.raises(
            CallMismatch, match=r"rank 0 makes .* \(weights\), rank 2 .* \(biases\)"
        ):
            again.all_reduce(np.ones(1), name="biases" if again.rank == 2 else "weights")


def differ(g):
    with pytest.raises(CallMismatch) as raised:
        g.all_reduce(np.ones(3 + (g.rank == 2), np.float32))
    assert "rank 0 makes call 0: all-reduce (sum) of 3 float32" in str(raised.value)
    assert "rank 2 makes call 0: all-reduce (sum) of 4 float32" in str(raised.value)
    with pytest.raises(CallMismatch):
        g.barrier()


def differ_in_messages(g):
    if g.rank == 0:
        g.send(np.ones(3), 1)
    if g.rank == 1:
        with pytest.raises(CallMismatch, match="rank 0 sends 3 float64, rank 1 receives 4 float32"):
            g.receive(np.ones(4, np.float32), 0)


def meet(g):
    """Each once it has what it was sent; what is sent behind that may come to one that waits."""
    got = np.zeros(1)
    for number in range(5):
        if g.rank == number % 3:
            g.send(np.full(1, float(number)), (g.rank + 1) % 3, 5)
        if g.rank == (number + 1) % 3:
            assert g.receive(got, number % 3, 5)[0] == number
        g.meet("a test")


def meet_alone(g):
    """One rank comes to a meeting, another one awaits a message of it, sends one or both; with one
    that nobody has received before, or without."""
    for number in range(8):
        sends, receives, kept = number % 3 < 2, number % 3 > 0, number > 3
        g = g.grow(f"alone {number}", g.size)
        if kept and g.rank == 0:
            g.send(np.ones(2), 2, 9)
            g.send(np.ones(1), 2)
        if kept and g.rank == 2:
            g.receive(np.zeros(1), 0)
        with pytest.raises(CallMismatch) as raised:
            go_on_or_meet(g, 3 if number % 2 else 1 << 20, sends, receives)
        text = str(raised.value)
        assert "has come to a test" in text, text
        assert re.search(r"rank 0 (sends|receives) (2|3|1048576) float64", text), text
    g.close()


def go_on_or_meet(g, n, sends, receives):
    if g.rank:
        g.meet("a test")
    if sends:
        g.send(np.ones(n), 2, 7)
    if receives:
        g.receive(np.zeros(3), 2, 8)
    g.receive(np.zeros(3), 1)


def meet_alone_in_a_mesh(g):
    """Others that wait in another of its groups hear of it."""
    mesh = Mesh.present(pipe=3)
    one, two = mesh.join("pipe"), mesh.join("pipe")
    does = [lambda: one.send(np.ones(3), 1, 7), lambda: one.meet("a test"), lambda: None][g.rank]
    with pytest.raises(CallMismatch, match=r"rank 0 sends 3 float64, tag 7, rank 1 has come to a"):
        (does(), two.receive(np.zeros(3), 0 if g.rank else 1))
    g.barrier()  # which lies in no mesh
    one.close()
    two.close()
    with mesh.join("pipe") as again:
        assert again.all_reduce(np.ones(1))[0] == 3


def late(g):
    """Rank 1 does not come within its group's deadline."""
    if g.rank != 1:
        with pytest.raises(LateRank, match=r"call 0: barrier .* was not done within 5 s"):
            g.barrier()


def aborted(g):
    if g.rank == 1:
        g.abort()
        g.abort()
    with pytest.raises(GroupAborted, match=r"rank 1 has aborted|this rank has aborted"):
        g.barrier()


def interrupted(g):
    """An interrupt of a rank that waits ends the group: the others are not to wait for it."""
    if g.rank == 1:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            g.barrier()
        signal.signal(signal.SIGALRM, before)
    until_s = time.monotonic() + 20
    while g.failure is None and time.monotonic() < until_s:
        time.sleep(0.01)
    with pytest.raises(GroupAborted, match="rank 1 has aborted"):
        g.barrier()


def aborted_meanwhile(g):
    """By another thread of a rank that waits, in a group of a mesh: its others end, too."""
    mesh = Mesh.present(data=3)
    with mesh.join("data") as one, mesh.join("data") as two:
        if g.rank == 1:
            threading.Timer(0.5, one.abort).start()
        waits = one if g.rank == 1 else two
        with pytest.raises(GroupAborted, match="rank 1 has aborted the group") as raised:
            waits.barrier()
        assert raised.value.rank == 1


def main():
    world = World.from_environment()
    *names, last = sys.argv[1:]
    for name in names:
        deadline_s = 5.0 if name == "late" else 30.0
        with closing(Store.of(world)) as store:
            group = Group.join(store, world.store, name, world.rank, world.size, deadline_s)
            globals()[name](group)
            group.close()
    if last != "end" and world.rank == 1:
        raise ValueError(last)


if __name__ == "__main__":
    main()
