"""Every triple of strategies on eight ranks by the interpreter, against one device:
python -m tests.parallel.triples LOG [NAME ...].

A step of the small GPT of `spread_gpt` with dropout by SGD: how far the loss and the farthest
gradient are from those of cpu:0, and whether what is whole has the same bits on all ranks. Each
name is a line of LOG; those that are there are not done again. The exit status is the number of
those that are farther than 1e-6.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

import stack.framework as ht
from stack.framework.cell import Cell
from stack.framework.spread import divisions
from stack.ir.world import RankProgram, interpret_world
from stack.parallel.divide import Stage, divide, in_order, layouts_of
from stack.parallel.pipeline import summed_backward
from stack.parallel.scatter import placed_value
from stack.parallel.stages import lanes
from tests.parallel import spread_gpt

RANKS, BAR = 8, 1e-6


class Captured(Exception):
    """A function is captured, and not to be run."""


class Captor:
    """Takes what a function is captured as, undivided, with the values of what it reads."""

    def divided(self, function, request, sources):
        self.request, self.sources = request, sources
        raise Captured


def captured(name, strategy):
    """The model, its optimizer, and the step's request and sources with the batch in their
    place."""
    net = spread_gpt.model(experts=spread_gpt.experts_of(name), special=spread_gpt.special_of(name))
    pipe = strategy.pipeline

    def backward(loss_of, *given):
        if pipe is None:
            return spread_gpt.in_turn(1)(loss_of, *given)
        of = dict(net.named_parameters())
        return summed_backward(loss_of, given, of, pipe.chunk, pipe.table.batches)

    count = spread_gpt.micro_batches_of(name)
    step, optimizer = spread_gpt.stepper(net, "sgd", True, backward, count)
    captor = Captor()
    flats = [shard.flat.cell for shard in optimizer.shards]
    divisions.update({cell.serial: captor for cell in flats})
    ht.manual_seed(11)
    (batch,) = spread_gpt.batches(1, spread_gpt.rows_of(name))
    with contextlib.suppress(Captured):
        step(*batch)
    for cell in flats:
        del divisions[cell.serial]
    values = [
        batch[s] if isinstance(s, int) else s.numpy() if isinstance(s, Cell) else np.asarray(s)
        for s in captor.sources
    ]
    return net, optimizer, captor, values


def programs(name, strategy):
    """What each rank computes, and the lines of the mesh by the names of their groups."""
    net, optimizer, captor, values = captured(name, strategy)
    axes, pipe = in_order(strategy), strategy.pipeline
    sizes = [axis.size for axis in axes]
    places = [tuple(int(i) for i in np.unravel_index(r, sizes)) for r in range(RANKS)]
    lines = {}
    for k, axis in enumerate(axes):
        found = {}
        for rank, place in enumerate(places):
            found.setdefault((*place[:k], *place[k + 1 :]), []).append(rank)
        lines[axis.name] = list(found.values())
    of_lanes = {} if pipe is None else {lane: f"lane {lane}" for lane in lanes(pipe.table)}
    for lane in of_lanes.values():
        lines[lane] = lines[pipe.name]
    arguments = [s if isinstance(s, int) else None for s in captor.sources]
    cuts, made = {}, []
    for place in places:
        stage = 0 if pipe is None else place[axes.index(pipe)]
        if stage not in cuts:
            laid = layouts_of(net, axes, [optimizer], stage)
            of = {cell.serial: layout for cell, layout in laid.items()}
            layouts = [of.get(s.serial) if isinstance(s, Cell) else None for s in captor.sources]
            groups = [axis.name for axis in axes]
            here = Stage(stage, of_lanes)
            cut, _ = divide("step", captor.request, layouts, arguments, axes, groups, here)
            cuts[stage] = layouts, cut
        layouts, cut = cuts[stage]
        own = []
        for value, layout in zip(values, layouts, strict=True):
            for p, axis, rank in zip(layout or (), axes, place, strict=False):
                value = placed_value(value, p, axis.size, rank)
            own.append(value)
        own += [np.array(i) for i, axis in zip(place, axes, strict=True) if axis.size > 1]
        made.append(RankProgram(cut.outputs, dict(zip(cut.inputs, own, strict=True))))
    return made, lines


def measured(name, whole):
    """The distances of loss and gradients, and whether all ranks have the same bits."""
    made, lines = programs(name, spread_gpt.composed(name, RANKS))
    got = interpret_world(made, lines)
    count = sum(key.startswith("0.") for key in whole)
    same = all(
        x.tobytes() == y.tobytes()
        for other in got[1:]
        for x, y in zip(got[0][:count], other[:count], strict=True)
    )
    found = {f"0.{i}": value for i, value in enumerate(got[0][:count])}
    ((loss, gradient),) = spread_gpt.distances(found, whole, 1)
    return loss, gradient, same


def main(path, names):
    log, wholes, failed = Path(path), {}, 0
    done = {line.split()[0] for line in log.read_text().splitlines()} if log.exists() else set()
    elements = tuple(name for name in spread_gpt.ELEMENTS if name != "context")
    for name in names or spread_gpt.combinations(3, elements):
        if name in done:
            continue
        which = spread_gpt.model_of(name)
        if which not in wholes:
            wholes[which] = spread_gpt.trained(None, "sgd", 1, name)[0]
        loss, gradient, same = measured(name, wholes[which])
        failed += not same or max(loss, gradient) > BAR
        text = "" if same else ", ranks have other bits"
        with log.open("a") as file:
            file.write(f"{name:24} loss {loss:.1e}, gradients {gradient:.1e}{text}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
