import _thread
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.errors import FailureKind, InvalidCall, OperationFailed, StaleHandle
from hal.core.values import AllocOptions, Point

PLAIN = AllocOptions()


def gates(rig, n=1):
    made = [rig.device.create_timeline(True) for _ in range(n)]
    return made if n > 1 else made[0]


def fill(rig, timeline, waits=(), byte=b"\1"):
    buffer = rig.device.alloc(100, PLAIN)
    point = rig.device.fill(buffer.region(), byte, timeline, waits)
    rig.device.free(buffer)
    return point


def done(rig, *points):
    return rig.device.wait(points, 0, True)


def test_points_of_a_timeline_count_up(rig):
    assert [fill(rig, rig.timeline).value for _ in range(5)] == [1, 2, 3, 4, 5]


def test_no_points_is_true_at_once(rig):
    assert rig.device.wait((), 0, True)
    assert rig.device.wait((), 0, False)


def test_polling_and_deadlines(rig):
    gate = gates(rig)
    point = fill(rig, rig.timeline, (Point(gate, 3),))
    assert not done(rig, point)
    start = time.monotonic()
    assert not rig.device.wait((point,), 0.12, True)
    assert time.monotonic() - start >= 0.12
    rig.device.signal(gate, 2, None)
    assert not done(rig, point)
    rig.device.signal(gate, 7, None)
    rig.wait(point)
    assert done(rig, point, Point(gate, 7), Point(gate, 1))


def test_any_and_all(rig):
    first, second = gates(rig, 2)
    points = (Point(first, 1), Point(second, 1))
    assert not rig.device.wait(points, 0, False)
    threading.Timer(0.02, rig.device.signal, (second, 1, None)).start()
    assert rig.device.wait(points, 10, False)
    assert not rig.device.wait(points, 0.01, True)
    threading.Timer(0.02, rig.device.signal, (first, 1, None)).start()
    assert rig.device.wait(points, 10, True)


def test_a_value_that_nothing_owes_yet_is_waited_for(rig):
    ahead = Point(rig.timeline, 3)
    assert not done(rig, ahead)
    threading.Timer(0.02, lambda: [fill(rig, rig.timeline) for _ in range(3)]).start()
    assert rig.device.wait((ahead,), 10, True)


def test_signals_grow(rig):
    gate = gates(rig)
    rig.device.signal(gate, 5, None)
    for value in (5, 4, 0):
        with pytest.raises(InvalidCall, match="grow"):
            rig.device.signal(gate, value, None)
    with pytest.raises(InvalidCall):
        rig.device.signal(rig.timeline, 1, None)
    with pytest.raises(InvalidCall):
        fill(rig, gate)


def test_fan_out_and_fan_in(rig, texts):
    cell = rig.upload(np.zeros(1, np.int64))
    bound = rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
    gate = gates(rig)
    branches = [rig.device.create_timeline(False) for _ in range(20)]
    previous = Point(gate, 1)
    for branch in branches:  # a chain across timelines: increments never race
        previous = rig.device.launch(bound, (1, 1, 1), branch, (previous,))
    last = rig.device.launch(bound, (1, 1, 1), rig.timeline, [Point(b, 1) for b in branches])
    assert not done(rig, last)
    rig.device.signal(gate, 1, None)
    rig.wait(last)
    assert rig.download(cell, np.int64)[0] == 21


def test_a_timeline_runs_in_order(rig, texts):
    cell = rig.upload(np.zeros(64, np.int64))
    program = rig.load(texts["mix"], "mix", "bbbi")
    expected = np.zeros(64, np.int64)
    for c in range(300):
        bound = rig.device.bind(program, (cell, cell, cell, c))
        rig.device.launch(bound, (64, 1, 1), rig.timeline, ())
        expected = expected * 4 + c
    assert np.array_equal(rig.download(cell, np.int64), expected)


def test_hazards_across_timelines_are_honoured(rig):
    size = 1 << 20
    a = rig.upload(np.zeros(size, np.uint8))
    b = rig.upload(np.zeros(size, np.uint8))
    writer, reader = (rig.device.create_timeline(False) for _ in range(2))
    read = ()
    for i in range(1, 40):
        wrote = rig.device.fill(a.region(), bytes([i]), writer, read)
        read = (rig.device.copy(b.region(), a.region(), reader, (wrote,)),)
        rig.wait(*read)
        view = np.frombuffer(rig.device.map(b.region(), False), np.uint8)
        assert view.min() == view.max() == i


def test_two_waiters_on_one_value(rig):
    gate = gates(rig)
    results = []
    threads = [
        threading.Thread(
            target=lambda: results.append(rig.device.wait((Point(gate, 1),), 10, True)),
            daemon=True,
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    rig.device.signal(gate, 1, None)
    for thread in threads:
        thread.join(10)
    assert results == [True] * 8


def test_failing_a_host_driven_timeline_fails_all_that_waits(rig, failure):
    gate = gates(rig)
    cause, later = failure(), failure()
    reached = Point(gate, 1)
    rig.device.signal(gate, 1, None)
    first = fill(rig, rig.timeline, (Point(gate, 2),))
    other = rig.device.create_timeline(False)
    second = fill(rig, other, (first,))
    rig.device.signal(gate, 0, cause)
    rig.device.signal(gate, 9, later)
    for point in (Point(gate, 2), first, second, Point(other, 9)):
        with pytest.raises(OperationFailed) as caught:
            rig.device.wait((point,), 5, True)
        assert caught.value.failure is cause
    assert done(rig, reached)
    assert rig.device.wait((reached, first), 5, False)


def test_freeing_a_gate_fails_its_waiters_instead_of_hanging(rig):
    gate = gates(rig)
    point = fill(rig, rig.timeline, (Point(gate, 1),))
    rig.device.free(gate)
    with pytest.raises(OperationFailed) as caught:
        rig.device.wait((point,), 5, True)
    assert caught.value.failure.kind is FailureKind.ABORTED
    with pytest.raises(StaleHandle):
        rig.device.signal(gate, 1, None)


def test_a_freed_timeline_finishes_its_work(rig):
    gate = gates(rig)
    buffer = rig.upload(np.zeros(10, np.uint8))
    short = rig.device.create_timeline(False)
    rig.device.fill(buffer.region(), b"\7", short, (Point(gate, 1),))
    behind = fill(rig, rig.timeline, (Point(short, 1),))
    rig.device.free(short)
    with pytest.raises(StaleHandle):
        fill(rig, short)
    rig.device.signal(gate, 1, None)
    rig.wait(behind)
    assert (rig.download(buffer, np.uint8) == 7).all()


def test_a_chain_of_a_thousand(rig):
    lines = [rig.device.create_timeline(False) for _ in range(1000)]
    gate = gates(rig)
    point = Point(gate, 1)
    for line in lines:
        point = fill(rig, line, (point,))
    rig.device.signal(gate, 1, None)
    rig.wait(point)


def test_many_submits(rig, texts):
    cell = rig.upload(np.zeros(1, np.int64))
    bound = rig.device.bind(rig.load(texts["increment"], "increment", "bi"), (cell, 1))
    for _ in range(20_000):
        rig.device.launch(bound, (1, 1, 1), rig.timeline, ())
    assert rig.download(cell, np.int64)[0] == 20_000


def test_timelines_beyond_the_limit_are_refused(rig, monkeypatch):
    monkeypatch.setattr("hal_plugin_cpu.timelines.MAX_TIMELINES", 3)
    kept = [rig.device.create_timeline(False) for _ in range(2)]
    with pytest.raises(InvalidCall):
        rig.device.create_timeline(False)
    rig.device.free(rig.device.create_timeline(True))
    rig.device.free(kept.pop())
    rig.device.create_timeline(False)


def test_waiting_lets_other_threads_run(rig):
    gate = gates(rig)

    def beat():
        for _ in range(5):
            time.sleep(0.005)
        rig.device.signal(gate, 1, None)

    threading.Thread(target=beat, daemon=True).start()
    assert rig.device.wait((Point(gate, 1),), 20, True)


def test_ctrl_c_ends_a_wait_and_leaves_the_device_usable(rig):
    gate = gates(rig)
    opens = threading.Timer(60, rig.device.signal, (gate, 1, None))
    opens.start()

    def wait():
        threading.Timer(0.05, _thread.interrupt_main).start()
        rig.device.wait((Point(gate, 1),), 120, True)

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert opens.is_alive()
    opens.cancel()
    rig.wait(fill(rig, rig.timeline))


def test_host_calls_run_in_order_and_may_submit(rig):
    seen = []
    other = rig.device.create_timeline(False)
    rig.device.host_call(lambda: seen.append("a"), rig.timeline, ())
    fill(rig, rig.timeline)
    rig.device.host_call(lambda: seen.append(fill(rig, other).value), rig.timeline, ())
    point = rig.device.host_call(lambda: seen.append("c"), rig.timeline, ())
    rig.wait(point, Point(other, 1))
    assert seen == ["a", 1, "c"]


def test_a_host_call_may_wait_for_a_host_call_of_another_timeline(rig):
    other = rig.device.create_timeline(False)
    gate = gates(rig)
    late = rig.device.host_call(lambda: None, other, (Point(gate, 1),))
    early = rig.device.host_call(lambda: rig.wait(late), rig.timeline, ())
    rig.device.host_call(
        lambda: rig.device.signal(gate, 1, None), rig.device.create_timeline(False), ()
    )
    rig.wait(early)


def test_an_exception_in_a_host_call_fails_the_point(rig):
    def wrong():
        raise RuntimeError("spilled coffee")

    with pytest.raises(OperationFailed, match="spilled coffee") as caught:
        rig.device.wait((rig.device.host_call(wrong, rig.timeline, ()),), 10, True)
    assert caught.value.failure.kind is FailureKind.HOST_CALL


def test_timestamps_lie_between_submit_and_wait(rig, texts):
    bound = rig.device.bind(rig.load(texts["spin"], "spin", "i"), (100_000,))
    before = time.monotonic_ns()
    points = [rig.device.launch(bound, (4, 1, 1), rig.timeline, ()) for _ in range(3)]
    points.append(fill(rig, rig.timeline))
    points.append(rig.device.host_call(lambda: None, rig.timeline, ()))
    rig.wait(*points)
    after = time.monotonic_ns()
    spans = [span for point in points for span in rig.device.timestamps(point)]
    assert [span.name for span in spans] == ["spin"] * 3 + ["fill", "host_call"]
    edges = [edge for span in spans for edge in (span.start_ns, span.end_ns)]
    assert edges == sorted(edges)
    assert before <= edges[0]
    assert edges[-1] <= after
    with pytest.raises(InvalidCall):
        rig.device.timestamps(Point(rig.timeline, 99))


STEP = st.tuples(
    st.integers(0, 3),  # timeline
    st.sampled_from(["mix", "copy", "fill", "host"]),
    st.integers(0, 5),  # target
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(-9, 9),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, max_size=40), size=st.sampled_from([1, 9, 700, 40_000]))
def test_random_work_equals_a_sequential_model(shared_rig, texts, steps, size):
    """Operations on random timelines, each waiting for what touched its buffers before."""
    rig = shared_rig
    shadow = [np.arange(size, dtype=np.int64) * k for k in range(6)]
    buffers = [rig.upload(array) for array in shadow]
    program = rig.load(texts["mix"], "mix", "bbbi")
    lines = [rig.device.create_timeline(False) for _ in range(4)]
    wrote: dict[int, Point] = {}
    read: dict[int, list[Point]] = {}
    for line, kind, to, a, b, c in steps:
        sources = {"mix": (a, b), "copy": (a,), "fill": (), "host": ()}[kind]
        if kind == "copy" and a == to:
            continue
        waits = [wrote[k] for k in (to, *sources) if k in wrote] + read.pop(to, [])
        if kind == "mix":
            bound = rig.device.bind(program, (buffers[a], buffers[b], buffers[to], c))
            point = rig.device.launch(bound, (size, 1, 1), lines[line], waits)
            shadow[to] = shadow[a] * 3 + shadow[b] + c
        elif kind == "copy":
            point = rig.device.copy(buffers[to].region(), buffers[a].region(), lines[line], waits)
            shadow[to] = shadow[a].copy()
        elif kind == "fill":
            pattern = np.int64(c).tobytes()
            point = rig.device.fill(buffers[to].region(), pattern, lines[line], waits)
            shadow[to] = np.full(size, c)
        else:
            view = np.frombuffer(rig.device.map(buffers[to].region(), True), np.int64)
            point = rig.device.host_call(lambda v=view: np.negative(v, out=v), lines[line], waits)
            shadow[to] = -shadow[to]
        wrote[to] = point
        for k in sources:
            read.setdefault(k, []).append(point)
    rig.wait(*wrote.values(), *(p for points in read.values() for p in points))
    for buffer, expected in zip(buffers, shadow, strict=True):
        assert np.array_equal(rig.download(buffer, np.int64), expected)
        rig.device.free(buffer)
    for line in lines:
        rig.device.free(line)
    rig.device.free(program)


def test_submitting_from_many_threads(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    cells = [rig.upload(np.zeros(257, np.int64)) for _ in range(6)]

    def work(cell):
        line = rig.device.create_timeline(False)
        bound = rig.device.bind(program, (cell, 1))
        for _ in range(300):
            point = rig.device.launch(bound, (257, 1, 1), line, ())
        rig.wait(point)

    threads = [threading.Thread(target=work, args=(cell,), daemon=True) for cell in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for cell in cells:
        assert (rig.download(cell, np.int64) == 300).all()
