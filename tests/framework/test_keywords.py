"""Keyword arguments are honoured, refused, or taken for a reason: none is passed over."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework.errors import TensorError

FRAMEWORK = Path(ht.__file__).parent

TAKEN = {
    **dict.fromkeys(
        ("foreach", "fused", "capturable", "combine_mode", "driver", "vectorize"),
        "chooses among implementations",
    ),
    **dict.fromkeys(
        ("cache_size", "cache_enabled", "enable_nested_tensor", "assume_unique", "mask_check"),
        "lets PyTorch save work",
    ),
    **dict.fromkeys(("stable", "sorted"), "the order is always the one asked for"),
    **dict.fromkeys(("retain_graph", "preserve_rng_state"), "nothing is let go, or drawn again"),
    **dict.fromkeys(("use_reentrant", "determinism_check"), "the function is not called again"),
    **dict.fromkeys(("norm_type",), "of max_norm, which is refused"),
    **dict.fromkeys(("only_inputs", "_stacklevel", "_instance", "eps"), "PyTorch ignores it, too"),
    **dict.fromkeys(("non_blocking", "pin_memory", "pin_memory_device"), "in the docs"),
    **dict.fromkeys(("check_nan", "mode", "warn_only", "value"), "in the docs"),
    **dict.fromkeys(("weights_only",), "a file's pickle is never run"),
    **dict.fromkeys(("int",), "of what is not here"),
    **dict.fromkeys(("size_average", "reduce"), "read by the decorator of losses"),
    "stream": "None is the only one",
    "device": "a scaler works on any",
    "num_averaged": "one of two averages",
    "validate_args": "there is nothing to check",
}
"""What functions that users call take and do not read, and why."""

OF_SHAPE = {
    ("group", "rate"),
    ("base", "rate"),
    ("y", "log_abs_det_jacobian"),
    ("name", "state_at_first"),
    ("group", "numbers_of"),
    ("_", "step"),
    ("shard", "advance"),
    ("func", "__init__"),
    ("function", "divided"),
    ("request", "divided"),
    ("sources", "divided"),
    ("function", "called"),
    ("arguments", "called"),
    ("make", "planned"),
    ("input", "is_conj"),
    ("device", "make"),
    ("call", "of"),
    ("cell", "value"),
    ("ctx", "forward"),
    ("lead", "pull"),
    ("ctx", "backward"),
}
"""Parameters that a method has because others of its name read them."""


def unread(path):
    """(parameter, function) of what a module's public functions take and do not read."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef):
            continue
        own = node.name == "__init__" or not node.name.startswith("_")
        if not own or any("overload" in ast.unparse(d) for d in node.decorator_list):
            continue
        read = {n.id for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        if any(isinstance(part, ast.Raise) for part in node.body):
            continue  # what subclasses define
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for name in {a.arg for a in given} - read - {"self", "cls"}:
            yield name, node.name


@pytest.mark.slow
def test_every_parameter_is_read_or_there_is_a_reason():
    found = {pair for path in FRAMEWORK.rglob("*.py") for pair in unread(path)}
    assert sorted(pair for pair in found - OF_SHAPE if pair[0] not in TAKEN) == []
    assert sorted(OF_SHAPE - found) == []
    assert sorted(set(TAKEN) - {name for name, _ in found}) == []


A, B = [[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]], [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]
OLD = [{"size_average": False}, {"size_average": True}, {"reduce": False}, {"reduce": True}]
OLD += [{"size_average": False, "reduce": True}, {"size_average": True, "reduce": False}]


@pytest.mark.parametrize("given", OLD, ids=str)
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_a_reduction_may_be_said_as_it_once_was(given):
    def told(t):
        F, a, b = t.nn.functional, t.tensor(A), t.tensor(B)
        line, signs, ends = t.tensor([1, 2]), t.tensor([1.0, -1.0]), (a[:, 0], b[:, 0])
        yield F.mse_loss(a, b, **given)
        yield F.l1_loss(a, b, **given)
        yield F.smooth_l1_loss(a, b, **given)
        yield F.cross_entropy(a, line, **given)
        yield F.nll_loss(a, line, **given)
        yield F.binary_cross_entropy_with_logits(a, b, **given)
        yield F.kl_div(a, b, **given)
        yield F.poisson_nll_loss(a, b, **given)
        yield F.soft_margin_loss(a, b, **given)
        yield F.hinge_embedding_loss(a, 2 * b - 1, **given)
        yield F.margin_ranking_loss(*ends, signs, **given)
        yield F.cosine_embedding_loss(a, b, signs, **given)
        yield F.triplet_margin_loss(a, b, a * b, **given)
        yield F.multi_margin_loss(a, line, **given)
        yield F.multilabel_soft_margin_loss(a, b, **given)
        yield t.nn.MSELoss(**given)(a, b)
        yield t.nn.CrossEntropyLoss(**given)(a, line)

    for ours, theirs in zip(told(ht), told(torch), strict=True):
        np.testing.assert_allclose(ours.tolist(), theirs.tolist(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_a_reduction_said_by_place_counts_too():
    for t in (ht, torch):
        assert t.nn.functional.mse_loss(t.tensor(A[0]), t.tensor(B[0]), False).item() == 11.0
        assert t.nn.MSELoss(None, False)(t.tensor(A[0]), t.tensor(B[0])).tolist() == [1, 1, 9]


def test_formats_of_memory_change_nothing_and_say_so():
    x = ht.zeros(2, 3, 4, 5)
    for made in (
        x.to(memory_format=ht.channels_last),
        x.contiguous(memory_format=ht.channels_last),
        x.clone(memory_format=ht.channels_last),
        ht.empty(2, 3, 4, 5, memory_format=ht.channels_last),
        ht.zeros_like(x, memory_format=ht.channels_last),
    ):
        assert made.stride() == (60, 20, 5, 1)
        assert not made.is_contiguous(memory_format=ht.channels_last)
    for shape, order, form in (
        ((2, 4, 5, 3), (0, 3, 1, 2), "channels_last"),
        ((2, 4, 5, 6, 3), (0, 4, 1, 2, 3), "channels_last_3d"),
        ((2, 1, 5, 3), (0, 3, 1, 2), "channels_last"),
        ((2, 3, 4, 1), (0, 3, 1, 2), "channels_last"),
        ((3, 4), (1, 0), "channels_last"),
    ):
        for each in (order, tuple(range(len(shape)))):
            ours = ht.zeros(*shape).permute(each).is_contiguous(memory_format=getattr(ht, form))
            theirs = torch.zeros(*shape).permute(each)
            assert ours == theirs.is_contiguous(memory_format=getattr(torch, form)), (shape, each)


def test_other_layouts_are_refused():
    for wrong in ({"layout": "coo"}, {"memory_format": "rows"}, {"pin_memory": "yes"}):
        with pytest.raises(TensorError, match="row-major"):
            ht.zeros(2, **wrong)
    with pytest.raises(AttributeError, match="dense"):
        _ = ht.sparse_coo


def test_sparse_gradients_are_refused():
    weight, index = ht.ones(3, 2), ht.tensor([[0, 1]])
    F = ht.nn.functional
    for call in (
        lambda: F.embedding(index, weight, sparse=True),
        lambda: F.embedding_bag(index, weight, sparse=True),
        lambda: weight.gather(1, index, sparse_grad=True),
    ):
        with pytest.raises(TensorError, match="gradients are dense"):
            call()
    with pytest.raises(NotImplementedError, match="sparse"):
        ht.nn.EmbeddingBag(3, 2, sparse=True)


@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Rprop"]
)
def test_a_step_that_gradients_flow_through_is_refused(kind):
    p, make = ht.ones(2, requires_grad=True), getattr(ht.optim, kind)
    make([p], lr=0.1, differentiable=False)
    with pytest.raises(NotImplementedError, match="differentiable"):
        make([p], lr=0.1, differentiable=True)


def test_what_does_not_exist_is_told_by_info():
    A = ht.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    assert ht.linalg.inv_ex(A).info.tolist() == [0, 1]
    assert ht.linalg.cholesky_ex(A - 1).info.tolist() == [1, 1]
    assert ht.linalg.cholesky_ex(A[0]).info.item() == 0
    assert ht.linalg.solve_ex(A, ht.ones(2, 2, 3)).info.tolist() == [0, 1]
    with pytest.raises(TensorError, match="info"):
        ht.linalg.inv_ex(A, check_errors=True)


def test_backward_of_several_takes_what_backward_of_one_takes():
    def run(t):
        x, y = (t.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))
        t.autograd.backward([(x**3 * y).sum(), x.sum()], inputs=[x], create_graph=True)
        (second,) = t.autograd.grad(x.grad.sum(), [x])
        return x.grad.tolist(), y.grad, second.tolist()

    with pytest.warns(UserWarning, match="create_graph"):
        assert run(torch) == run(ht)


def test_a_hint_of_a_causal_mask_needs_the_mask():
    layer = ht.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    x = ht.ones(1, 3, 4)
    mask = ht.nn.Transformer.generate_square_subsequent_mask(3)
    assert layer(x, mask, is_causal=True).shape == (1, 3, 4)
    with pytest.raises(ValueError, match="attn_mask"):
        layer(x, is_causal=True)
    with pytest.raises(ValueError, match="attn_mask"):
        ht.nn.TransformerEncoder(layer, 1)(x, is_causal=True)
    decoder = ht.nn.TransformerDecoderLayer(4, 2, 8, 0.0, batch_first=True)
    for name in ("tgt_is_causal", "memory_is_causal"):
        with pytest.raises(ValueError, match="attn_mask"):
            ht.nn.TransformerDecoder(decoder, 1)(x, x, **{name: True})


def test_vmap_draws_as_it_is_told():
    def noisy(x):
        return x + ht.rand(1)[0] + ht.nn.functional.dropout(ht.ones(64), 0.5).sum()

    ht.manual_seed(3)
    one = noisy(ht.tensor(0.0)).item()
    ht.manual_seed(3)
    same = ht.func.vmap(noisy, randomness="same")(ht.zeros(4)).tolist()
    assert same == [one] * 4
    after = ht.rand(1).item()
    ht.manual_seed(3)
    noisy(ht.tensor(0.0))
    assert ht.rand(1).item() == after
    assert len(set(ht.func.vmap(noisy, randomness="different")(ht.zeros(4)).tolist())) == 4
    with pytest.raises(RuntimeError, match="randomness"):
        ht.func.vmap(noisy)(ht.zeros(4))
    with pytest.raises(ValueError, match="randomness"):
        ht.func.vmap(noisy, randomness="none")(ht.zeros(4))
    captured = ht.jit(lambda x: ht.func.vmap(noisy, randomness="same")(x))
    for _ in range(3):
        assert len(set(captured(ht.zeros(4)).tolist())) == 1


def test_streams_of_all_devices_are_put_back():
    here, there = "cpu:0", "reference:0"
    for devices in (None, [here, there]):
        ht.manual_seed(5)
        before = ht.rand(1, device=here).item(), ht.rand(1, device=there).item()
        ht.manual_seed(5)
        with ht.random.fork_rng(devices):
            ht.rand(1, device=here), ht.rand(1, device=there)
        assert before == (ht.rand(1, device=here).item(), ht.rand(1, device=there).item())


def test_outputs_that_are_marked_take_no_gradient():
    def run(t):
        seen = []

        class Both(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                place, twice = x.argmax(), x * 2
                ctx.mark_non_differentiable(place, twice)
                return x * 3, place, twice

            @staticmethod
            def backward(ctx, *given):
                seen.extend(g.tolist() for g in given)
                return given[0] * 3

        x = t.tensor([1.0, 2.0], requires_grad=True)
        y, place, twice = Both.apply(x)
        (y * twice).sum().backward()
        return seen, place.requires_grad, twice.requires_grad, x.grad.tolist()

    assert run(torch) == run(ht)


def test_values_reach_the_host_as_a_copy():
    with pytest.raises(ValueError, match="copy"):
        np.asarray(ht.ones(2), copy=False)
    assert math.isclose(np.asarray(ht.ones(2)).sum(), 2.0)
