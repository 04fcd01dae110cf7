"""Operators of PyTorch on the device "hal" give what its CPU device gives."""

import copy
import math
from functools import partial

import pytest

from hal.core.dtypes import DType

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")  # which torch brings

import stack.bridge.torch as bridge  # noqa: E402
from stack import ops as g  # noqa: E402
from stack.bridge.torch import install  # noqa: E402
from stack.bridge.torch.rows import ROWS  # noqa: E402
from tests.draw import stream  # noqa: E402

bridge.register()
F = torch.nn.functional


def both(function, *given, tolerance=1e-5):
    """What a function gives on both devices, and the gradients by the first of its tensors."""
    found = []
    for device in ("cpu", "hal"):
        args = [x.detach().to(device) for x in given]
        smooth = args[0].is_floating_point()
        args[0].requires_grad_(smooth)
        made = function(*args)
        parts = list(made) if isinstance(made, tuple | list) else [made]
        if smooth and parts[0].requires_grad:
            (parts[0] * parts[0]).sum().backward()
            parts.append(args[0].grad)
        found.append([p.detach().cpu() for p in parts])
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def draws(seed="torch operators"):
    made = torch.Generator().manual_seed(stream(seed).randrange(2**31))
    return lambda *shape: torch.rand(*shape, generator=made)


def test_losses_take_every_argument():
    """Arguments of a schema were once taken for others, by their places."""
    rand = draws()
    x, y, w = rand(3, 4), rand(3, 4), 4 * rand(4)
    both(lambda x, y, w: F.binary_cross_entropy(x, y, w, reduction="sum"), x, y, w)
    both(lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.3), x, y)
    both(lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w), x, y, w)
    both(lambda x, y: F.huber_loss(x, y, reduction="sum", delta=0.2), x, y)


@pytest.mark.slow
@pytest.mark.turns
def test_attention_is_an_operator():
    """With masks, shared heads, and gradients of its gradients."""
    rand = draws("attention")
    q, k, v = rand(2, 4, 5, 3), rand(2, 2, 5, 3), rand(2, 2, 5, 3)
    attend = F.scaled_dot_product_attention
    q.to("hal")  # opens the device, which no test may have used before
    before = bridge.stats()["hal:0"]["operations"]
    both(lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    assert bridge.stats()["hal:0"]["operations"] - before < 20
    mask = rand(5, 5) > 0.3
    mask[1] = False
    both(lambda q, k, mask: attend(q[:, :2], k, k, mask), q, k, mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        both(lambda x: torch.autograd.grad(attend(x, x, x).sin().sum(), x, create_graph=True)[0], k)
    with pytest.raises(RuntimeError, match="the same dtype"):
        attend(q.to("hal"), q.to("hal").double(), q.to("hal"))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode):
    rand = draws("bags")
    places, offsets = torch.tensor([1, 2, 0, 5, 5, 3, 6, 2]), torch.tensor([0, 3, 3, 5])
    bag = lambda w, at, begin: F.embedding_bag(at, w, begin, mode=mode, padding_idx=2)
    both(bag, rand(7, 3), places, offsets)
    if mode == "sum":
        weigh = lambda p, w, at, begin: F.embedding_bag(
            at, w, begin, mode="sum", per_sample_weights=p
        )
        both(weigh, rand(8), rand(7, 3), places, offsets)


def test_constructors_of_numbers_in_a_row():
    x = torch.zeros(1, dtype=torch.int64)
    both(lambda x: torch.eye(3, device=x.device) + torch.eye(3, 3, device=x.device), x)
    both(lambda x: torch.linspace(0.1, 3, 7, device=x.device), x)
    both(lambda x: torch.logspace(0, 2, 5, device=x.device), x)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype")
def test_transformers_that_do_not_learn():
    """For which torch has fused operators, and nested tensors."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    pad = torch.tensor([[False, False, True], [False, False, False]])
    x = draws("transformer")(2, 3, 8)
    with torch.no_grad():
        theirs = model(x, src_key_padding_mask=pad)
        mine = copy.deepcopy(model).to("hal")(x.to("hal"), src_key_padding_mask=pad.to("hal"))
        torch.testing.assert_close(mine.cpu()[~pad], theirs[~pad], rtol=1e-5, atol=1e-5)
        heads = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        theirs = heads(x, x, x)
        mine = copy.deepcopy(heads).to("hal")(*[x.to("hal")] * 3)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)


def test_different_elements_are_found():
    x = torch.tensor([[3, 1], [0, 5], [3, 1], [0, 2]])
    both(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    both(lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), x)
    both(lambda x: torch.unique_consecutive(x.flatten(), return_counts=True), x)
    both(lambda x: torch.unique(x[:0]), x)
    both(lambda x: torch.bincount(x.flatten(), minlength=7), x)
    both(lambda x: x.flatten().repeat_interleave(x.flatten()), x)


@pytest.mark.slow
@pytest.mark.turns
def test_images_change_their_size_and_give_gradients():
    rand = draws("images")
    x = rand(2, 3, 5, 4)
    mode = stream("modes").choice(["nearest", "nearest-exact", "bilinear", "bicubic"])
    both(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), x)
    both(lambda x: F.interpolate(x, size=(3, 9), mode=mode), x)
    both(lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True), x)
    both(lambda x: F.max_pool3d(x, 2, 1, 1), x)
    smooth = partial(F.interpolate, align_corners=False, antialias=True)
    both(lambda x: smooth(x, (3, 7), mode="bicubic"), x)
    both(lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), x)
    both(lambda x, at: F.grid_sample(x, at, align_corners=False), x, 2 * rand(2, 3, 3, 2) - 1)


def test_rows_of_different_lengths_are_padded_and_packed_again():
    aten = torch.ops.aten

    def function(values, offsets):
        values = values.detach()  # torch.nested has the gradient: each is the other's
        dense = aten._jagged_to_padded_dense_forward(values, [offsets], [5], -1.0)
        packed = aten._padded_dense_to_jagged_forward(dense, [offsets], len(values))
        return dense, packed, aten._padded_dense_to_jagged_forward(dense, [offsets])

    both(function, draws("rows of lengths")(7, 2), torch.tensor([0, 3, 3, 7]))


def test_one_position_without_an_axis_selects_a_row():
    x, at = draws("positions")(3, 2), torch.tensor(1)
    both(lambda x, at: x.index_select(0, at), x, at)
    both(lambda x, at: x.index_select(1, at), x, at)


@pytest.mark.slow
@pytest.mark.turns
def test_factors_give_the_gradients_of_determinants_and_solutions():
    rand = draws("matrices")
    a = rand(3, 3) + 2 * torch.eye(3)
    both(torch.linalg.det, a, tolerance=1e-4)
    both(torch.logdet, a.t(), tolerance=1e-4)
    both(torch.linalg.solve, a, rand(3, 2), tolerance=1e-4)


def test_singular_matrices_have_factors_and_the_determinant_0():
    singular = torch.tensor([[2.0, 4, 6], [2, 4, 6], [1, 0, 1]])
    both(torch.linalg.det, torch.stack([singular, torch.zeros(3, 3), torch.eye(3)]))
    both(torch.linalg.lu_factor_ex, torch.stack([singular, singular.diag().diag(), torch.eye(3)]))


def test_elements_are_rounded_to_quantized_ones():
    x = torch.tensor([[-1.3, -0.25, 0.05, 0.15], [0.35, 7.0, 1e5, -9.0]])
    scale, zero = torch.tensor([0.1, 0.3]), torch.tensor([3, -2], dtype=torch.int32)
    both(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7), x)
    for at in (zero, zero * 0.5):
        both(
            lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, -8, 7), x, scale, at
        )
    both(
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 9), x, scale[:1], zero[:1]
    )


def test_draws_follow_their_weights():
    torch.hal.manual_seed(3)
    weights = torch.tensor([0.0, 1.0, 3.0], device="hal")
    drawn = torch.multinomial(weights, 4000, replacement=True)
    share = (drawn == 2).float().mean().item()
    assert abs(share - 0.75) < 0.04
    assert (drawn == 0).sum().item() == 0
    assert sorted(torch.multinomial(weights + 1, 3).tolist()) == [0, 1, 2]


def _trained(model, device, optimizer):
    model = copy.deepcopy(model).to(device)
    step = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=2.0**4, growth_interval=2)
    x = torch.linspace(-1, 1, 12).view(2, 3, 2).to(device)
    for i in range(3):
        step.zero_grad()
        loss = model(x)[0].square().mean()
        scaler.scale(loss * (float("inf") if i == 1 else 1.0)).backward()
        scaler.step(step)
        scaler.update()
    return [p.detach().cpu() for p in model.parameters()], scaler.get_scale()


@pytest.mark.slow
@pytest.mark.turns
def test_a_fused_optimizer_and_a_scaler_step_as_on_the_cpu():
    """One of the optimizers, which is drawn, on a recurrent model, whose cell is one operator on a
    device. A step whose gradients are not finite is left out."""
    torch.manual_seed(1)
    model = torch.nn.GRU(2, 3)
    kind, options = stream("fused optimizers").choice(
        [
            (torch.optim.AdamW, {"amsgrad": True}),
            (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
            (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
        ]
    )
    make = lambda p: kind(p, lr=0.1, fused=True, **options)
    theirs, mine = (_trained(model, d, make) for d in ("cpu", "hal"))
    for a, b in zip(mine[0], theirs[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert mine[1] == theirs[1]


def test_samples_of_gamma_have_torchs_gradient_in_each_of_its_ranges():
    alpha = torch.tensor([1e-3, 0.3, 1.0, 3.0, 7.9, 8.1, 30.0, 900.0])
    quantiles = torch.tensor([0.01, 0.5, 0.85, 0.95, 1.05, 1.2, 3.0])
    a, x = torch.broadcast_tensors(alpha, quantiles[:, None] * alpha)
    want = torch._standard_gamma_grad(a, x)
    torch.testing.assert_close(
        torch._standard_gamma_grad(a.to("hal"), x.to("hal")).cpu(), want, rtol=2e-3, atol=1e-5
    )
    rate = alpha.to("hal").requires_grad_()
    sample = torch.distributions.Gamma(rate, 2.0).rsample()
    sample.sum().backward()
    drawn = sample.detach().cpu() * 2
    want = torch._standard_gamma_grad(alpha, drawn) / 2
    torch.testing.assert_close(rate.grad.cpu(), want, rtol=2e-3, atol=1e-5)


def test_a_formula_that_asks_for_itself_is_an_error_that_names_the_operator():
    """Where it has no row either: here at its second call, as from within its formula."""
    x, op = torch.ones(2, device="hal"), torch.ops.aten.igamma.default
    with install._decomposing(op), pytest.raises(NotImplementedError, match="igamma"):
        install.without_row(op, (x, x), {})


def test_a_copy_that_need_not_be_waited_for_goes_to_the_cpu():
    x = torch.arange(3.0, device="hal")
    assert x.to("cpu", non_blocking=True).equal(torch.arange(3.0))


_POLYNOMIALS = (
    *(f"{kind}chebyshev_polynomial_{which}" for kind in ("", "shifted_") for which in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l"),
    "legendre_polynomial_p",
)
_BESSELS = {
    "bessel_j": mpmath.besselj,
    "bessel_y": mpmath.bessely,
    "modified_bessel_i": mpmath.besseli,
    "modified_bessel_k": mpmath.besselk,
    "scaled_modified_bessel_k": lambda n, x: mpmath.besselk(n, x) * mpmath.exp(x),
}
"""Each of order 0 and 1. Those of PyTorch's CPU device are right to 8 digits."""


@pytest.mark.slow
@pytest.mark.turns
def test_functions_of_physics_on_both_sides_of_where_their_formulas_change():
    rand, chosen = draws("physics"), stream("physics")
    ends = torch.tensor([0.0, 1e-3, 0.49, 1.99, 2.0, 15.99, 16.0, 300.0, -1.0, -12.5])
    x = torch.cat([ends, torch.tensor([12.0, 23.99, 24.0]), 30 * rand(6)]).double()
    kind, order = chosen.choice(list(_BESSELS)), chosen.randrange(2)
    function = getattr(torch.special, f"{kind}{order}")
    mine = function(x.to("hal")).cpu()
    wanted = [float(_BESSELS[kind](order, v)) for v in x[x > 0].tolist()]
    truth = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(mine[x > 0], truth, rtol=1e-10, atol=1e-11)
    theirs = function(x[x <= 0])
    torch.testing.assert_close(mine[x <= 0], theirs, rtol=1e-7, atol=1e-7, equal_nan=True)
    inner = torch.cat([torch.tensor([-1.5, -1.0, 0.0, 0.3, 1.0, 2.0]), 2 * rand(6) - 1]).double()
    orders = torch.tensor([-1.0, 0.0, 1.5, 2.0, 8.0, 9.0, 14.0]).double()
    name = chosen.choice(_POLYNOMIALS)
    both(getattr(torch.special, name), inner[:, None], orders, tolerance=1e-9)
    places = torch.cat([ends[:4], -ends[:7], rand(2)]).double()
    both(lambda x, q: torch.special.zeta(x.detach(), q), 1 + orders[:, None], places)


@pytest.mark.slow
@pytest.mark.turns
def test_reflections_and_least_squares():
    rand, chosen = draws("reflections"), stream("reflections")
    a, b = rand(2, 4, 2) - 0.5, rand(2, 4, 3)
    both(lambda a: torch.geqrf(a.detach()), a)
    packed, tau = torch.geqrf(a)
    both(torch.linalg.householder_product, packed, tau)
    left, turned = chosen.choice([(True, False), (True, True), (False, True)])
    both(partial(torch.ormqr, left=left, transpose=turned), packed, tau, b if left else b.mT)
    driver = chosen.choice(["gels", "gelsd"])
    both(partial(torch.linalg.lstsq, driver=driver), a[0], b[0], tolerance=1e-4)
    both(lambda x: torch.linalg.qr(x.detach()), torch.zeros(3, 2))


@pytest.mark.slow
@pytest.mark.turns
def test_parts_of_elements_segments_and_random_pools():
    rand = draws("segments")
    x = torch.tensor([0.0, -0.75, 3e-42, 1e30, torch.inf, -torch.nan, 1.0])
    both(torch.frexp, x.detach().double())
    both(lambda x: torch.frexp(x.detach()), x)
    values, lengths = rand(6, 2) - 0.5, torch.tensor([2, 0, 3, 1])
    for kind in ("sum", "mean", "max", "min", "prod"):
        reduced = partial(torch.segment_reduce, reduce=kind, initial=0.25)
        both(lambda v, n, reduced=reduced: reduced(v, lengths=n), values, lengths)
    both(lambda x: torch.histogram(x.detach(), 4, density=True), values)
    both(lambda x: torch.histogramdd(x.detach(), [2, 3], density=True).hist, values)
    pool = partial(F.fractional_max_pool2d, kernel_size=2, output_size=(3, 2), return_indices=True)
    both(lambda x, s: pool(x, _random_samples=s), rand(1, 2, 7, 5), rand(1, 2, 2))
    both(partial(F.interpolate, size=(3, 9), mode="bilinear", antialias=True), rand(1, 2, 7, 5))


@pytest.mark.slow
@pytest.mark.turns
def test_alignments_of_any_length():
    """Also where a sequence is too short for its labels."""
    rand = draws("alignments")
    scores, labels = rand(7, 3, 5), torch.tensor([[1, 1, 2], [4, 2, 3], [1, 1, 1]])
    times, lengths = torch.tensor([7, 5, 4]), torch.tensor([3, 2, 3])
    loss = lambda x, *rest: F.ctc_loss(x.log_softmax(-1), *rest, zero_infinity=True)
    both(loss, scores, labels, times, lengths)
    flat = torch.cat([row[:n] for row, n in zip(labels, lengths, strict=True)])
    whole = torch.full_like(times, 7)
    both(partial(F.ctc_loss, reduction="none"), scores.log_softmax(-1), flat, whole, lengths)


@pytest.mark.slow
@pytest.mark.turns
def test_weights_of_given_norms_learn():
    """Torch has their gradient as one operator, and no formula for it."""
    rand = draws("weight norm")
    x, sizes, directions = rand(2, 4), rand(3, 1), rand(3, 4)
    weighed = lambda v, s, x: F.linear(x, torch._weight_norm(v, s, 0))
    both(weighed, directions, sizes, x)
    both(lambda s, v, x: weighed(v, s, x), sizes, directions, x)
    both(lambda v, s: torch._weight_norm(v, s, 2), rand(2, 3, 4), rand(1, 1, 4))


def test_rows_that_are_looked_up_are_made_short_enough():
    table, places = 3 * draws("long rows")(5, 4), torch.tensor([[1, 3], [1, 0]])
    found = []
    for device in ("cpu", "hal"):
        rows = table.clone().to(device)
        found.append([F.embedding(places.to(device), rows, max_norm=1.0, norm_type=1.0), rows])
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


def test_shifts_and_draws_of_their_own_probabilities():
    x = torch.tensor([1, 5, 12])
    both(lambda x: x << 2, x)
    both(lambda x, n: [x >> 1, x << n], x, torch.tensor([0, 3, 1]))
    drawn = torch.empty(2, 300, device="hal").bernoulli_(torch.tensor([[0.0], [0.25]]))
    assert not drawn[0].any().item()
    assert 0.1 < drawn[1].mean().item() < 0.4


@pytest.mark.slow
@pytest.mark.turns
def test_gradients_of_slices_side_by_side_are_concatenated():
    """They were scattered, element by element: those of attention's queries, keys and values."""
    of_one = ROWS["select_backward"].lower(g.full((2, 5), 1.0, DType.F32), (2, 3, 5), -2, -1)
    of_many = ROWS["slice_backward"].lower(
        g.full((2, 2), 1.0, DType.F32), (2, 5), 1, 1, 2**63 - 1, 2
    )
    assert {of_one.op, of_many.op} == {"pad"}
    rand = draws()
    both(lambda x: torch.cat([x[0, ::2], x[-9:-1:3, 0], x[-1], x[4:1, 0]]), rand(3, 4))
    both(lambda x: torch.cat([part * i for i, part in enumerate(x.unbind(1))]), rand(2, 3, 4))


@pytest.mark.slow
@pytest.mark.turns
def test_parts_of_gamma_distributions_on_both_sides_of_where_their_formulas_change():
    """And at their ends; torch's own are off by 1e-9 in float64."""
    draw = stream("parts of gamma distributions")
    shape = [draw.uniform(1e-4, 40) for _ in range(40)] + [draw.uniform(40, 4000) for _ in range(9)]
    shape += [0.0, 0.0, 1.0, 2.0, math.inf, math.inf, -1.0, 1.0, 1e-6, 20.0, 20.0]
    at = [abs(draw.gauss(a, 3 * a**0.5)) + 1e-3 for a in shape[:49]]
    at += [0.0, 1.0, 0.0, math.inf, 2.0, math.inf, 1.0, -1.0, 0.5, 19.0, 1.1]
    wide = [torch.tensor(v, dtype=torch.float64) for v in (shape, at)]
    functions = draw.sample([torch.igamma, torch.igammac], 2)  # each has seconds of kernels
    for dtype, within, function in zip(
        (torch.float32, torch.float64), (1e-5, 4e-9), functions, strict=True
    ):
        given = [v.to(dtype) for v in wide]
        wanted = function(*[v.double() for v in given]).to(dtype)
        mine = function(*[v.to("hal") for v in given]).cpu()
        torch.testing.assert_close(mine, wanted, rtol=0, atol=within, equal_nan=True)
    grads = []
    for device in ("cpu", "hal"):
        a, x = (v[:49].to(device) for v in wide)
        torch.igamma(a, x.requires_grad_()).sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-6, atol=1e-9)
