"""Bubbles of pipelines on an emulated clock: python -m tests.parallel.bubbles [RANKS BATCHES].

Each rank's step is compiled for sunway:0 and its kernels run there, one after the other; what
depends on other ranks is walked behind that. Messages take no time themselves: one has been
received when both of its ranks have come to it, and has been sent when its own rank has, as what a
ring between two ranks has room for, or, in a second figure, when both have, as what is larger. A
stage is a few equal layers. Prints for each schedule how much longer the step is than what the
busiest rank computes: by the clock, by the walk of its table with F, B and W as long as they are
there (of two chunks on a rank each its own: the last one has the loss, the first one the shift),
and by that with equally long ones, which is the formula of the schedule, or less than that:
the gradient of a stage's input is sent before those of its parameters are computed. The exit status
is the number of schedules whose steps are farther than 2 % from the walk.
"""

import sys
from collections import Counter, deque
from contextlib import suppress
from fractions import Fraction

import numpy as np

import stack.framework as ht
from hal.core.facts import dataclass
from hal.core.values import Point
from stack.comm.messages import Messages
from stack.framework import nn, optim
from stack.framework.cell import Cell
from stack.framework.devices import engine
from stack.framework.spread import divisions
from stack.parallel.divide import Stage, divide, in_order, layouts_of
from stack.parallel.pipeline import summed_backward
from stack.parallel.schedule import Durations, Schedule, walk
from stack.parallel.stages import lanes
from stack.parallel.strategy import pipeline
from stack.runtime.exchange import Exchange
from stack.runtime.plan import Plan

DEVICE, CLOSE = "sunway:0", 0.02
WIDTH, ROWS, LAYERS = 64, 128, 8
"""Layers on each rank; rows of a micro-batch."""


class Layers(nn.Module):
    """Equal layers. What the first one reads has a parameter below, so that it has a gradient."""

    def __init__(self, count):
        super().__init__()
        self.shift = nn.Parameter(ht.zeros(WIDTH))
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(count)])

    def loss(self, x, weights):
        x = x + self.shift
        for layer in self.layers:
            x = layer(x).tanh()
        return (x * weights).sum()


class Recorded:
    """Takes a captured function, and ends that."""

    def divided(self, function, request, sources):
        self.request, self.sources = request, sources
        raise StopIteration


def captured(net, optimizer, axis):
    """The step of a pipeline, undivided."""
    named = dict(net.named_parameters())
    recorded = Recorded()
    cells = [shard.flat.cell for shard in optimizer.shards]
    divisions.update({cell.serial: recorded for cell in cells})

    @ht.jit
    def step(x, weights):
        optimizer.zero_grad()
        batches = axis.table.batches
        loss = summed_backward(net.loss, [x, weights], named, axis.chunk, batches)
        optimizer.step()
        return loss

    with suppress(StopIteration):
        step(*np.zeros((2, axis.table.batches * ROWS, WIDTH), np.float32))
    for cell in cells:
        del divisions[cell.serial]
    return recorded


def plans(strategy):
    """Of each rank the plan of its step."""
    axes, own = in_order(strategy), engine(DEVICE)
    (axis,) = axes
    ht.manual_seed(1)
    net = Layers(len(axis.chunks) - 1)  # what is no layer is the shift
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    recorded = captured(net, optimizer, axis)
    numbers = [s if isinstance(s, int) else None for s in recorded.sources]
    named = {lane: f"{lane[0]}{lane[1]}" for lane in lanes(axis.table)}
    for rank in range(axis.size):
        found = layouts_of(net, axes, [optimizer], rank)
        by_serial = {cell.serial: layout for cell, layout in found.items()}
        layouts = [
            by_serial.get(s.serial) if isinstance(s, Cell) else None for s in recorded.sources
        ]
        stage = Stage(rank, named)
        cut, _ = divide("step", recorded.request, layouts, numbers, axes, ["stage"], stage)
        yield Plan(own.resources, own.families.compiled_alone(cut)), cut


def timed(plan, request):
    """The steps of a plan: an exchange, or the emulated seconds of kernels; and the exchanges that
    each waits for."""
    own = engine(DEVICE)
    inputs = [own.put(np.zeros(n.shape), n.dtype) for n in request.inputs]
    updates = dict(request.updates)
    outputs = [
        inputs[updates[i]] if i in updates else own.put(np.zeros(n.shape), n.dtype)
        for i, n in enumerate(request.outputs)
    ]
    regions = [array.region for array in (*inputs, *outputs)]
    launched, _ = plan._place()
    for step in launched.steps:
        if isinstance(step.part, Exchange):
            yield step.part._group, step.part._call, step.needs
            continue
        own.sync()
        before = own.stream.submitted_value
        step.part.submit(own.stream, regions, ())
        own.sync()
        values = range(before + 1, own.stream.submitted_value + 1)
        points = [Point(own.stream.timeline, value) for value in values]
        spans = [span for point in points for span in own.device.timestamps(point)]
        yield "", sum(span.device_ns for span in spans) / 1e9, step.needs


class Rank:
    """A rank on the way through its steps: `now`, and of each of its exchanges where it is made and
    when it is done."""

    def __init__(self, steps):
        self.left = deque(steps)
        self.now = self.work = 0.0
        self.exchanges = []

    def go_on(self, number, posted):
        """As far as is known when what it waits for is done."""
        went = False
        while self.left:
            group, what, needs = self.left[0]
            if any(self.exchanges[i].done is None for i in needs):
                break
            self.left.popleft()
            went = True
            if group:
                before = next((x for x in reversed(self.exchanges) if x.group == group), None)
                self.exchanges.append(posted(number, group, what, self.now, before))
            else:
                ready = max([self.now, *(self.exchanges[i].done for i in needs)])
                self.now, self.work = ready + what, self.work + what
        return went


class Posted:
    """An exchange that a rank has come to, behind the one `before` it among the same ranks."""

    def __init__(self, group, begun, before):
        self.group, self.begun, self.before = group, begun, before
        self.done = None


def walked(ranks, waits):
    """The length of a step, and what each rank computes in it. With `waits` a message has been sent
    when it has been received."""
    meetings, counts = {}, Counter()

    def posted(rank, group, call, now, before):
        own = Posted(group, now, before)
        if isinstance(call, Messages):
            ((source, target),) = call.pairs
            key, members, sender = (group, call.name), {source, target}, None if waits else source
        else:
            key, members, sender = (group, counts[group, rank]), set(range(len(ranks))), None
            counts[group, rank] += 1
        meetings.setdefault(key, (members, sender, {}))[2][rank] = own
        return own

    every = [Rank(steps) for steps in ranks]
    went = True
    while went:
        went = False
        for number, rank in enumerate(every):
            went |= rank.go_on(number, posted)
        for members, sender, came in meetings.values():
            for rank, own in came.items():
                needed = {rank: own} if rank == sender else came
                if own.done is None and (rank == sender or set(came) == members):
                    before = [x.before for x in needed.values() if x.before is not None]
                    if all(x.done is not None for x in before):
                        begun = [x.begun for x in needed.values()]
                        own.done = max([*begun, *(x.done for x in before)])
                        went = True
    assert not any(rank.left for rank in every), "ranks wait for one another"
    return max(rank.now for rank in every), [rank.work for rank in every]


@dataclass(frozen=True)
class OfChunks(Durations):
    """F and B of each chunk, and W by the rank that has it."""

    forwards: tuple = ()
    backwards: tuple = ()
    of_rank: tuple = ()
    table: Schedule = None

    def of(self, entry, divides):
        if entry.what == "W":
            return self.of_rank[self.table.rank_of(entry.chunk)]
        return (self.forwards if entry.what == "F" else self.backwards)[entry.chunk]


def of_chunks(strategy, work):
    """How long the passes of each chunk take: F and B as measured on a rank for each chunk with one
    micro-batch, W as the rest of what each rank computes."""
    (axis,) = strategy.axes
    depth = axis.table.depth
    rows = [f"rank {c}: F{c}.0 B{c}.0 W{c}.0" for c in range(depth)]
    alone = "\n".join([f"chunks {' | '.join(map(str, range(depth)))}", *rows])
    forwards, backwards = [], []
    for chunk, made in enumerate(plans(pipeline(depth, alone, dict(axis.chunks)))):
        spent, behind = Counter(), None
        for group, what, _ in timed(*made):
            if isinstance(what, Messages):
                ((source, target),) = what.pairs
                behind = source - chunk, target - chunk
            elif not group:
                spent[behind] += what
        forwards.append(spent[-1, 0] if chunk else spent[None])
        backwards.append(spent[0, 1] + spent[1, 0])
    # The first chunk has its B and W behind one message, the last one its F and B.
    backwards[0] = backwards[-1] = backwards[1]
    forwards[-1] -= backwards[-1]
    batches, own = axis.table.batches, axis.table.chunks
    weights = [
        (seconds / batches - sum(forwards[c] + backwards[c] for c in mine)) / len(mine)
        for seconds, mine in zip(work, own, strict=True)
    ]
    durations = (tuple(map(Fraction, x)) for x in (forwards, backwards, weights))
    return OfChunks(Fraction(1), Fraction(1), Fraction(1), *durations, axis.table)


def apart(table):
    """A table that has W of its own, behind each B where it had none."""
    if table.divides:
        return table
    rows = [
        [x for e in row for x in ((e, e._replace(what="W")) if e.what == "B" else (e,))]
        for row in table.rows
    ]
    return Schedule(table.chunks, tuple(map(tuple, rows)))


def strategies(ranks, batches):
    """Pipelines, with what the formulas say of their bubbles."""
    chunks = {f"layers.{i}.*": i // LAYERS for i in range(ranks * LAYERS)}
    halves = {f"layers.{i}.*": i // (LAYERS // 2) for i in range(ranks * LAYERS)}
    bubble = Fraction(ranks - 1, batches)
    for name, of, formula in [
        ("1f1b", chunks, bubble),
        ("gpipe", chunks, bubble),
        ("interleaved", halves, bubble / 2),
        ("zb-h1", chunks, bubble / 3),
        ("zb-v", halves, None),
        ("dualpipe-v", halves, None),
    ]:
        more = " 2" if name == "interleaved" else ""
        yield name, pipeline(ranks, f"{name} {batches}{more}", {"shift": 0, **of}), formula


def main(ranks=4, batches=8, *names):
    ht.set_default_device(DEVICE)
    missed, forward, backward = 0, 0.0, 0.0
    for name, strategy, formula in strategies(int(ranks), int(batches)):
        if names and name not in ("1f1b", *names):
            continue
        steps = [list(timed(*made)) for made in plans(strategy)]
        (length, work), (longer, _) = (walked(steps, waits) for waits in (False, True))
        table = strategy.axes[0].table
        each = len(table.chunks[0])
        if name == "1f1b":  # F begins the first row, and F and B the last one
            forward = next(seconds for group, seconds, _ in steps[0] if not group)
            own = [seconds for group, seconds, needs in steps[-1] if not group and needs]
            backward = own[0] - forward
        weights = max(work) / table.batches - forward - backward
        if each == 1:
            lengths = Durations(*map(Fraction, (forward, backward, weights)))
        else:
            lengths = of_chunks(strategy, work)
        by_walk = float(walk(apart(table), lengths).bubble)
        even = float(walk(apart(table)).bubble)
        bubble = length / max(work) - 1
        off = (1 + bubble) / (1 + by_walk) - 1
        missed += abs(off) > CLOSE
        print(  # noqa: T201
            f"{name:12} step {1e3 * length:.3f} ms, bubble {bubble:.4f}, by walk {by_walk:.4f} "
            f"({100 * off:+.2f} % of the step), {longer / max(work) - 1:.4f} with messages that "
            f"wait; with equal F, B and W {even:.4f}"
            + (f", formula {float(formula):.4f}" if formula is not None else "")
            + f"; F {1e6 * forward:.0f} B {1e6 * backward:.0f} W {1e6 * weights:.0f} us, least "
            f"work {min(work) / max(work):.3f} of the most",
            flush=True,
        )
    return missed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
