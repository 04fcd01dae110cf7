"""A graph cut for ranks, by the interpreter: all ranks' graphs side by side against one's."""

import re
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hal
import stack.framework as ht
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Type, toposort
from stack import ops as g
from stack.comm.messages import sent_bytes
from stack.compiler.compile import compile_graph
from stack.compiler.program import ExchangeCall, GraphRequest, KernelCall
from stack.framework import nn
from stack.framework.cell import Cell
from stack.framework.spread import divisions
from stack.framework.utils.checkpoint import checkpoint
from stack.ir.interpret import interpret
from stack.ir.verify import verify
from stack.ir.world import RankProgram, interpret_world
from stack.ops import OPS, exchange_of, is_exchange
from stack.parallel.convert import Line, converted, route
from stack.parallel.divide import check_patterns, divide, in_order, layouts_of
from stack.parallel.overlap import Pace, Travel
from stack.parallel.partition import Spread, partitioned, rank_input
from stack.parallel.placement import (
    SUM,
    WHOLE,
    Owned,
    Partial,
    Routed,
    Row,
    Sharded,
    Shares,
    fits,
    local_type,
)
from stack.parallel.scatter import placed_value, whole_value
from stack.parallel.shadowed import shadow_steps
from stack.parallel.solve import PRICE, Chooser
from stack.parallel.strategy import AxisLayout, Strategy, context, data, expert, tensor, zero
from stack.parallel.way import Way
from stack.parallel.ways import ways
from tests.draw import sample, stream
from tests.ops.cases import EVERY, Maker, drawn
from tests.parallel import spread_gpt
from tests.parallel.spread_gpt import MEGATRON, STRATEGIES


class Recorded:
    """A function as it is captured, undivided: its request, and where the inputs come from."""

    context = None

    def settle(self):
        """Values are whole."""

    def divided(self, function, request, sources):
        self.request, self.sources = request, sources
        return request, []

    def planned(self, make):
        return make()

    def called(self, function, arguments):
        """One rank alone has nobody to agree with."""


class Blocks(nn.Module):
    """The GPT's, of numbers that are given."""

    def __init__(self, layers):
        super().__init__()
        self.blocks = spread_gpt.model(layers).blocks

    def loss(self, given, wanted):
        x = given.float().unsqueeze(-1) * ht.ones(spread_gpt.WIDTH)
        for block in self.blocks:
            x, _ = block(x)
        return (x - wanted.unsqueeze(-1)).square().mean()


class Case:
    """A step of the GPT, whole: graph, layouts by strategy, values of the inputs and outputs."""

    def __init__(self, kind, rows=spread_gpt.ROWS, layers=1, experts=0, special="", model=None):
        self.model = model or spread_gpt.model(layers, experts, special)
        step, self.optimizer = spread_gpt.stepper(self.model, kind, gradients=False)
        recorded = Recorded()
        flats = [shard.flat.cell for shard in self.optimizer.shards]
        divisions.update({cell.serial: recorded for cell in flats})
        (batch,) = spread_gpt.batches(1, rows)
        step(*batch)
        for cell in flats:
            del divisions[cell.serial]
        self.request, self.sources = recorded.request, recorded.sources
        self.values = [self._value(s, batch) for s in self.sources]
        inputs = dict(zip(self.request.inputs, self.values, strict=True))
        self.inputs = inputs

    def _value(self, source, batch):
        if isinstance(source, int):
            return batch[source]
        return source.numpy() if isinstance(source, Cell) else np.asarray(source)

    def divide(self, strategy, pace=None, **numbers):
        axes = in_order(strategy)
        found = layouts_of(self.model, axes, [self.optimizer])
        by_serial = {cell.serial: layout for cell, layout in found.items()}
        layouts = [by_serial.get(s.serial) if isinstance(s, Cell) else None for s in self.sources]
        arguments = [s if isinstance(s, int) else None for s in self.sources]
        groups = [a.name for a in axes]
        given = ("step", self.request, layouts, arguments, axes, groups)
        cut, said = divide(*given, numbers=numbers, pace=pace)
        return axes, layouts, cut, said


@pytest.fixture(scope="module")
def cases():
    made = {}

    def case(kind, experts=0):
        if (kind, experts) not in made:
            made[kind, experts] = Case(kind, experts=experts)
        return made[kind, experts]

    return case


def places(axes, ranks):
    """Each rank's place along each axis, and the lines of each axis."""
    sizes = [a.size for a in axes]
    at = [tuple(int(i) for i in np.unravel_index(r, sizes)) for r in range(ranks)]
    lines = {}
    for k, axis in enumerate(axes):
        groups = {}
        for r, place in enumerate(at):
            groups.setdefault((*place[:k], *place[k + 1 :]), []).append(r)
        lines[axis.name] = list(groups.values())
    return at, lines


def in_parts(value, layout, axes, place):
    for p, axis, rank in zip(layout or (), axes, place, strict=False):
        value = placed_value(value, p, axis.size, rank)
    return value


def run_ranks(case, axes, layouts, cut, cut_of=None):
    """Every rank's outputs; `cut_of` gives each place its graph where they have graphs of their
    own."""
    ranks = int(np.prod([a.size for a in axes]))
    at, lines = places(axes, ranks)
    real = [k for k, axis in enumerate(axes) if axis.size > 1]
    programs = []
    for place in at:
        values = [
            in_parts(v, layout, axes, place) for v, layout in zip(case.values, layouts, strict=True)
        ]
        numbers = [np.array(place[k]) for k in real]
        own = cut if cut_of is None else cut_of(place)
        inputs = dict(zip(own.inputs, [*values, *numbers], strict=True))
        programs.append(RankProgram(own.outputs, inputs))
    return at, interpret_world(programs, lines)


COUNTED = stream("stages").choice((0, 1, 2, 3, "experts", "layers", "again"))
"""The stage of ZeRO or what else's bytes this run counts, or what else it takes the time for."""
SAMPLED = stream("strategies").sample(sorted(STRATEGIES), 1)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", SAMPLED)
def test_a_step_on_ranks_is_the_step_of_one_device(name, cases):
    # These add a row's scores in another order, and a bias of keys has no gradient but rounding,
    # which Adam's first step makes as large as any other one.
    kind = "sgd" if {"context", "ring"} & set(name.split("+")) else "adamw"
    case, strategy = cases(kind, spread_gpt.experts_of(name)), STRATEGIES[name](4)
    axes, layouts, cut, _ = case.divide(strategy)
    verify(cut.outputs)
    at, got = run_ranks(case, axes, layouts, cut)
    compare(case, axes, layouts, at, got, name)


UNEVEN = {
    "data": data(3, shares=(1, 3, 2)),
    "tensor": data(2, shares=(2, 1)) + tensor(2, MEGATRON),
    "zero1": data(2, "replica", shares=(1, 2)) + zero(1, 2),
    "zero3": zero(3, 2) + data(2, "replica", shares=(2, 1)),
    "context": context(2) + data(2, shares=(1, 5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", stream("uneven").sample(sorted(UNEVEN), 1))
@pytest.mark.turns
def test_a_step_on_ranks_with_unequal_shares_is_the_step_of_one_device(name):
    case, strategy = Case("sgd", rows=6), UNEVEN[name]
    axis = next(a for a in strategy.axes if a.shares)
    made = [case.divide(strategy, **{axis.name: rank}) for rank in range(axis.size)]
    axes, layouts, cut, _ = made[0]
    for _, _, own, _ in made:
        verify(own.outputs)
    k = axes.index(axis)
    at, got = run_ranks(case, axes, layouts, cut, lambda place: made[place[k]][2])
    compare(case, axes, layouts, at, got, name)


class Again(nn.Module):
    """A GPT of small experts without a capacity, whose blocks are computed again."""

    def __init__(self):
        super().__init__()
        self.net = spread_gpt.model(layers=2, experts=spread_gpt.EXPERTS)
        for block in self.net.blocks:
            given = spread_gpt.WIDTH, 24, spread_gpt.EXPERTS
            block.mixture = nn.MixtureOfExperts(*given, capacity=None, shared=1)

    def loss(self, tokens, targets):
        net, more = self.net, 0.0
        x = net.token(tokens) + net.position.weight[: tokens.shape[1]]
        for block in net.blocks:
            x, added = checkpoint(block, x)
            more = more + added
        logits = net.head(net.norm(x)).flatten(0, 1)
        return nn.functional.cross_entropy(logits, targets.flatten()) + more


@pytest.mark.slow
@pytest.mark.skipif(COUNTED != "again", reason="another run takes the time for this")
def test_experts_that_are_chosen_again_take_what_they_are_sent():
    """What a rank sends by the second choice waits for that."""
    case = Case("sgd", rows=4, model=Again())
    axes, layouts, cut, _ = case.divide(expert(4, "*.mixture"))
    at, got = run_ranks(case, axes, layouts, cut)
    compare(case, axes, layouts, at, got, "expert")


@pytest.mark.slow
@pytest.mark.parametrize("shadows", stream("shadows").sample((1, 2, spread_gpt.EXPERTS), 1))
@pytest.mark.parametrize("special", stream("chosen").sample(("dropless", "one"), 1))
@pytest.mark.turns
def test_experts_with_the_most_tokens_are_computed_where_these_are(special, shadows):
    """The step is that of one device, and where all tokens choose two experts that are shadowed no
    row travels: the counts that exchanges read are those of the ranks themselves."""
    case = Case("sgd", experts=spread_gpt.EXPERTS, special=special)
    if special == "dropless":
        with pytest.raises(InvalidCall, match="`shadows 5` are more than the 4 experts"):
            case.divide(expert(2, "*.mixture", shadows=5))
    else:
        spread_gpt.dropless(case.model)
        case = Case("sgd", model=case.model)
    axes, layouts, cut, said = case.divide(expert(2, "*.mixture", shadows=shadows))
    verify(cut.outputs)
    compare(case, axes, layouts, *run_ranks(case, axes, layouts, cut), special)
    assert ("expert", "all_to_all_v") in said.calls
    sends = [n for n in toposort(cut.outputs) if n.op == "all_to_all_v"]
    travelling = sum(travelling_of(case, axes, layouts, cut, sends, "rows of"))
    if shadows == spread_gpt.EXPERTS or (special == "one" and shadows == 2):
        assert travelling == 0
    elif shadows == 1:
        assert travelling > 0


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("special", stream("parts").sample(("dropless", "one"), 1))
def test_tokens_in_parts_are_computed_as_all_of_them(special):
    """In three parts, which no number of rows here is a multiple of. What they are multiplied by
    does not change: what the ranks send is what they send in one part, in more calls."""
    net = spread_gpt.model(1, spread_gpt.EXPERTS, special)
    spread_gpt.dropless(net)
    case, rows = Case("sgd", model=net), {}
    for parts in (1, 3):
        axes, layouts, cut, _ = case.divide(expert(2, "*.mixture", shadows=1, parts=parts))
        verify(cut.outputs)
        compare(case, axes, layouts, *run_ranks(case, axes, layouts, cut), special)
        sends = [n for n in toposort(cut.outputs) if n.op == "all_to_all_v"]
        rows[parts] = travelling_of(case, axes, layouts, cut, sends, "rows of")
        moves = sum(n["name"].startswith("rows of") for n in sends)
        assert moves == 4 * parts  # there and back, and so for the gradients
    assert rows[1] == rows[3]


def test_rows_travel_in_as_many_parts_as_take_least():
    with hal.open("cpu:0") as device:
        here = Pace.of(device.info, is_across=False)
    assert here.hidden == 0
    even = Travel(4, 1 << 20, 1e9, 1 << 20)
    link = Pace(1e12, 1e12, 1e9, 1e-6, 1.0)  # 1 ms of each, so that half of it can be hidden
    assert even.parts(here) == 1
    assert even.parts(link) == 8
    assert even.parts(replace(link, call_s=1e-3)) == 1
    assert even.parts(replace(link, read=1e9)) == 1
    assert even.parts(replace(link, call_s=1e-4)) == 2
    assert Pace.slowest([here, link]).hidden == 0
    assert Travel(0, 0, 0.0, 0).said(link) == ""


def test_parts_are_chosen_where_a_strategy_says_none_and_told():
    net = spread_gpt.model(1, spread_gpt.EXPERTS)
    spread_gpt.dropless(net)
    case, pace = Case("sgd", model=net), Pace(1e6, 1e12, 1e6, 0.0, 1.0)
    for parts, of, made in ((None, pace, 8), (None, None, 1), (2, pace, 2)):
        _, _, cut, said = case.divide(expert(2, "*.mixture", parts=parts), pace=of)
        sends = [n for n in toposort(cut.outputs) if n.op == "all_to_all_v"]
        assert sum(n["name"].startswith("rows of") for n in sends) == 4 * made
        chosen = [line for line in str(said).splitlines() if "rows travel" in line]
        assert len(chosen) == (parts is None and of is not None)
        assert all("expert: rows travel in 8 parts, of" in line for line in chosen)


def test_a_part_of_the_tokens_is_multiplied_while_others_travel():
    """What is begun one after the other: rows of both parts go, the first one is multiplied twice
    and goes back before the second one is."""
    x, groups = g.input(0, Type((256, 16), DType.F32)), g.input(3, Type((256,), DType.I64))
    up, down = g.input(1, Type((4, 16, 32), DType.F32)), g.input(2, Type((4, 32, 16), DType.F32))
    hidden = g.grouped_matmul(g.mul(x, x), up, groups)
    y = g.grouped_matmul(g.mul(hidden, hidden), down, groups)
    inputs = dict.fromkeys((x, up, down, groups), Sharded(0))
    spread = Spread(2, "ranks", inputs, {}, [Sharded(0)], parts=2)
    cut = partitioned([y], spread, rank_input(4))
    own = *(cut.inputs[n] for n in (x, up, down, groups)), cut.rank
    with hal.open("cpu:0") as device:
        calls = compile_graph(GraphRequest(cut.outputs, own), device.info).calls
    found = [
        "travel" if isinstance(call, ExchangeCall) else "multiply"
        for call in calls
        if (isinstance(call, ExchangeCall) and call.call.name.startswith("rows of f32"))
        or (isinstance(call, KernelCall) and "matmul" in call.source.entry)
    ]
    assert found == ["travel"] * 2 + ["multiply", "multiply", "travel"] * 2


def travelling_of(case, axes, layouts, cut, sends, name):
    """The elements that each rank sends to others, in these exchanges of such a name."""
    own = tuple(n.srcs[1] for n in sends if n["name"].startswith(name))
    _, got = run_ranks(case, axes, layouts, replace(cut, outputs=own))
    return [sum(int(c.sum() - c[rank]) for c in counts) for rank, counts in enumerate(got)]


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("ranks", "shadows"), stream("owners").sample(((2, 2), (4, 3)), 1))
def test_matrices_of_shadowed_experts_are_sent_by_their_owners(ranks, shadows):
    """Of S bytes for n ranks these send (n - 1) (1 + 1 / n) S together, for the matrices of a layer
    as for their gradients; a sum over all ranks would be 2 (n - 1) S."""
    sizes = (spread_gpt.WIDTH * 4 * spread_gpt.WIDTH,) * 2
    case = Case("sgd", experts=spread_gpt.EXPERTS, special="dropless")
    axes, layouts, cut, _ = case.divide(expert(ranks, "*.mixture", shadows=shadows))
    exchanges = [n for n in toposort(cut.outputs) if is_exchange(n)]
    sends = [n for n in exchanges if n.op == "all_to_all_v"]
    own = {
        kind: [n for n in exchanges if n["name"].startswith(f"shadowed {kind}")]
        for kind in ("matrices", "sums")
    }
    whole, total = 4 * shadows * sum(sizes), 0
    for kind, op in (("matrices", "all_gather"), ("sums", "reduce_scatter")):
        assert [n.op for n in own[kind]] == [op] * len(sizes)
        found = [
            sum(sent_bytes(exchange_of(n).call(n), rank, ranks) for n in own[kind]) + 4 * elements
            for rank, elements in enumerate(
                travelling_of(case, axes, layouts, cut, sends, f"parts of shadowed {kind}")
            )
        ]
        assert sum(found) * ranks == (ranks - 1) * (ranks + 1) * whole
        assert max(found) * ranks <= 2 * (ranks - 1) * whole
        total += sum(found)
    steps = [shadow_steps(n, shadows, ranks) for n in toposort(case.request.outputs)]
    counted = sum(nbytes for found in steps for _, nbytes in found)
    assert counted * ranks == total, "what the choice of ways counts"


@pytest.mark.parametrize("shadows", [0, 4])
def test_rows_do_not_travel_where_matrices_would_be_dearer(shadows):
    """Of shadowed groups no rows are sent, but matrices: where these are larger than what all rows
    are they stay, as the rows do."""
    x, w = g.input(0, Type((64, 64), DType.F32)), g.input(1, Type((4, 64, 64), DType.F32))
    groups = g.input(2, Type((64,), DType.I64))
    y = g.grouped_matmul(g.mul(x, x), w, groups)
    inputs = {x: Sharded(0), groups: Sharded(0), w: Sharded(0)}
    spread = Spread(2, "ranks", inputs, {}, [Sharded(0)], shadows=shadows)
    (made,) = partitioned([y], spread, rank_input(3)).outputs
    said = [n["name"] for n in toposort((made,)) if is_exchange(n)]
    assert any(name.startswith("rows of") for name in said) == (not shadows)
    whole = route(x.type, Sharded(0), Routed(groups, 4), 2)[0][1]
    assert route(x.type, Sharded(0), Routed(groups, 4), 2, 3)[0][1] == whole // 4


def compare(case, axes, layouts, at, got, name):
    """The outputs of ranks at these places, together, with those of one device."""
    found = interpret(case.request.outputs, case.inputs)
    updated = dict(case.request.updates)
    for i, (n, whole) in enumerate(zip(case.request.outputs, found, strict=True)):
        own = {place: outputs[i] for place, outputs in zip(at, got, strict=True)}
        layout = layouts[updated[i]] if i in updated else None
        value = gathered(own, layout or (WHOLE,) * len(axes), axes, n.type)
        error = np.linalg.norm(value.astype(np.float64) - whole)
        assert error <= 1e-6 * max(np.linalg.norm(whole), 1e-30), (name, i, n.type)


def gathered(own, layout, axes, type):
    """The value of which the ranks, by their places, have these parts. What is whole on several
    ranks has the same bits there."""
    types = [type]
    for p, axis in zip(layout, axes, strict=True):
        types.append(local_type(types[-1], p, axis.size))
    for k in reversed(range(len(axes))):
        lines = {}
        for place, value in sorted(own.items()):
            lines.setdefault(place[:k], []).append(value)
        if layout[k] == WHOLE:
            assert all(v.tobytes() == line[0].tobytes() for line in lines.values() for v in line)
        own = {place: whole_value(line, layout[k], types[k]) for place, line in lines.items()}
    return own[()]


def sum_of(counts, axis):
    return {kind: n for (group, kind), n in counts.items() if group == axis}


READ_BACKWARD = r"blocks.*(qkv|out|up|down)\.weight|norm.*weight"
STAGES = [COUNTED] if isinstance(COUNTED, int) else []


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("stage", STAGES)
def test_what_is_sent_is_what_the_formulas_say(stage):
    """Bytes of data parallelism and ZeRO: of all parameters with the gaps of their array, and of
    the loss, the number of its terms, and the norm. The batch has more rows than the embedding, as
    else less is sent for that by exchanging rows."""
    case, ranks = Case("adamw", rows=32), stream("ranks").choice((2, 4))
    nbytes = 4 * sum(shard.layout.size for shard in case.optimizer.shards)
    share, scalar = nbytes * (ranks - 1) // ranks, 2 * (4 * (ranks - 1) // ranks)
    *_, cut, said = case.divide(zero(stage, ranks) if stage else data(ranks))
    counted = [n for n in toposort(cut.outputs) if n.op == "concat" and not n.dtype.is_float]
    assert not counted, "groups of parameters are told apart by boundaries, not by numbers"
    sent, made = sum_of(said.sent, "data"), sum_of(said.calls, "data")
    if stage:
        # Stage 3 gathers again what a backward pass reads: matrices of blocks, and gains of norms
        read = [p for name, p in case.model.named_parameters() if re.search(READ_BACKWARD, name)]
        again = 4 * sum(p.numel() for p in read) if stage == 3 else 0
        assert sent["reduce_scatter"] == share
        assert sent["all_gather"] == share + again * (ranks - 1) // ranks
        assert sent["all_reduce"] == 3 * scalar
    else:
        assert sent == {"all_reduce": 2 * share + 2 * scalar}
        assert made == {"all_reduce": 4}  # two buckets, the loss, how many count


@pytest.mark.slow
@pytest.mark.turns
def test_a_divided_step_launches_as_many_kernels_as_one_device_does():
    """Among ranks along their rows or in tensors, whichever is drawn; and one more, since the mean
    of losses is divided behind the sum over ranks, where one device does both at once. In tensors
    another one where rows of the embedding are divided, normalised and gathered: their sum with
    the rest of the block is a kernel behind the exchange."""
    tensors = stream("kernels").choice((False, True))
    strategy = tensor(2, MEGATRON) if tensors else data(2)
    case = Case("sgd", layers=2)
    with hal.open("cpu:0") as device:
        own, whole = (
            sum(isinstance(c, KernelCall) for c in compile_graph(request, device.info).calls)
            for request in (case.divide(strategy)[2], case.request)
        )
    assert own <= whole + 1 + tensors


@pytest.mark.slow
@pytest.mark.skipif(COUNTED != "layers", reason="another run counts this")
def test_a_layer_divided_in_tensors_exchanges_four_and_four_times():
    """With its sequence divided where nothing needs it whole: what the blocks of the GPT exchange,
    whose first one owes nobody a gradient. How embedding and head exchange is chosen for each model
    anew."""
    activations = spread_gpt.ROWS * spread_gpt.CONTEXT * spread_gpt.WIDTH * 4
    shards = {name: p for name, p in MEGATRON.items() if name.startswith("*")}
    for layers in (1, 4):
        said = Case("sgd", model=Blocks(layers)).divide(tensor(2, shards))[3]
        for kind in ("all_gather", "reduce_scatter"):
            assert said.calls["tensor", kind] == 4 * layers - 1
            assert said.sent["tensor", kind] == (4 * layers - 1) * activations // 2
        assert ("tensor", "all_to_all") not in said.calls
        assert not said.whole


@pytest.mark.slow
@pytest.mark.skipif(COUNTED != "experts", reason="another run counts this")
def test_a_mixture_of_experts_exchanges_twice_and_twice():
    """To the experts and back, forward and backward: every place of the ranks' own sequences, of
    which the part for this rank's experts stays here. With fewer ranks than a token's places are
    full, gathering the tokens sends less."""
    ranks = 4
    said = Case("sgd", experts=spread_gpt.EXPERTS).divide(STRATEGIES["expert"](ranks))[3]
    places = -(-spread_gpt.CONTEXT * 2 * 5 // (4 * spread_gpt.EXPERTS))
    own = spread_gpt.ROWS // ranks * spread_gpt.EXPERTS * places * spread_gpt.WIDTH * 4
    assert said.calls["expert", "all_to_all"] == 4
    assert said.sent["expert", "all_to_all"] == 4 * own * (ranks - 1) // ranks
    assert not said.whole


@pytest.mark.slow
@pytest.mark.skipif(COUNTED != "experts", reason="another run counts this")
def test_a_mixture_without_capacity_sends_the_rows_whose_experts_are_elsewhere():
    """Twice and twice, too, and no more rows than were chosen, which is data; and how many there
    are for each expert, once."""
    ranks, experts, width = stream("dropless").choice((2, 4)), spread_gpt.EXPERTS, spread_gpt.WIDTH
    case = Case("sgd", experts=experts, special="dropless")
    axes, layouts, cut, said = case.divide(STRATEGIES["expert"](ranks))
    sends = [n for n in toposort(cut.outputs) if n.op == "all_to_all_v"]
    counts = replace(cut, outputs=tuple(n.srcs[1] for n in sends))
    _, got = run_ranks(case, axes, layouts, counts)
    (groups,) = {n.srcs[2] for n in toposort(case.request.outputs) if n.op == "grouped_matmul"}
    (chosen,) = interpret((groups,), case.inputs)
    homes = chosen.reshape(ranks, -1) // (experts // ranks)
    rows = np.array([[(own == rank).sum() for rank in range(ranks)] for own in homes])
    for rank, sent in enumerate(got):
        np.testing.assert_array_equal(sum(sent), 2 * width * (rows[rank] + rows[:, rank]))
    assert said.calls["expert", "all_to_all_v"] == len(sends) == 4
    assert said.sent["expert", "all_to_all_v"] == 4 * (ranks - 1) * homes.shape[1] * width * 4
    assert said.sent["expert", "all_to_all"] == 8 * (experts - experts // ranks)
    assert not said.whole


def test_what_a_choice_costs_does_not_follow_the_hash_of_texts(monkeypatch):
    """It differs between processes, and ranks that add costs up in another order choose otherwise
    where two choices cost as much."""
    x = g.input(0, Type((12, 20, 28), DType.F32))
    placed = [WHOLE, Sharded(0), Sharded(1), Partial(), Partial("max"), Row(6720), Owned(1)]
    y = g.exp(x)
    options = {x: [Way((), WHOLE)], y: [Way((WHOLE,), p) for p in placed]}
    found = []
    for salt in range(6):
        monkeypatch.setattr(Partial, "__hash__", lambda p, salt=salt: hash((len(p.by), salt)))
        chooser = Chooser([x, y], options, [], 4, PRICE)
        subsets = (some for count in (3, 4, 5) for some in combinations(placed, count))
        found.append([chooser.spread(y, a, frozenset(some)) for some in subsets for a in placed])
    assert all(costs == found[0] for costs in found)


NEEDS_RANKS = frozenset(name for name, row in OPS.items() if row.exchange is not None)
RULED = [(op, d) for op, d in EVERY if OPS[op].sharding is not None and op not in NEEDS_RANKS]


@pytest.mark.parametrize(("op", "dtype"), sample("operators", RULED, 40), ids=str)
@settings(max_examples=3, deadline=None, database=None)
@given(data=st.data())
def test_each_way_to_compute_an_operator_on_ranks_gives_its_value(op, dtype, data):
    """Every way that a row's rule gives, on operands that are cut as it wants them."""
    m = Maker(data.draw, views=False, gentle=True)
    n = drawn(m, op, dtype)
    if n.op != op:
        return
    values = interpret(n.srcs, m.inputs)
    (want,) = interpret([n], m.inputs)
    srcs = [g.input(i, s.type) for i, s in enumerate(n.srcs)]
    whole = g.make(n.op, srcs, n.type, **dict(n.attrs))
    known = {x: dict.fromkeys([WHOLE]) for x in (*srcs, whole)}
    for counts in ((1, 1), (2, 1)):
        for way in ways(whole, known, sum(counts)):
            check_way(whole, srcs, values, way, want, counts)


def part_by(value, p, counts, rank):
    """What a rank with so many pieces has of a value; a rank with one of each by the library."""
    if set(counts) == {1} or not isinstance(p, Sharded):
        return placed_value(value, p, len(counts), rank)
    before, after = value.shape[: p.axis], value.shape[p.axis + 1 :]
    pieces = value.reshape(*before, p.major, sum(counts), -1, *after)
    own = range(sum(counts[:rank]), sum(counts[: rank + 1]))
    return np.ascontiguousarray(pieces.take(own, p.axis + 1).reshape(*before, -1, *after))


def whole_by(parts, p, type, counts):
    """The value of which ranks with so many pieces have these parts."""
    if set(counts) == {1} or not isinstance(p, Sharded):
        return whole_value(parts, p, type)
    before, after = type.shape[: p.axis], type.shape[p.axis + 1 :]
    cut = [
        x.reshape(*before, p.major, count, -1, *after)
        for x, count in zip(parts, counts, strict=True)
    ]
    return np.concatenate(cut, p.axis + 1).reshape(type.shape)


def check_way(whole, srcs, values, way, want, counts):
    ranks, is_even = len(counts), set(counts) == {1}
    placements = [*zip(srcs, way.operands, strict=True), (whole, way.result)]
    if not all(fits(x.type, p, sum(counts)) for x, p in placements):
        return
    if not is_even and any(isinstance(p, Row | Routed) for _, p in placements):
        return  # which unequal shares are refused beside
    rank = rank_input(len(srcs))
    # Rows that are routed come from equal parts of them, and go back there
    *operands, result = (
        Sharded(0) if isinstance(p, Routed) else p for p in (*way.operands, way.result)
    )
    inputs = dict(zip(srcs, operands, strict=True))
    programs = []
    for r in range(ranks):
        shares = None if is_even else Shares(counts, r)
        spread = Spread(ranks, "ranks", inputs, {}, [result], shares=shares)
        cut = partitioned([whole], spread, rank, only={whole: way})
        own = {
            cut.inputs[x]: part_by(v, p, counts, r)
            for x, v, p in zip(srcs, values, operands, strict=True)
            if x in cut.inputs
        }
        programs.append(RankProgram(cut.outputs, {**own, rank: np.array(r)}))
    got = [found[0] for found in interpret_world(programs, {"ranks": [list(range(ranks))]})]
    with np.errstate(all="ignore"):
        value = whole_by(got, result, whole.type, counts)
    digits = whole.dtype.mantissa if whole.dtype.is_float else 0
    close = max(3 * 2.0**-digits, 1e-5)
    apart = isinstance(way.result, Partial) or Partial("sum") in way.operands
    # numpy takes products of other shapes in another order
    if whole.dtype.is_float and (
        apart or whole.op in ("matmul", "grouped_matmul", "grouped_outer")
    ):
        np.testing.assert_allclose(
            value.astype(np.float64),
            want.astype(np.float64),
            rtol=close,
            atol=close,
            err_msg=str(way),
        )
    else:
        if whole.dtype.is_narrow:  # numpy does not see that a NaN of these types is one
            value, want = value.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(value, want, err_msg=str(way))


@pytest.mark.parametrize("counts", [(1, 3, 2), (2, 1, 1)], ids=str)
def test_unequal_parts_are_exchanged_for_others(counts):
    """Every change of placement, of whole numbers."""
    pieces, ranks = sum(counts), len(counts)
    type, numbers = Type((2 * pieces, 3, 2 * pieces), DType.F32), np.random.default_rng(3)
    whole = numbers.integers(-9, 9, type.shape).astype(np.float32)
    terms = numbers.integers(-9, 9, (ranks, *type.shape)).astype(np.float32)
    terms[0] += whole - terms.sum(0)
    placed = [WHOLE, Partial(), Sharded(0), Sharded(0, 2), Sharded(2), Sharded(2, 2)]
    rank = rank_input(1)
    for a, b in permutations(placed, 2):
        programs = []
        for r in range(ranks):
            shares = Shares(counts, r)
            line = Line(ranks, "ranks", rank, lambda what: what, shares=shares)
            own = g.input(0, line.part(type, a))
            value = terms[r] if a == Partial() else part_by(whole, a, counts, r)
            made = converted(own, type, a, b, line)
            programs.append(RankProgram((made,), {own: value, rank: np.array(r)}))
        got = [found[0] for found in interpret_world(programs, {"ranks": [list(range(ranks))]})]
        value = sum(got) if b == Partial() else whole_by(got, b, type, counts)
        np.testing.assert_array_equal(value, whole, err_msg=f"{a} to {b}")
        assert [v.shape for v in got] == [
            (part_by(whole, b, counts, r) if isinstance(b, Sharded) else whole).shape
            for r in range(ranks)
        ]


def test_a_strategy_is_its_text():
    for strategy in (*UNEVEN.values(), expert(2, "*.mixture", shadows=1, parts=2)):
        assert Strategy.parse(str(strategy)) == strategy
    for name, make in STRATEGIES.items():
        strategy = make(4)
        assert Strategy.parse(str(strategy)) == strategy, name
    assert Strategy.parse("axis a 2 # ranks\n\n  batch 1\n") == context(2, "a")


@pytest.mark.parametrize(("given", "least"), [((4, 2), (2, 1)), ((2, 2), ()), ((3, 2), (3, 2))])
def test_shares_are_of_as_few_pieces_as_can_be(given, least):
    """Batches are a multiple of these, however they were written."""
    told = Strategy.parse(f"axis data 2\n batch 0\n shares {' '.join(map(str, given))}")
    for strategy in (told, data(2, shares=given)):
        assert strategy == data(2, shares=least) == Strategy.parse(str(strategy))
        assert strategy.axes[0].shares == least
        assert strategy.axes[0].pieces == (sum(least) or 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no axis"),
        ("batch 0", "line 1 of the strategy is 'batch 0'"),
        ("axis data two", "line 1"),
        ("axis data 2\n  parameter * cut 0", "line 2 of the strategy is 'parameter . cut 0'"),
        ("axis data 0", "axis 'data' has 0 ranks"),
        ("axis data 2\naxis data 2", "give each its own name"),
        ("axis data 2\n batch 0\n batch 1", "line 3 .* its axis has a `batch` already"),
        ("axis data 2\n batch -1", "axis 'data' has `batch -1`; axes of arguments are counted"),
        ("axis a 2\n parameter * shard 0 of 0", "divides . in each of 0 parts"),
        ("axis data 2\n chunk * 0", "axis 'data' has chunks and no schedule"),
        ("axis data 2\n batch 0\n shares 3", "has `shares 3` and 2 ranks; give the pieces"),
        ("axis data 2\n batch 0\n shares 3 0", "has `shares 3 0` and 2 ranks"),
        ("axis data 2\n batch 0\n shares 3 x", "line 3 of the strategy is 'shares 3 x'"),
        ("axis data 2\n shares 3 1", "divides no batch"),
        ("axis data 2\n batch 0\n shadows 1", "has `shadows 1`: of so many experts"),
        ("axis data 2\n batch 0\n parts 2", "has `parts 2`: in so many parts tokens travel"),
        ("axis data 2\n parts 0", "has `parts 0`.*at least 1"),
        ("axis data 2\n batch 0\n shadows some", "line 3 of the strategy is 'shadows some'"),
        ("axis data 2\n batch 0\n shares 3 1\n states rows", "divides something besides the batch"),
        ("axis a 2\n states rows\naxis b 2\n parameters rows", "axes a, b all divide"),
        (
            "axis c 2\n batch 1\n attention ring\n states rows\naxis t 2\n parameter * shard 0",
            "axis 'c' has attention around a ring and .* rows, and 't' divides parameters",
        ),
    ],
)
def test_a_strategy_that_is_none_is_refused(text, said):
    with pytest.raises(InvalidCall, match=said):
        Strategy.parse(text)


def test_what_is_said_of_travelling_tokens_is_refused_where_none_travel():
    """Shadows and parts did nothing where all experts have a capacity."""
    net = spread_gpt.model(experts=spread_gpt.EXPERTS)
    for strategy, said in (
        (expert(2, "*.mixture", shadows=1), "`shadows 1`, and the experts of blocks.0.mixture"),
        (expert(2, "*.mixture", parts=2), "`parts 2`, and the experts of blocks.0.mixture"),
    ):
        with pytest.raises(InvalidCall, match=f"{said} have the capacity 1.25, .*capacity=None"):
            check_patterns(net, strategy)
        net.blocks[1].mixture.capacity = None
        check_patterns(net, strategy)  # of some they are said in vain, of others not
        net.blocks[1].mixture.capacity = 1.25
    others = spread_gpt.model()
    for said in ({"shadows": 1}, {"parts": 2}):
        axis = AxisLayout("expert", 2, 0, (("*.up.weight", Sharded(0)),), **said)
        with pytest.raises(
            InvalidCall, match=r"and its ranks divide no experts, .*up.weight .128, 32"
        ):
            check_patterns(others, Strategy((axis,)))


def test_sizes_that_cannot_be_divided_are_refused_by_name(cases):
    case = cases("adamw")
    for strategy, said in [
        (tensor(2, {"head.weight": Sharded(2)}), "axis 2 of head.weight, which has shape"),
        (tensor(3, {"*.up.weight": Sharded(0)}), r"axis 0 of blocks.0.up.weight, of shape"),
        (tensor(8, {"*.qkv.weight": Sharded(0, 5)}), "of each of its 5 parts of blocks.0.attent"),
        (data(3), "axis 0 of argument 0 of 'step', of shape .8, 16., cannot be divided among 3"),
        (data(2, shares=(4, 1)), "in shares of 4, 1; take a multiple of 5"),
        (context(2, axis=2), "no argument of 'step' has an axis 2, which `batch 2` of 'context'"),
        (tensor(8, {"*.qkv.*": Sharded(0, 3)}), "attention of 4 heads cannot be divided among the"),
        (zero(3, 3), "elements in the optimizer's array, which 3 ranks"),
    ]:
        with pytest.raises(InvalidCall, match=said):
            case.divide(strategy)


def test_parts_of_a_sum_are_of_numbers():
    """Nothing combines booleans, as a mask is that positions are looked up in."""
    for dtype, can in ((DType.F32, True), (DType.BOOL, False)):
        x, at = g.input(0, Type((4, 3), dtype)), g.input(1, Type((2,), DType.I64))
        n = g.gather(x, at, 0)
        found = ways(n, {y: {WHOLE: None} for y in (x, at, n)}, 2)
        assert any(isinstance(way.result, Partial) for way in found) == can


def test_an_exchange_of_what_comes_first_is_divided_along_no_other_axis():
    """The first elements of a part are others than the part of the first elements."""
    x, counts = g.input(0, Type((2, 4, 8), DType.F32)), g.input(1, Type((2,), DType.I64))
    n = g.all_to_all_v(x, counts, "experts")
    every = dict.fromkeys([WHOLE, *map(Sharded, range(3))])
    found = ways(n, {x: every, counts: {WHOLE: None}, n: every}, 2)
    assert {p for way in found for p in (*way.operands, way.result)} == {WHOLE, SUM}
