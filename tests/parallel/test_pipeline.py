"""Pipelines: bit for bit what one process computes on real ranks, along with other axes by the
interpreter; and what is refused."""

import re
from collections import Counter

import numpy as np
import pytest

import stack.framework as ht
from hal.core.errors import InvalidCall
from stack.compiler.graph.recompute import within
from stack.compiler.graph.turns import numbered
from stack.framework import nn, optim
from stack.framework.cell import Cell
from stack.framework.errors import TracingError
from stack.framework.spread import divisions
from stack.ir.world import RankProgram, interpret_world
from stack.parallel import Mesh, Sharded, Strategy, parallel
from stack.parallel.divide import Stage, divide, in_order, layouts_of
from stack.parallel.pipeline import summed_backward
from stack.parallel.scatter import placed_value
from stack.parallel.stages import lanes
from stack.parallel.strategy import data, expert, pipeline, tensor, zero
from tests.draw import stream
from tests.launch.running import Folder
from tests.parallel import pipe

ALONE_S = 20
"""Within so long both hear that one has come to something alone, on a busy machine; their deadline
is longer."""


@pytest.mark.slow
@pytest.mark.turns
def test_two_ranks_compute_bit_for_bit_what_one_process_does(tmp_path):
    """Losses, gradients and parameters of steps of AdamW with dropout, by a schedule that is
    drawn; and the bytes that are counted. Then steps within budgets of memory, under a pipeline or
    ZeRO 3; a step of convolutions; an optimizer's steps that are not captured; steps between which
    values are given otherwise, or with a scaled loss; what one rank alone changes or calls; a step
    that a rank does not come to; and one in which its device fails."""
    name = stream("pipeline").choice(sorted(pipe.SCHEDULES))
    whole = pipe.alone()
    budgets = stream("budgets").choice(sorted(pipe.BUDGETS))
    changed = stream("given").choice(sorted(pipe.GIVEN))
    cases = (name, budgets, changed, "images", *pipe.STEPPED, *pipe.SCALED, "apart", "alone")
    cases += ("raising", "broken")
    done = Folder(tmp_path).run("-n", 2, "--devices", "cpu:0", pipe.__file__, tmp_path, *cases)
    assert (done.code, done.err) == (0, [])
    for rank in range(2):
        found = dict(np.load(tmp_path / f"{name}.{rank}.npz"))
        assert set(found) == set(whole)
        for key, value in found.items():
            assert value.tobytes() == whole[key].tobytes(), (name, key)
    for key, value in pipe.images().items():
        for rank in range(2):
            assert np.load(tmp_path / f"images.{rank}.npz")[key].tobytes() == value.tobytes(), key
    for key, value in pipe.stepped().items():
        for rank in range(2):
            for stepped in pipe.STEPPED:
                found = np.load(tmp_path / f"{stepped}.{rank}.npz")
                np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=1e-6)
    for rank in range(2):
        found = [np.load(tmp_path / f"{scaled}.{rank}.npz") for scaled in pipe.SCALED]
        for key, value in pipe.scaled().items():
            assert found[0][key].tobytes() == value.tobytes(), key
        for key, value in pipe.scaled(batches=1).items():
            np.testing.assert_allclose(found[1][key], value, rtol=2e-5, atol=1e-6)
    check_budgets([np.load(tmp_path / f"{budgets}.{rank}.npz") for rank in range(2)])
    files = [tmp_path / f"{changed}.{rank}.npz" for rank in range(2)]
    check_given([np.load(file) for file in files], changed.endswith(("zero1", "data")))
    check_apart([np.load(tmp_path / f"apart.{rank}.npz")["said"].tolist() for rank in range(2)])
    check_alone([np.load(tmp_path / f"alone.{rank}.npz")["said"].tolist() for rank in range(2)])
    check_raised([np.load(tmp_path / f"raising.{rank}.npz") for rank in range(2)])
    told = str(np.load(tmp_path / "broken.0.npz")["said"][0])
    assert "rank 1 has aborted the group, since it raised" in told
    assert "cpu:0: launch-fault in replay: a test" in told


def check_given(ranks, whole_parameters):
    """Values that are given between steps are those of one process; what reads a part is refused,
    before and after that has changed, and what comes next goes on."""
    whole = pipe.given()
    for found in ranks:
        for name, value in whole.items():
            if name != "refused":
                np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-6)
        if whole_parameters:
            assert not found["refused"].size
            continue
        now, later = found["refused"]
        assert "which is spread over ranks: read it in a captured function, or within" in now
        assert "a tensor was to be computed of values of which this rank had a part" in later


def check_apart(ranks):
    """Both ranks are told who has which parameter that the other one has not."""
    told, other = ranks
    assert told == other
    before, told = told[: 2 * len(pipe.GIVEN)], told[2 * len(pipe.GIVEN) :]
    assert len(before) == 2 * len(pipe.GIVEN)
    for own, text in enumerate(before):
        what, has = [
            ("optimizers", "group 0 of optimizer 0: lr=0.2"),
            ("values", "0.weight: given another value"),
        ][own % 2]
        assert text.startswith(f"ranks have different {what}: rank 0 has"), text
        assert has in text, text
    for own, text in enumerate(told):
        what, has = [
            ("models", "0.more: float32[2]"),
            ("models", "2.bias: float32[4]"),
            ("optimizers", "group 1 of optimizer 0: 2.bias"),
            ("optimizers", "group 0 of optimizer 1: 2.bias"),
        ][own % 4]
        assert text.startswith(f"ranks have different {what}: rank 0 has"), text
        assert "rank 1 has" in text, text
        assert has in text, text
    assert len(told) == 8


def check_alone(ranks):
    """Both ranks are told at once what each of them has come to, and what to do."""
    whats = [
        "whole values for an optimizer that takes parameters behind `parallel`",
        r"whole values for `gathered\(\)`",
        "the first call of a function under `jit`",
        "whole values at the end of the block of `parallel`",
    ]
    for told in ranks:
        for number, (text, what) in enumerate(zip(told, 2 * whats, strict=True)):
            here = rf"rank {int(what is not whats[-1])} makes call \d+: all-gather of .*"
            assert re.search((here if number < len(whats) else "come to ") + what, text), text
            assert re.search(r"(exchange \d+|value \d of F0.0) of 'one_step'", text), text
            assert "all ranks make the same calls in the same order, so let none" in text, text
            assert float(text.partition(" s: ")[0]) < ALONE_S, text


def check_raised(ranks):
    """A rank is told what another one has raised, in few words; and goes on with whole values."""
    told, own = (found["said"] for found in ranks)
    assert "rank 1 has left the group before call" in told[0]
    assert ", since it raised ValueError: no more batches xxx" in told[0]
    assert len(told[0]) < 5000 < len(own[0])
    assert (
        "the block of `parallel` has ended by OperationFailed, and the other ranks' parts"
        in told[1]
    )
    assert "the block of `parallel` has ended by ValueError" in own[1]
    assert ranks[0]["loss"].tobytes() == ranks[1]["loss"].tobytes()


def check_budgets(ranks):
    """Of steps within what memory there is, and within the least that is told for too little,
    without and with the host's: the same bits. Both ranks are told one number."""
    for found in ranks:
        told = found["told"]
        assert ["at least" in text for text in told] == [True] * 2, told
        for text, first in zip(told, ranks[0]["told"], strict=True):
            assert text.rpartition("a call of")[2] == first.rpartition("a call of")[2]
        assert found["whole"].size
        for key in ("0", "1"):
            assert found[key].tobytes() == found["whole"].tobytes(), (key, told)
    costs = np.sum([found["costs"] for found in ranks], 0)
    assert costs[1, 1] > 0, "nothing waits in the host's memory"


BATCHES, ROWS, WIDTH, TOKENS = 2, 8, 4, 3
STAGES = {"0.*": 0, "*": 1}
WITH = {
    "data": data(2),
    "zero1": zero(1, 2),
    "zero2": zero(2, 2),
    "zero3": zero(3, 2),
    "tensor": tensor(2, {"0.*": Sharded(0), "3.weight": Sharded(1)}),
}


class Small:
    """A step of a network of two chunks, captured and not divided."""

    def __init__(self):
        ht.manual_seed(3)
        width = 2 * WIDTH
        self.net = nn.Sequential(
            nn.Linear(WIDTH, width), nn.Tanh(), nn.Dropout(0.25), nn.Linear(width, WIDTH)
        )
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.5)
        ht.manual_seed(4)

    def loss(self, x):
        return self.net(x).square().mean()

    def step(self, gather, x):
        """The loss and the norm of the gradients; parameters move."""
        self.optimizer.zero_grad()
        loss = gather(self.loss, x)
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 0.01)
        self.optimizer.step()
        return [loss, norm]

    def in_turn(self, loss_of, x):
        """What a pipeline is to compute, by one device."""
        losses = [loss_of(part) for part in x.chunk(BATCHES)]
        for loss in losses:
            loss.backward()
        return losses[0] + losses[1]

    def divided(self, function, request, sources):
        self.request, self.sources = request, sources
        raise StopIteration


def given():
    return np.random.default_rng(5).standard_normal((ROWS, WIDTH), np.float32)


class Mixed(Small):
    """The same of two mixtures of experts without a capacity, each after a dropout; the step gives
    the gradients, too."""

    def __init__(self):
        ht.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(WIDTH, TOKENS * WIDTH), Experts(), Experts())
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.5)
        ht.manual_seed(4)

    def step(self, gather, x):
        outputs = super().step(gather, x)
        return [*outputs, *(p.grad for p in self.net.parameters())]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.25)
        self.mixture = nn.MixtureOfExperts(WIDTH, WIDTH, 4, capacity=None)

    def forward(self, x):
        x = x.reshape(-1, TOKENS, WIDTH)
        return x + self.mixture(self.dropout(x))[0]


def captured(small, stages):
    """The request of a step in micro-batches, and where its inputs come from."""
    named = dict(small.net.named_parameters())

    def gather(loss_of, x):
        return summed_backward(loss_of, [x], named, pipeline(2, "gpipe 2", stages).axes[0].chunk, 2)

    cells = [shard.flat.cell for shard in small.optimizer.shards]
    divisions.update({cell.serial: small for cell in cells})
    with pytest.raises(StopIteration):
        ht.jit(lambda x: small.step(gather, x))(given())
    for cell in cells:
        del divisions[cell.serial]
    return small


def test_values_of_a_stage_are_computed_again_in_the_order_of_its_messages():
    axes = in_order(pipeline(2, "1f1b 2", STAGES))
    small = captured(Small(), STAGES)
    numbers = [s if isinstance(s, int) else None for s in small.sources]
    named = {lane: f"{lane[0]}{lane[1]}" for lane in lanes(axes[0].table)}
    tried = []

    def nbytes_of(request):
        tried.append(numbered(request.outputs))
        return 1

    for rank in range(2):
        layouts = layouts_of(small.net, axes, [small.optimizer], rank)
        found = {cell.serial: layout for cell, layout in layouts.items()}
        own = [found.get(s.serial) if isinstance(s, Cell) else None for s in small.sources]
        stage = Stage(rank, named)
        cut, _ = divide("step", small.request, own, numbers, axes, ["stage"], stage)
        within(cut, 0, nbytes_of, lambda request: request)
    assert len(tried) > 2


def on_four_ranks(small, axes):
    """What each rank gives side by side with the others of a captured step, two along the pipeline
    and two along the other axis; its place, where its inputs lie, and what is sent."""
    values = [given() if isinstance(s, int) else np.asarray(s.numpy()) for s in small.sources]
    named = {lane: f"{lane[0]}{lane[1]}" for lane in lanes(axes[0].table)}
    programs, where = [], []
    for rank in range(4):
        place = divmod(rank, 2)
        found = layouts_of(small.net, axes, [small.optimizer], place[0])
        by_serial = {cell.serial: layout for cell, layout in found.items()}
        own = [by_serial.get(s.serial) if isinstance(s, Cell) else None for s in small.sources]
        numbers = [s if isinstance(s, int) else None for s in small.sources]
        stage, groups = Stage(place[0], named), [axis.name for axis in axes]
        cut, said = divide("step", small.request, own, numbers, axes, groups, stage)
        parts = [placed(v, o, place) for v, o in zip(values, own, strict=True)]
        ranks = [np.array(i) for i in place]
        inputs = dict(zip(cut.inputs, [*parts, *ranks], strict=True))
        programs.append(RankProgram(cut.outputs, inputs))
        where.append((place, own, said))
    stages = [[0, 2], [1, 3]]
    lines = {"stage": stages, axes[1].name: [[0, 1], [2, 3]]} | dict.fromkeys(
        named.values(), stages
    )
    return list(zip(where, interpret_world(programs, lines), strict=True))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", stream("pipelines").sample(sorted(WITH), 2))
def test_a_pipeline_goes_along_with_another_axis(name):
    """Loss, norm and new parameters, with dropout, on four ranks side by side."""
    schedule = stream("schedules").choice(["gpipe 2", "1f1b 2", "zb-h1 2"])
    small, whole = captured(Small(), STAGES), Small()
    found = on_four_ranks(small, in_order(pipeline(2, schedule, STAGES) + WITH[name]))
    wanted = [t.numpy() for t in whole.step(whole.in_turn, ht.tensor(given()))]
    flat = whole.optimizer.shards[0].flat.cell.numpy()
    ((output, target),) = [
        pair for pair in small.request.updates if small.request.outputs[pair[0]].shape == flat.shape
    ]
    for (place, own, said), outputs in found:
        if name in ("data", "tensor", "zero1"):  # others gather rows so small, and send them whole
            # Of each micro-batch its hidden values go on, and their derivatives come back, each
            # rank's half of them
            messages = Counter({w[0]: n for w, n in said.sent.items() if w[1] == "message"})
            assert +messages == {("F0", "B1")[place[0]]: ROWS * 2 * WIDTH * 4 // 2}
        for value, want in zip(outputs, wanted, strict=False):
            np.testing.assert_allclose(value, want, rtol=1e-6)
        np.testing.assert_allclose(
            outputs[output], placed(flat, own[target], place), rtol=1e-5, atol=1e-7
        )


@pytest.mark.slow
@pytest.mark.turns
def test_experts_without_a_capacity_go_along_with_a_pipeline():
    """Rows travel within each pass, as many as there are; so do the derivatives of those that a
    later pass needs. A chunk may end between a router and its experts."""
    schedule = stream("schedules of experts").choice(["gpipe 2", "1f1b 2", "zb-h1 2"])
    last = stream("chunks of experts").choice(["2.*", "1.mixture.[ud]*"])
    stages = {last: 1, "0.*": 0, "1.*": 0, "*": 1}
    small, whole = captured(Mixed(), stages), Mixed()
    axes = in_order(pipeline(2, schedule, stages) + expert(2, "*.mixture"))
    found = on_four_ranks(small, axes)
    wanted = [t.numpy() for t in whole.step(whole.in_turn, ht.tensor(given()))]
    for (_, _, said), outputs in found:
        assert {kind for axis, kind in said.sent if axis == "expert"} >= {"all_to_all_v"}
        for value, want in zip(outputs, wanted, strict=False):
            assert np.linalg.norm(value - want) <= 1e-6 * np.linalg.norm(want)


def placed(value, layout, place):
    for p, rank in zip(layout or (), place, strict=False):
        value = placed_value(value, p, 2, rank)
    return value


def alone(model, optimizer, schedule="gpipe 2"):
    strategy = pipeline(1, schedule, {"*": 0})
    return parallel(model, Mesh.of(None, stage=1), strategy, optimizer)


def test_a_pipeline_of_one_rank_gathers_what_backward_does():
    small = Small()
    with alone(small.net, small.optimizer) as spread:
        found = ht.jit(lambda x: small.step(spread.backward, x))(given())
    whole = Small()
    for value, want in zip(found, whole.step(whole.in_turn, ht.tensor(given())), strict=True):
        np.testing.assert_allclose(value.numpy(), want.numpy(), rtol=1e-6)
    for p, want in zip(small.net.parameters(), whole.net.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), want.numpy(), rtol=1e-5, atol=1e-7)


class Running(Small):
    """The same with running statistics of equal beginnings, and a layer that nothing reads."""

    def __init__(self):
        ht.manual_seed(3)
        self.net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.BatchNorm1d(WIDTH)
        )
        self.net.unused = nn.Linear(2, 2)
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.5, momentum=0.5, weight_decay=0.1)

    def loss(self, x):
        for layer in [*self.net][:4]:
            x = layer(x)
        return x.sin().mean()


def test_what_is_captured_goes_on_when_values_are_whole_again():
    small, x = Small(), given()
    small.net.eval()
    reads = ht.jit(lambda x: small.loss(x))
    with alone(small.net, small.optimizer) as spread:
        first = reads(x).item()
        with spread.gathered():
            assert reads(x).item() == first
        assert reads(x).item() == first
        with pytest.raises(InvalidCall, match="spread already, by a call of `parallel` whose"):
            alone(small.net, small.optimizer)
        assert reads(x).item() == first

        @ht.jit
        def inside(x):
            with spread.gathered():
                return small.loss(x)

        with pytest.raises(TracingError, match=r"made whole while 'inside' is traced at .*test_pi"):
            inside(x)
        count = len(spread.explained)
    assert reads(x).item() == first
    with pytest.raises(InvalidCall, match="every rank has the whole model within `gathered"):
        ht.jit(lambda x: small.step(spread.backward, x))(x)
    assert count == len(spread.explained) == 1, "found again where values are as they were"


@pytest.mark.slow
@pytest.mark.turns
def test_a_pipeline_leaves_the_buffers_and_gradients_that_backward_does():
    small, whole = Running(), Running()
    x = given() + np.arange(ROWS, dtype=np.float32)[:, None]
    with alone(small.net, small.optimizer) as spread:
        step = ht.jit(lambda x: small.step(spread.backward, x))
        for _ in range(2):
            step(x)
    for _ in range(2):
        whole.step(whole.in_turn, ht.tensor(x))
    found, wanted = small.net.state_dict(), whole.net.state_dict()
    assert not np.array_equal(wanted["1.running_mean"].numpy(), wanted["3.running_mean"].numpy())
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-7)
    assert whole.net.unused.weight.grad is None
    assert small.net.unused.weight.grad is None


def test_what_cannot_be_a_pipeline_is_refused():
    small = Small()
    mesh = Mesh.of(None, stage=1)
    for schedule, chunks, said in [
        ("gpipe 0", {"*": 0}, "schedule along 'stage': 'gpipe 0': gpipe takes numbers of at leas"),
        ("chunks 0\nrank 0:", {"*": 0}, "the schedule has no micro-batch"),
        ("gpipe 2", {"9.*": 0, "*": 0}, "called '9.*of its 4 the nearest are .*3.weight"),
        ("gpipe 2", {"9.*": 0}, "no chunk of the pipeline along 'stage' has parameter 0.weight"),
        ("gpipe 2", {"0.*": 0, "*": 1}, "3.bias is in chunk 1 .* which has chunks 0 to 0"),
        ("2f2b 4", {"*": 0}, "'2f2b 4' has no name of gpipe, 1f1b, .*, and is no table"),
        ("interleaved 2 2", {"*": 0}, "chunk 1 of the pipeline along 'stage' has no parameters"),
        ("interleaved 2", {"*": 0}, "takes a number of micro-batches and chunks of a rank"),
        ("chunks 0 | 1\nrank 0: F0.0 B0.0\nrank 1: F1.0 B1.0", {"*": 0}, "is for 2 ranks"),
        ("chunks 0\nrank 0: B0.0 F0.0", {"*": 0}, "computes B0.0 before F0.0"),
    ]:
        with pytest.raises(InvalidCall, match=said):
            parallel(small.net, mesh, pipeline(1, schedule, chunks), small.optimizer)
    with alone(small.net, small.optimizer) as spread:
        with pytest.raises(InvalidCall, match="call it in a function under jit"):
            spread.backward(small.loss, ht.tensor(given()))
        for x, said in [
            (given()[:3], r"argument 0 of the loss has shape .3, 4., whose first axis 2 micro-ba"),
        ]:
            with pytest.raises(InvalidCall, match=said):
                ht.jit(lambda x: small.step(spread.backward, x))(x)

        @ht.jit
        def twice(x):
            return spread.backward(small.loss, x), spread.backward(lambda x: -small.loss(x), x)

        with pytest.raises(InvalidCall, match="calls `backward` of a pipeline once"):
            twice(given())

        def halving(x):
            with ht.no_grad():
                small.net[0].bias.mul_(0.5)
            return small.loss(x)

        with pytest.raises(InvalidCall, match=r"changes parameter 0.bias in place; let it"):
            ht.jit(lambda x: spread.backward(halving, x))(given())


def test_a_pipeline_is_its_text():
    for strategy in (*pipe.SCHEDULES.values(), *pipe.COMPOSED.values()):
        assert Strategy.parse(str(strategy)) == strategy
    own = "axis stage 2\n  chunks 0 | 1\n  rank 0: F0.0 B0.0\n  rank 1: F1.0 B1.0\n  chunk * 0\n"
    assert str(Strategy.parse(own)) == own
    assert Strategy.parse(own).axes[0].table.batches == 1
    with pytest.raises(InvalidCall, match="is a pipeline, and divides something besides"):
        Strategy.parse(own + "batch 0")
    with pytest.raises(InvalidCall, match="axes a, b are all pipelines"):
        pipeline(1, "gpipe 1", {}, "a") + pipeline(1, "gpipe 1", {}, "b")
