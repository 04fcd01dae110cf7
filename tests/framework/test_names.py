"""Names that PyTorch's programs use do what PyTorch's do."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
import stack.framework.backends.cudnn as cudnn
import torch
from stack.framework.cuda.amp import GradScaler, autocast

import stack.framework as ht
import stack.framework.functional as F
from stack.framework import nn
from stack.framework.facts import PRINTED

A = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)


def both(program):
    """The program's value by us and by PyTorch."""
    return program(ht, F, ht.tensor(A)), program(torch, torch.nn.functional, torch.tensor(A))


PROGRAMS = {
    "operands by keyword": lambda t, F, x: t.add(input=x, other=2) + x.mul(other=x),
    "parts by keyword": lambda t, F, x: t.cat(tensors=[x, x], dim=1),
    "numpy's keywords": lambda t, F, x: t.sum(x, axis=1, keepdims=True) + x.mean(axis=0),
    "sizes by keyword": lambda t, F, x: t.zeros(size=(2, 3)) + t.ones(size=[3]),
    "inplace, last": lambda t, F, x: F.leaky_relu(x, 0.2, True) + x,
    "inplace, by keyword": lambda t, F, x: F.elu(x, inplace=True) + x,
    "function in place": lambda t, F, x: t.abs_(x) + x,
    "method in place": lambda t, F, x: x.mul(9).long().bitwise_not_() + x.sin_(),
    "compared in place": lambda t, F, x: x.gt_(0),
    "symbols in place": lambda t, F, x: _symbols(x.mul(9).long()),
    "integers to integers": lambda t, F, x: 3 ** x.mul(9).abs().long(),
    "negative exponents": lambda t, F, x: x.sign().long() ** x.mul(5).long(),
    "triangles": lambda t, F, x: t.tril_indices(4, 3, -1).sum() + t.triu_indices(3, 4, 1).sum(),
    "combinations": lambda t, F, x: t.combinations(x[0], 2),
    "spaced powers": lambda t, F, x: t.logspace(-2, 3, 7),
    "new from data": lambda t, F, x: x.new_tensor([[1, 2]]),
    "shape": lambda t, F, x: x.reshape_as(t.zeros(4, 3)) * x.shape.numel() * t.Size([2, 5]).numel(),
    "broadcast": lambda t, F, x: x.new_ones(t.broadcast_shapes((3, 1), (4,))),
    "types": lambda t, F, x: t.zeros(2, dtype=t.promote_types(t.int8, t.uint8)),
    "result type": lambda t, F, x: t.zeros(2, dtype=t.result_type(x.long(), 1.5)),
    "old constructors": lambda t, F, x: t.LongTensor([3, 4]) * (1 + isinstance(x, t.FloatTensor)),
    "windows": lambda t, F, x: t.cat(
        [
            getattr(t, f"{name}_window")(n, periodic)
            for name in ("hann", "hamming", "blackman", "bartlett", "kaiser")
            for n in (1, 2, 7)
            for periodic in (True, False)
        ]
    ),
    "bags": lambda t, F, x: F.embedding_bag(t.tensor([0, 2, 1, 1]), x, t.tensor([0, 3, 3])),
    "bags, greatest": lambda t, F, x: F.embedding_bag(t.tensor([[0, 2], [1, 1]]), x, mode="max"),
    "unpool": lambda t, F, x: F.max_unpool1d(
        *F.max_pool1d(x.reshape(1, 3, 4), 2, return_indices=True), 2
    ),
    "triplets": lambda t, F, x: F.triplet_margin_with_distance_loss(x, x + 1, x - 0.5, margin=3.0),
    "numpy's indices": lambda t, F, x: (
        x[np.array([2, 0])]
        + x[:2][np.array([True, True])]
        + x[np.arange(2), np.array([[1, 3]])].sum()
    ),
    "determinants": lambda t, F, x: (
        (x @ x.T).det() + t.slogdet(x @ x.T + t.eye(3))[1] + t.det(x @ x.T)
    ),
    "rms norm": lambda t, F, x: t.rms_norm(x, (4,)) * x.equal(x) + x.is_sparse + x.is_quantized,
    "vmap": lambda t, F, x: t.vmap(lambda row: row.cumsum(0))(x),
    "unlike slices": lambda t, F, x: t.cat(
        [
            found.flatten()
            for dim in (0, 1, 2, -1)
            for ask in ({}, {"return_inverse": True, "return_counts": True})
            for function in (t.unique, t.unique_consecutive)
            for found in _several(function((x * 2).long().sign().reshape(3, 2, 2), dim=dim, **ask))
        ]
    ),
    "unlike rows of few": lambda t, F, x: (
        t.unique((x > 0)[:1], dim=0).sum() + len(t.unique(x[:0], dim=0)) * 9
    ),
    "axes in front": lambda t, F, x: _filled(x, t.arange(2)),
    "places by number": lambda t, F, x: t.stack(t.unravel_index(t.arange(9, 20), (2, 3, 4))),
    "orders in memory": lambda t, F, x: (
        x.reshape(1, 3, 2, 2)
        .contiguous(memory_format=t.channels_last)
        .to(memory_format=t.contiguous_format)
        .clone(memory_format=t.preserve_format)
    ),
    "new by sizes and values": lambda t, F, x: t.cat(
        [x.new(2, 3).fill_(1)[0], x.new([3.0, 4]), x.new(), x.new(x.shape).zero_()[0]]
    ),
    "leaves of old programs": lambda t, F, x: _doubled(t.autograd.Variable(x, requires_grad=True)),
    "compiled Python": lambda t, F, x: (
        t.jit.ignore(lambda x: x + t.jit.is_scripting())(x) + (x.layout == t.strided) + x.is_meta
    ),
    "PyTorch's own keywords": lambda t, F, x: t.cat(
        [
            part.flatten().float()
            for part in (
                t.pow(x, exponent=2), x.pow(exponent=3), x.clone().pow_(exponent=2),
                t.bmm(x[None], mat2=x.T[None]), t.where(condition=x > 0, input=x, other=-x),
                t.split(tensor=x, split_size_or_sections=2, dim=1)[1],
                x.split(split_size=3, dim=1)[0], t.unsafe_chunk(x, 2, 1)[0],
                x.swapaxes(axis0=0, axis1=1), t.isin(elements=x, test_elements=x[:1]),
                t.searchsorted(sorted_sequence=x[0].sort()[0], input=x, side="right"),
            )
        ]
    ),
    "cuts of a tensor": lambda t, F, x: t.cat(x.tensor_split(t.tensor([3, 1]), 1), 1)
    + t.tensor_split(x, t.tensor(2), dim=1)[1].sum(),
    "modes": lambda t, F, x: t.mode((x * 2).long(), 1)[0].float() + t.norm(x, 3, dtype=t.float64),
    "nuclear norms": lambda t, F, x: x.norm("nuc") + t.norm(x[None], "nuc", (1, 2)),
    "dropped nowhere, in place": lambda t, F, x: (
        F.dropout3d(x[None, None], 0.5, False, inplace=True)
        + F.alpha_dropout(x, 0.5, inplace=True)
        + F.feature_alpha_dropout(x[0, 0], 0.5, False)
    ),
    "copied meanwhile": lambda t, F, x: (
        t.empty(3, 4).copy_(x, non_blocking=True)
        * x.is_contiguous(memory_format=t.contiguous_format)
    ),
    "powers of places": lambda t, F, x: t.vander(x[0], 3) + t.vander(x[1], increasing=True)[:, :3],
    "least squares": lambda t, F, x: t.cat(
        [t.linalg.lstsq(x[:, :2], x[:, 2:]).solution, t.linalg.lstsq(x, x[:, :2]).solution]
    ),
    "least squares of less than full rank": lambda t, F, x: t.cat(
        [
            part.reshape(-1) + 0.0
            for part in t.linalg.lstsq(x[:, [0, 1, 0]], x[:, 2:], driver="gelsd")
            if part.numel() != 2  # NaN here, where PyTorch gives none
        ]
    ),
    "windows of signals": lambda t, F, x: t.cat(
        [
            getattr(t.signal.windows, name)(n, sym=sym, **more)
            for name, more in SIGNALS.items()
            for n in (0, 1, 2, 7)
            for sym in (True, False)
        ]
    ),
    "complex zeros": lambda t, F, x: t.view_as_real(
        t.zeros(3, 4, dtype=t.cfloat) + x.cfloat() * t.full((1,), 2 + 1j, dtype=t.complex64)
    ),
    "complex and real": lambda t, F, x: t.view_as_real(
        t.cat(
            [
                t.exp(1j * x) + x * 2j + t.mul(x, x.cfloat()) - x.sub(t.polar(x.abs(), x)),
                t.where(x > 0, t.polar(x.abs(), x), x.cfloat()),
                t.einsum("ij,kj->ik", t.polar(x.abs(), x), x.cfloat()) @ t.polar(x.abs(), x),
                t.einsum("ij,kj->ik", [x * 2j, t.exp(2j * x)]) @ (x * (1 + 1j)),
                t.outer(x[0], t.exp(-1j * x[1]))[:3],
                _set(t.zeros(3, 4, dtype=t.cfloat), x * 1j),
            ]
        )
    ),
    "close complex numbers": lambda t, F, x: (
        x * t.allclose(t.exp(1j * x), t.complex(x.cos(), x.sin()), atol=1e-5)
    ),
    "limits": lambda t, F, x: (
        x * t.finfo(x.dtype).eps + type(t.finfo().max)(3) + t.iinfo(t.int8).max
    ),
    "old names of types": lambda t, F, x: t.tensor(
        [
            x.to(getattr(t, kind)).type() == f"torch.{old}Tensor"
            for kind, old in (("float32", "Float"), ("int64", "Long"), ("bool", "Bool"))
        ]
    ),
    "not dropped": lambda t, F, x: F.alpha_dropout(F.dropout1d(x, 0.5, False), 0.5) + F.rrelu(x),
}  # fmt: skip


SIGNALS = {
    **{name: {} for name in ("bartlett", "blackman", "cosine", "hamming", "hann", "nuttall")},
    **{name: {} for name in ("exponential", "gaussian", "general_hamming", "kaiser")},
    "general_cosine": {"a": [0.5, 0.3, 0.2]},
}


def _set(z, values):
    z[1:, :2] = values[1:, :2]
    z[0] = 3 - 2j
    return z


def _doubled(x):
    (2 * x).sum().backward()
    return x.grad


def _several(found):
    return found if isinstance(found, tuple) else (found,)


def _filled(x, places):
    x[1] = x[:1] * 2
    x[:, 1] = x[None, None, :, 0] + 1
    x[places] = x[None, None, 2] * 3
    return x


def _symbols(x):
    x //= 2
    x %= 7
    x **= 2
    x <<= 1
    x |= 8
    x &= 62
    x ^= 3
    x >>= 1
    return x


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_pytorchs_gives(name):
    mine, theirs = both(PROGRAMS[name])
    assert mine.dtype.numpy == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_ctc_loss(flat, reduction):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 3, 5)).astype(np.float32)
    labels = np.array([[1, 1, 2], [3, 4, 0], [2, 2, 2]])
    long, wide = [7, 6, 4], [3, 2, 3]  # the last one is impossible: it has no place for blanks
    rows = np.concatenate([row[:n] for row, n in zip(labels, wide, strict=True)])
    leaves = ht.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    losses = []
    for t, f, leaf in zip((ht, torch), (F, torch.nn.functional), leaves, strict=True):
        target = t.tensor(rows if flat else labels)
        given = leaf.log_softmax(-1), target, t.tensor(long), t.tensor(wide)
        losses.append(f.ctc_loss(*given, reduction=reduction, zero_infinity=True))
        losses[-1].sum().backward()
    np.testing.assert_allclose(losses[0].detach().numpy(), losses[1].detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(leaves[0].grad.numpy(), leaves[1].grad.numpy(), atol=2e-6)


def _chosen(x):
    return F.gumbel_softmax(x.reshape(1000, 4), hard=True)[:, 0]


def _weights():
    return ht.tensor([1.0, 3, 0, 4])


ARRAYS = {
    "sums": lambda p, x: p.cumulative_sum(x, axis=1, include_initial=True),
    "products": lambda p, x: p.cumulative_prod(x, axis=0),
    "matrices": lambda p, x: p.matrix_transpose(p.permute_dims(x, (1, 0))),
    "dims": lambda p, x: p.expand_dims(x, axis=0),
    "dots": lambda p, x: p.vecdot(x, x, axis=0),
    "taken": lambda p, x: p.take_along_axis(x, p.asarray([[0], [2], [1]]), axis=1),
    "rows": lambda p, x: p.concat(p.unstack(p.take(x, p.asarray([2, 0]), axis=0))),
    "repeated": lambda p, x: p.repeat(x, 2, axis=0),
    "unique": lambda p, x: p.concat(
        [p.astype(v, p.int64) for v in p.unique_all(p.reshape(p.astype(x * 2, p.int64), (-1,)))]
    ),
    "products of matrices": lambda p, x: p.linalg.matmul(x, p.linalg.matrix_transpose(x)),
    "traces": lambda p, x: p.linalg.trace(p.linalg.outer(x[0, :], x[1, :])),
    "sums of products": lambda p, x: p.linalg.tensordot(x, x),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_a_name_of_the_array_api_gives_what_numpys_gives(name):
    mine = ARRAYS[name](ht.ones(1).__array_namespace__(), ht.tensor(A)).numpy()
    theirs = ARRAYS[name](np, A)
    assert mine.shape == theirs.shape
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_arrays_go_over_by_dlpack():
    np.testing.assert_array_equal(np.from_dlpack(ht.tensor(A)), A)
    np.testing.assert_array_equal(ht.from_dlpack(torch.tensor(A)).numpy(), A)


DRAWS = {  # (what draws 4,000 numbers, their mean, how far the mean may be off: 5 deviations)
    "normal_": (lambda x: x.normal_(2, 3), 2, 0.24),
    "uniform_": (lambda x: x.uniform_(-1, 3), 1, 0.1),
    "random_": (lambda x: x.random_(2, 12), 6.5, 0.23),
    "bernoulli_": (lambda x: x.bernoulli_(0.3), 0.3, 0.04),
    "exponential_": (lambda x: x.exponential_(2), 0.5, 0.04),
    "geometric_": (lambda x: x.geometric_(0.25), 4, 0.28),
    "log_normal_": (lambda x: x.log_normal_(0, 0.5), 1.133, 0.05),
    "cauchy_": (lambda x: x.cauchy_(3).clamp(-2, 8), 3, 0.22),
    "alpha_dropout": (lambda x: F.alpha_dropout(x.normal_(), 0.5, True), 0, 0.08),
    "dropout2d": (lambda x: F.dropout2d(x.fill_(1).reshape(500, 8, 1, 1), 0.25), 1, 0.05),
    "rrelu": (lambda x: F.rrelu(x.fill_(-1), 0.1, 0.3, True), -0.2, 0.005),
    "gumbel_softmax": (lambda x: _chosen(x.zero_()), 0.25, 0.07),
    "multinomial": (lambda x: _weights().multinomial(4000, True).float(), 1.875, 0.11),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_the_mean_of_their_distribution(name):
    draw, mean, off = DRAWS[name]
    ht.manual_seed(11)
    assert float(draw(ht.zeros(4000)).mean()) == pytest.approx(mean, abs=off)


def test_dropout2d_of_three_axes_takes_the_second_for_channels():
    rows = F.dropout2d(ht.ones(8, 16, 2), 0.5).sum(2)
    assert sorted(set(rows.flatten().tolist())) == [0, 4]
    assert all(0 < float(row.sum()) < 64 for row in rows)


def test_places_are_drawn_once_without_replacement():
    drawn = ht.tensor([[1.0, 2, 0, 3], [1, 1, 1, 1]]).multinomial(3).tolist()
    assert [len(set(row)) for row in drawn] == [3, 3]
    assert 2 not in drawn[0]


def test_hooks_of_tensors_see_and_replace_gradients():
    seen = []
    results = []
    for t in (ht, torch):
        x = t.ones(3, requires_grad=True)
        doubled = x.register_hook(lambda d: d * 2)
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
        y = x * t.tensor([1.0, 2, 3])
        y.retain_grad()
        y.register_hook(lambda d: seen.append(d.tolist()))
        (y * y).sum().backward()
        doubled.remove()
        (x * 5).sum().backward()
        results.append((x.grad.tolist(), y.grad.tolist()))
    assert results[0] == results[1]
    assert sorted(map(str, seen[:3])) == sorted(map(str, seen[3:]))


def test_hooks_see_gradients_of_parameters_that_an_optimizer_holds():
    found = []
    for t in (ht, torch):
        p = t.nn.Parameter(t.tensor([2.0]))
        optimizer = t.optim.SGD([p, t.nn.Parameter(t.ones(3))], lr=1.0)
        hook = p.register_hook(lambda d: d * 10)
        (p * 3).sum().backward()
        optimizer.step()
        found.append([p.tolist(), t.autograd.grad((p * p).sum(), p)[0].tolist()])
        hook.remove()
        found[-1].append(t.autograd.grad((p * p).sum(), p)[0].tolist())
    assert found[0] == found[1]


def test_hooks_of_modules_see_and_replace_gradients():
    found = []
    for t, n in ((ht, nn), (torch, torch.nn)):
        seen: list[object] = []

        def look(module, before, after, seen=seen):
            seen.append([d.tolist() for d in (*before, *after)])

        first, last = n.Linear(2, 2), n.Tanh()
        with t.no_grad():
            first.weight.copy_(t.tensor([[1.0, 2], [3, 4]]))
            first.bias.zero_()
        for m in (first, last):
            m.register_full_backward_hook(look)
        last.register_full_backward_hook(lambda m, a, b: (a[0] * 2,))
        x = t.tensor([[0.1, -0.2]], requires_grad=True)
        last(first(x)).sum().backward()
        found.append(np.array([*seen, [x.grad.tolist()] * 2]))
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_backward_may_be_asked_for_some_inputs_and_differentiated():
    x, w = ht.tensor([2.0], requires_grad=True), ht.tensor([3.0], requires_grad=True)
    (x**3 * w).sum().backward(inputs=[x], create_graph=True)
    assert (x.grad.tolist(), w.grad) == ([36.0], None)
    first, x.grad = x.grad, None
    first.sum().backward()
    assert x.grad.tolist() == [36.0]


@pytest.mark.parametrize(
    ("look", "nearest"),
    [
        (lambda: ht.optim.Adamw, "optim.Adamw is not here.*Adam"),
        (lambda: ht.ones(1).requires_gradd, "Tensor.requires_gradd is not here.*requires_grad"),
        (lambda: nn.Conv4d, "nn.Conv4d is not here.*Conv3d"),
        (lambda: nn.Linear(1, 1).wieght, "'Linear' object has no attribute 'wieght'.*weight"),
        (lambda: nn.functional.softmx, "functional.softmx is not here.*softmax"),
        (lambda: nn.init.xavier_normal, "nn.init.xavier_normal is not here.*xavier_normal_"),
        (lambda: ht.optim.lr_scheduler.StepRL, "lr_scheduler.StepRL is not here.*StepLR"),
        (
            lambda: ht.utils.data.DistributedSampler,
            "DistributedSampler is not here; instead: .*part",
        ),
        (lambda: ht.optim.SparseAdam, "SparseAdam is not here; instead: Adam"),
        (lambda: nn.SyncBatchNorm, "SyncBatchNorm is not here; instead: BatchNorm"),
        (lambda: nn.utils.prune, "prune is not here; instead: nn.utils.parametrize"),
        (lambda: ht.fft.ffft, "fft.ffft is not here.*rfft"),
        (lambda: ht.func.grads, "func.grads is not here.*grad"),
        (lambda: nn.utils.clip_grad_norm, "nn.utils.clip_grad_norm is not here.*clip_grad_norm_"),
    ],
)
def test_a_missing_name_says_the_nearest(look, nearest):
    with pytest.raises(AttributeError, match=nearest):
        look()


def test_parameters_take_attributes_and_gradients_any_iterable():
    model = nn.Linear(2, 1)
    model.weight.is_shared = True
    assert (model.weight.is_shared, hasattr(model.bias, "is_shared")) == (True, False)
    params = dict(model.named_parameters())
    found = ht.autograd.grad(model(ht.ones(1, 2)).sum(), params.values())
    assert [d.tolist() for d in found] == [[[1.0, 1.0]], [1.0]]
    with ht.autograd.set_detect_anomaly(False), pytest.warns(match="changes nothing"):
        ht.autograd.set_detect_anomaly(True)


def test_pythons_types_are_element_types():
    for kind, dtype in ((bool, ht.bool), (int, ht.int64), (float, ht.float64)):
        x = ht.ones(2)
        made = [
            ht.zeros(2, dtype=kind), ht.eye(2, dtype=kind), ht.tensor([1], dtype=kind), x.to(kind),
            x.type(kind), ht.full((2,), 1, dtype=kind), ht.as_tensor([1], dtype=kind),
            ht.zeros_like(x, dtype=kind), x.new_zeros(2, dtype=kind), x.to(dtype=kind),
            ht.randint(2, (2,), dtype=kind),
        ]  # fmt: skip
        assert {t.dtype for t in made} == {dtype}
    assert (ht.rand(2, dtype=float).dtype, x.sum(dtype=int).dtype) == (ht.float64, ht.int64)


def test_the_oldest_constructor_takes_data_or_sizes():
    found = []
    for t in (ht, torch):
        given = [(), (2, 3), ([2, 3],), (t.ones(2, 3).size(),), (np.ones((2, 2)),), (t.ones(2),)]
        found.append([list(t.Tensor(*g).shape) for g in given])
        found[-1] += [t.Tensor([1, 2]).tolist(), str(t.Tensor(2).dtype)[-3:]]
    assert found[0][:-1] == found[1][:-1]
    assert ht.Tensor(2).dtype is ht.float32


def read_otherwise(t):
    f = t.tensor([[1.0, -2.5], [3.0, 1e-20]])
    x = t.arange(6.0, requires_grad=True)
    (x.as_strided((5, 2), (1, 1)) * 2).sum().backward()
    return [
        *(f.view(d).tolist() for d in (t.int32, t.int16, t.uint8, t.int64, t.float64)),
        t.tensor([1, 2, 300]).view(t.int32).tolist(),
        t.tensor([1.0, 2]).half().view(dtype=t.int16).tolist(),
        t.tensor([1, 0, 2], dtype=t.uint8).view(t.bool).tolist(),
        t.tensor(5).view(t.float64).tolist(),
        t.arange(10.0).as_strided((4, 3), (2, 1)).tolist(),
        t.arange(12.0)[2:].as_strided((2, 2), (3, 1)).tolist(),
        t.arange(12.0).view(3, 4).t().as_strided((2, 2), (3, 1), 1).tolist(),
        x.grad.tolist(),
    ]


def test_bits_and_memory_are_read_otherwise():
    assert read_otherwise(ht) == read_otherwise(torch)
    with pytest.raises(ht.TensorError, match="reach element 10 of a memory of 10"):
        ht.arange(10.0).as_strided((2,), (5,), 5)


def agnostic(t):
    """What scripts ask before they choose a device, where there is none of PyTorch's kinds."""
    for kind in (t.cuda, t.mps, t.xpu):
        kind.manual_seed(1)
    t.cuda.manual_seed_all(1), t.cuda.empty_cache()
    t.backends.cudnn.benchmark = t.backends.cuda.matmul.allow_tf32 = True
    t.backends.cudnn.deterministic = False
    before = t.get_rng_state()
    first = t.rand(3).tolist()
    t.set_rng_state(before)
    again = t.rand(3).tolist() == first
    with t.random.fork_rng():
        t.rand(7)
    seeded = t.Generator().manual_seed(7).initial_seed()
    return [
        t.cuda.is_available(), t.cuda.device_count(), t.cuda.is_initialized(),
        t.backends.mps.is_available(), t.cuda.memory_allocated(), t.cuda.max_memory_allocated(),
        t.backends.cudnn.is_available(), t.backends.cudnn.benchmark, t.version.cuda,
        t.accelerator.is_available(), t.accelerator.current_accelerator(),
        t.accelerator.device_count(), t.ones(1).is_cuda, again, seeded,
    ]  # fmt: skip


def test_kinds_of_devices_that_are_not_here_say_so():
    ht.set_default_device("cpu:0")
    theirs = "import torch\n" + inspect.getsource(agnostic) + "print(agnostic(torch))"
    run = [sys.executable, "-c", theirs]  # which keeps what it has set, or is not let to
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=True)
    assert repr(agnostic(ht)) == done.stdout.strip()
    assert cudnn is ht.backends.cudnn
    assert not GradScaler().is_enabled()
    with autocast(dtype=ht.float16):
        assert (ht.ones(2, 2) @ ht.ones(2, 2)).dtype is ht.float32
    with pytest.raises(AttributeError, match=r"cudnn\.benchmrak is not here.*benchmark"):
        ht.backends.cudnn.benchmrak = True
    with pytest.raises(RuntimeError, match="there is no device of this kind"):
        ht.cuda.synchronize()
    with pytest.raises(AttributeError, match="nvtxx is not here"):
        ht.cuda.nvtxx  # noqa: B018


def test_the_default_device_is_the_accelerator():
    at = ht.accelerator
    assert (at.is_available(), at.device_count(), at.current_device_index()) == (True, 1, 0)
    assert at.current_accelerator() == "interpreter:0"
    at.synchronize()


def test_tensors_are_printed_as_it_was_asked_for():
    before = dict(PRINTED)
    try:
        ht.set_printoptions(precision=2, sci_mode=False)
        assert repr(ht.tensor([1.23456, 1e-7])).startswith("tensor([1.23, 0.  ],")
        ht.set_printoptions(profile="short", threshold=5)
        assert "..." in repr(ht.zeros(9))
    finally:
        PRINTED.clear()
        PRINTED.update(before)


def _own_schedule(t):
    class Warmup(t.optim.lr_scheduler._LRScheduler):
        def __init__(self, optimizer, steps, last_epoch=-1):
            self.steps = steps
            super().__init__(optimizer, last_epoch)

        def get_lr(self):
            if self.last_epoch < self.steps:
                return [base * (self.last_epoch + 1) / self.steps for base in self.base_lrs]
            return [group["lr"] * 0.5 for group in self.optimizer.param_groups]

    parts = [{"params": [t.zeros(1, requires_grad=True)], "lr": 0.1 * (k + 1)} for k in range(2)]
    optimizer = t.optim.SGD(parts, lr=1.0)
    schedule = Warmup(optimizer, 3)
    rates = []
    for step in range(6):
        rates.append(schedule.get_last_lr())
        optimizer.step()
        schedule.step()
        if step == 4:
            schedule.load_state_dict(schedule.state_dict())
    return np.array(rates)


def test_a_schedule_of_the_users_own_gives_pytorchs_rates():
    np.testing.assert_allclose(_own_schedule(ht), _own_schedule(torch), rtol=1e-12)


def test_pytorchs_places_of_layers_have_ours():
    from stack.framework.nn.modules.batchnorm import _BatchNorm  # noqa: PLC0415
    from stack.framework.nn.modules.utils import _pair, _triple  # noqa: PLC0415
    from stack.framework.nn.parameter import Parameter  # noqa: PLC0415

    assert issubclass(nn.BatchNorm2d, _BatchNorm)
    assert isinstance(nn.Conv2d(1, 1, 1), nn.modules.conv._ConvNd)
    assert nn.modules.Module is nn.Module
    assert (_pair(3), _pair([1, 2]), _triple(0)) == ((3, 3), (1, 2), (0, 0, 0))
    assert Parameter is nn.Parameter
    with pytest.raises(AttributeError, match="SyncBatchNorm"):
        nn.modules.batchnorm.SyncBatchNorm  # noqa: B018
