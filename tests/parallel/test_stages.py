"""Pipelines by the interpreter: all ranks' steps side by side, against one process."""

import numpy as np
import pytest

import hal
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Type, toposort
from stack import ops as g
from stack.compiler.compile import compile_graph
from stack.compiler.graph.roots import base
from stack.compiler.program import ExchangeCall, GraphRequest
from stack.framework.reverse import gradients
from stack.ir.interpret import interpret
from stack.ir.world import RankProgram, interpret_world
from stack.parallel.schedule import dualpipe_v, gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from stack.parallel.stages import Joint, crossing, cut, lanes, step_of
from stack.runtime.placement import lifetimes
from tests.draw import stream

ROWS, WIDTH = 2, 4
F32 = DType.F32


def joint_of(chunks, tied=False, layers=1):
    """A chain of residual layers, so many to a chunk; the last one's loss reads the batch's
    targets."""
    x, targets = (g.input(i, Type((ROWS, WIDTH), F32)) for i in range(2))
    where, h = {}, x
    for layer in range(chunks * layers):
        w = g.input(2 + 2 * layer, Type((WIDTH, WIDTH), F32))
        b = g.input(3 + 2 * layer, Type((WIDTH,), F32))
        where |= dict.fromkeys((w, b), layer // layers)
        h = g.add(h, g.tanh(g.add(g.matmul(h, w), g.broadcast(b, h.shape))))
    if tied:
        h = g.matmul(h, g.transpose(next(iter(where))))
    error = g.sub(h, targets)
    loss = g.reshape(g.reduce("sum", g.mul(error, error)), ())
    marked = crossing(loss, where)
    total = gradients([(loss, g.const(1.0, F32))], lambda n: n in where or n in marked)
    joint = Joint(loss, {p: total[p] for p in where}, where, (x, targets), chunks)
    return joint, {total[n]: chunk for n, chunk in marked.items()}


def alone(joint, batches, values):
    """The loss and gradients of one process that takes the micro-batches one after the other."""
    totals = None
    for m in range(batches):
        inputs = dict(values)
        for n in joint.arguments:
            inputs[n] = values[n][m * ROWS : (m + 1) * ROWS]
        found = interpret([joint.loss, *joint.gradients.values()], inputs)
        totals = found if totals is None else [a + b for a, b in zip(totals, found, strict=True)]
    return totals


SCHEDULES = {
    "gpipe": gpipe(3, 4),
    "1f1b": one_f_one_b(3, 5),
    "interleaved": interleaved(2, 4, 2),
    "zb-h1": zb_h1(3, 4),
    "zb-v": zb_v(2, 4),
    "dualpipe-v": dualpipe_v(2, 4),
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_ranks_compute_bit_for_bit_what_one_process_does(name, tied):
    schedule = SCHEDULES[name]
    joint, returns = joint_of(schedule.depth, tied)
    rng = np.random.default_rng(stream("stages").randrange(2**32))
    values = {
        n: rng.standard_normal(n.shape).astype(np.float32) / 2
        for n in (*joint.arguments, *joint.chunks)
    }
    wide = (schedule.batches * ROWS, WIDTH)
    for n in joint.arguments:
        values[n] = rng.standard_normal(wide).astype(np.float32)
    want = alone(joint, schedule.batches, values)
    found = cut(joint, returns)
    given = {
        (g.input(n["slot"], n.type.with_shape(wide)) if n in joint.arguments else n): v
        for n, v in values.items()
    }
    groups = {lane: f"{lane[0]}{lane[1]}" for lane in lanes(schedule)}
    steps = [step_of(found, schedule, rank, groups) for rank in range(schedule.ranks)]
    programs, keys = [], []
    own_of = {rank: [*joint.arguments] for rank in range(schedule.ranks)}
    for p, chunk in joint.chunks.items():
        own_of[schedule.rank_of(chunk)].append(p)
    for rank, step in enumerate(steps):
        own = [*step.gradients.values(), *([step.loss] if step.loss is not None else [])]
        keys.append([*step.gradients, *(["loss"] if step.loss is not None else [])])
        kept = {n["slot"] for n in own_of[rank]}  # a rank has the parameters of its chunks alone
        held = {n: v for n, v in given.items() if n["slot"] in kept}
        programs.append(RankProgram([*own, *step.sent], held))
    got = interpret_world(programs, {key: [range(schedule.ranks)] for key in groups.values()})
    whole = dict(zip(["loss", *joint.gradients], want, strict=True))
    seen = set()
    for key, values in zip(keys, got, strict=True):
        for k, v in zip(key, values, strict=False):
            assert v.tobytes() == whole[k].tobytes(), (name, k)
            seen.add(k)
    assert seen == set(whole)


def test_a_boundary_is_crossed_once_in_each_direction():
    """One value forward and its derivative back for each micro-batch and boundary."""
    schedule = one_f_one_b(3, 5)
    found = cut(*joint_of(3))
    groups = dict.fromkeys(lanes(schedule), "stages")
    counts = [len(step_of(found, schedule, rank, groups).sent) for rank in range(3)]
    assert counts == [5, 10, 5]


def steps_of(schedule, layers=1):
    joint, returns = joint_of(schedule.depth, layers=layers)
    groups = {lane: f"{lane[0]}{lane[1]}" for lane in lanes(schedule)}
    found = cut(joint, returns)
    return joint, [step_of(found, schedule, rank, groups) for rank in range(schedule.ranks)]


@pytest.mark.parametrize("schedule", [interleaved(4, 4, 2), zb_v(3, 6), dualpipe_v(4, 8)])
def test_a_rank_has_messages_with_one_other_in_one_direction_in_a_lane(schedule):
    """Else one that another rank has not asked for yet holds up those to and from a third one,
    which may wait for them before it comes to what lets the other one ask."""
    for rank, step in enumerate(steps_of(schedule)[1]):
        pairs = {}
        for n in toposort((*step.gradients.values(), *step.sent)):
            if n.op == "send_receive":
                pairs.setdefault(n["group"], set()).update(n["pairs"])
        assert pairs
        assert all(len(own) == 1 for own in pairs.values()), (rank, pairs)


def test_a_rank_computes_in_the_order_of_its_row():
    """A message comes behind the whole entry before its own: else the backward passes of the first
    rank, for which no other rank waits, come behind all forward passes, and the last rank waits."""
    joint, steps = steps_of(one_f_one_b(2, 4))
    for chunk, (step, name, warm) in enumerate(zip(steps, ("F0", "B1"), (1, 0), strict=True)):
        sent = {n["name"].rpartition(" ")[2]: set(toposort((n,))) for n in step.sent}
        for p in (p for p, c in joint.chunks.items() if c == chunk):
            totals = [step.gradients[p]]  # of four micro-batches, of three, two and one
            for _ in range(3):
                totals.append(totals[-1].srcs[0])
            for m in range(4):
                done = max(m - warm, 0)  # backward passes before this one in the row
                assert [base(t) in sent[f"{name}.{m}"] for t in totals] == [
                    count <= done for count in (4, 3, 2, 1)
                ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_message_comes_behind_all_entries_before_its_own(name):
    """By the products below it and those that have their turn before it: a chunk of two layers has
    two of them in F and in W, and in B as many as values of which it has the derivative, so one in
    that of the first chunk."""
    schedule = SCHEDULES[name]
    _, steps = steps_of(schedule, layers=2)
    for step, row in zip(steps, schedule.rows, strict=True):
        sent = {n["name"].rpartition(" ")[2]: n["turn"] for n in step.sent}
        outputs = (*step.gradients.values(), *step.sent)
        messages = [n for n in toposort(outputs) if n.op == "send_receive"]
        before = 0
        for entry in row:
            through = 2 - (entry.what == "B" and entry.chunk == 0)
            if str(entry) in sent:
                begun = [n for n in messages if n["turn"] <= sent[str(entry)]]
                below = sum(n.op == "matmul" for n in toposort(begun))
                assert below == before + through, entry
            before += through + 2 * (entry.what == "B" and not schedule.divides)


def test_what_is_sent_keeps_its_memory_until_it_is_known_to_be_asked_for():
    """Else a kernel may wait for the end of a message whose receiver waits in the same way for one
    that comes later: two ranks, each behind the other."""
    _, steps = steps_of(one_f_one_b(2, 5))
    for step, name, later in zip(steps, ("F0", "B1"), ("F0", "F0"), strict=True):
        outputs = (*step.gradients.values(), *step.sent)
        inputs = tuple(n for n in toposort(outputs) if n.op == "input")
        with hal.open("cpu:0") as device:
            graph = compile_graph(GraphRequest(outputs, inputs), device.info)
        calls = {
            c.call.name.rpartition(" ")[2]: (i, c)
            for i, c in enumerate(graph.calls)
            if isinstance(c, ExchangeCall)
        }
        alive = lifetimes(graph, graph.temps)
        for m in range(3):
            _, sent = calls[f"{name}.{m}"]
            known, _ = calls[f"{later}.{m + 2}"]
            assert sent.src.kind == "temp"
            assert alive[sent.src.index].last >= known


def test_gradients_of_parameters_are_apart_from_those_that_go_back():
    joint, returns = joint_of(3)
    passes = cut(joint, returns).passes
    for p, d in joint.gradients.items():
        assert passes[d] == ("W", joint.chunks[p])
    for d, chunk in returns.items():
        assert passes[d] == ("B", chunk)


def test_a_chunk_without_parameters_is_refused():
    joint, returns = joint_of(2)
    with pytest.raises(InvalidCall, match="chunk 2 of 3 has no parameters"):
        cut(Joint(joint.loss, joint.gradients, joint.chunks, joint.arguments, 3), returns)
