"""Pipelines by the interpreter: all ranks' steps side by side, against one process."""

from dataclasses import replace

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
from stack.parallel.schedule import (
    Schedule,
    dualpipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    zb_h1,
    zb_v,
)
from stack.parallel.stages import FREE, Joint, State, crossing, cut, lanes, step_of
from stack.runtime.offload import offloaded
from stack.runtime.placement import lifetimes, refs
from tests.draw import stream

ROWS, WIDTH = 2, 4
F32 = DType.F32


def joint_of(chunks, tied=None, layers=1):
    """A chain of residual layers, so many to a chunk; the last one's loss reads the batch's
    targets, and the weight of the layer `tied`, too."""
    x, targets = (g.input(i, Type((ROWS, WIDTH), F32)) for i in range(2))
    where, h = {}, x
    for layer in range(chunks * layers):
        w = g.input(2 + 2 * layer, Type((WIDTH, WIDTH), F32))
        b = g.input(3 + 2 * layer, Type((WIDTH,), F32))
        where |= dict.fromkeys((w, b), layer // layers)
        h = g.add(h, g.tanh(g.add(g.matmul(h, w), g.broadcast(b, h.shape))))
    if tied is not None:
        h = g.matmul(h, g.transpose([*where][2 * tied]))
    return joint_to(h, (x, targets), where)


def joint_to(h, arguments, where):
    """The forward and backward pass of a loss: how far `h` is from the last one of the arguments.
    `where` has the parameters' chunks. And what the chunks give back."""
    error = g.sub(h, arguments[-1])
    loss = g.reshape(g.reduce("sum", g.mul(error, error)), ())
    marked = crossing(loss, where)
    total = gradients([(loss, g.const(1.0, F32))], lambda n: n in where or n in marked)
    depth = max(where.values()) + 1
    joint = Joint(loss, {p: total[p] for p in where}, where, arguments, depth)
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


@pytest.mark.parametrize("tied", [None, 0, 1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_ranks_compute_bit_for_bit_what_one_process_does(name, tied):
    schedule = SCHEDULES[name]
    check_bits(schedule, *joint_of(schedule.depth, tied))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rows", [1, ROWS])
def test_parameters_of_two_chunks_may_have_one_gradient(name, rows):
    """As the biases of two layers whose results are added: of as many rows, or of one."""
    schedule = SCHEDULES[name]
    arguments = tuple(g.input(i, Type((ROWS, WIDTH), F32)) for i in range(2))
    h, _ = arguments
    where = {}
    for chunk in range(schedule.depth):
        w = g.input(2 + 2 * chunk, Type((WIDTH, WIDTH), F32))
        b = g.input(3 + 2 * chunk, Type((rows, WIDTH), F32))
        if chunk < schedule.depth - 1:
            h = g.matmul(g.tanh(h), w)
            where[w] = chunk
        h = g.add(h, g.broadcast(b, h.shape))
        where[b] = chunk
    check_bits(schedule, *joint_to(h, arguments, where))


def check_bits(schedule, joint, returns):
    """Losses and gradients of the ranks are those of one process."""
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
            assert v.tobytes() == whole[k].tobytes(), k
            seen.add(k)
    assert seen == set(whole)


@pytest.mark.parametrize("name", stream("states").sample(sorted(SCHEDULES), 2))
def test_what_a_micro_batch_leaves_is_what_the_next_one_finds(name):
    """Running means, which a chunk changes and reads: those of the first one the last chunk reads,
    too. A count of micro-batches belongs to no chunk, and every rank has it."""
    schedule = SCHEDULES[name]
    depth = schedule.depth
    x, targets = (g.input(i, Type((ROWS, WIDTH), F32)) for i in range(2))
    ws = [g.input(2 + i, Type((WIDTH, WIDTH), F32)) for i in range(depth)]
    means = [g.input(20 + i, Type((WIDTH,), F32)) for i in range(depth)]
    count = g.input(40, Type((), F32))
    where, h = {w: i for i, w in enumerate(ws)}, x
    states = {count: State(g.add(count, g.const(1.0, F32)), FREE)}
    for i, (w, mean) in enumerate(zip(ws, means, strict=True)):
        h = g.add(h, g.tanh(g.sub(g.matmul(h, w), g.broadcast(mean, h.shape))))
        new = g.reshape(g.reduce("sum", h, (0,)), (WIDTH,))
        states[mean] = State(g.sub(new, mean), i)
    error = g.sub(g.mul(h, g.broadcast(means[0], h.shape)), targets)
    loss = g.mul(g.reshape(g.reduce("sum", g.mul(error, error)), ()), count)
    homes = {**where, **{n: s.chunk for n, s in states.items() if s.chunk != FREE}}
    marked = crossing(loss, homes)
    total = gradients([(loss, g.const(1.0, F32))], lambda n: n in where or n in marked)
    derivatives = {w: total[w] for w in where}
    joint = Joint(loss, derivatives, where, (x, targets), depth, states)

    rng, batches = np.random.default_rng(2), schedule.batches
    values = {n: rng.standard_normal(n.shape).astype(np.float32) for n in (*ws, *means)}
    values[count] = np.array(1, np.float32)
    batch = rng.standard_normal((2, batches * ROWS, WIDTH)).astype(np.float32)
    left, wanted = dict(values), None
    for m in range(batches):
        now = left | dict(zip((x, targets), batch[:, m * ROWS : (m + 1) * ROWS], strict=True))
        roots = [loss, *derivatives.values(), *(s.value for s in states.values())]
        found = interpret(roots, now)
        sums, new = found[: 1 + depth], found[1 + depth :]
        wanted = sums if wanted is None else [a + b for a, b in zip(wanted, sums, strict=True)]
        left |= dict(zip(states, new, strict=True))

    groups = {lane: f"{lane[0]}{lane[1]}" for lane in lanes(schedule)}
    apart = cut(joint, {total[n]: chunk for n, chunk in marked.items() if n in total})
    steps = [step_of(apart, schedule, rank, groups) for rank in range(schedule.ranks)]
    whole = {g.input(i, Type(batch[i].shape, F32)): batch[i] for i in range(2)}
    outputs = [
        (*s.gradients.values(), *s.states.values(), *([s.loss] if s.loss else []), *s.sent)
        for s in steps
    ]
    lines = {key: [range(schedule.ranks)] for key in groups.values()}
    ran = interpret_world([RankProgram(o, values | whole) for o in outputs], lines)
    for step, given in zip(steps, ran, strict=True):
        own = dict(zip((*step.gradients, *step.states), given, strict=False))
        assert count in own
        for w, want in zip(ws, wanted[1:], strict=True):
            assert w not in own or own[w].tobytes() == want.tobytes()
        for n in step.states:
            assert own[n].tobytes() == left[n].tobytes()
    assert sorted(n["slot"] for s in steps for n in s.states if n is not count) == [
        20 + i for i in range(depth)
    ]


def test_the_last_chunk_may_compute_nothing():
    """A part of the model that the loss does not read: the loss is where it is computed."""
    joint, returns = joint_of(1)
    unread = g.input(9, Type((), F32))
    joint = replace(joint, chunks={**joint.chunks, unread: 1}, depth=2)
    one, other = (step_of(cut(joint, returns), gpipe(2, 2), rank, {}) for rank in range(2))
    assert one.loss is not None
    assert other.loss is None
    assert not (*one.sent, *other.sent, *other.gradients)


def test_states_take_micro_batches_in_their_order():
    schedule = Schedule.parse("chunks 0\nrank 0: F0.1 F0.0 B0.0 B0.1")
    joint, returns = joint_of(1)
    mean = g.input(9, Type((), F32))
    states = {mean: State(g.add(mean, joint.loss), 0)}
    joint = replace(joint, states=states)
    with pytest.raises(InvalidCall, match=r"a buffer .* has them in the order F0.1, F0.0; let"):
        step_of(cut(joint, returns), schedule, 0, {})


def test_a_boundary_is_crossed_once_in_each_direction():
    """One value forward and its derivative back for each micro-batch and boundary."""
    schedule = one_f_one_b(3, 5)
    found = cut(*joint_of(3))
    groups = dict.fromkeys(lanes(schedule), "stages")
    counts = [len(step_of(found, schedule, rank, groups).sent) for rank in range(3)]
    assert counts == [5, 10, 5]


def test_the_smallest_of_what_a_chunk_reads_crosses_its_boundary():
    """As of a convolution the image, not its windows, and of what skips a block and the block's
    result both: the block's own derivative is computed where the block is."""
    x, targets = (g.input(i, Type((ROWS, WIDTH), F32)) for i in range(2))
    a, b = (g.input(i, Type((WIDTH, WIDTH), F32)) for i in (2, 3))
    wide = g.input(4, Type((3 * WIDTH, WIDTH), F32))
    where = {a: 0, b: 0, wide: 1}

    def thrice(h):
        windows = g.broadcast(g.reshape(h, (ROWS, WIDTH, 1)), (ROWS, WIDTH, 3))
        return g.matmul(g.reshape(windows, (ROWS, 3 * WIDTH)), wide)

    h = g.tanh(g.matmul(x, a))
    block = g.tanh(g.matmul(h, b))
    for y, images in ((thrice(block), 1), (g.mul(thrice(block), h), 2)):
        joint, returns = joint_to(y, (x, targets), where)
        schedule = gpipe(2, 2)
        check_bits(schedule, joint, returns)
        found, groups = cut(joint, returns), dict.fromkeys(lanes(schedule), "stages")
        for rank in range(2):
            sent = step_of(found, schedule, rank, groups).sent
            assert [n.type.size for n in sent] == [ROWS * WIDTH] * images * schedule.batches


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
        least = offloaded(graph, 1, 1 << 20, lambda g: max(live(g)))
        assert max(live(least)) < max(live(graph))
        for made in (graph, least):
            calls = {
                c.call.name.rpartition(" ")[2]: (i, c)
                for i, c in enumerate(made.calls)
                if isinstance(c, ExchangeCall)
            }
            alive = lifetimes(made, made.temps)
            for m in range(3):
                _, sent = calls[f"{name}.{m}"]
                known, _ = calls[f"{later}.{m + 2}"]
                assert sent.src.kind == "temp"
                assert alive[sent.src.index].last >= known


def live(graph):
    """The bytes of temporaries that are alive in each call."""
    spans = lifetimes(graph, graph.temps)
    return [
        sum(span.nbytes for span in spans if span.first <= i <= span.last)
        for i in range(len(graph.calls))
    ]


def test_a_rank_that_waits_for_a_gradient_goes_on_in_the_order_of_its_row():
    """Else the first rank of ZB-H1 computes a later forward pass meanwhile, and holds activations
    of more passes than its table says."""
    schedule = zb_h1(2, 4)
    step = steps_of(schedule, layers=2)[1][0]
    outputs = (*step.gradients.values(), *step.sent)
    inputs = tuple(n for n in toposort(outputs) if n.op == "input")
    with hal.open("cpu:0") as device:
        calls = compile_graph(GraphRequest(outputs, inputs), device.info).calls
    at = {
        c.call.name.rpartition(" ")[2]: i
        for i, c in enumerate(calls)
        if isinstance(c, ExchangeCall)
    }
    for m in range(2):
        first, sent = at[f"B1.{m}"] + 1, at[f"F0.{m + 2}"]
        needed, forward = {calls[sent].src.index}, []
        for i in reversed(range(first, sent)):
            used = {ref.index for ref in refs(calls[i]) if ref.kind == "temp"}
            if not needed.isdisjoint(used):
                forward.insert(0, i)
                needed |= used
        assert forward == [*range(sent - 2, sent)], "a layer of two is a kernel here"
        assert sent - first > 2, "the backward pass comes before"


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
