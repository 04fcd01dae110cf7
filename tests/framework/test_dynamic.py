"""Functions under `jit` whose sizes and numbers change: traced for the first call, and once more
for all others."""

import random
import sys

import numpy as np
import pytest
import torch

import hal
import stack.framework as ht
from stack.framework import devices, functional, nn, optim
from stack.runtime.opening import engine_of
from tests import draw
from tests.framework import sized_programs


@pytest.fixture(scope="module")
def engine():
    # The other tests of this folder run on an interpreter.
    with engine_of(hal.open("cpu:0", ())) as found:
        yield found


@pytest.fixture(autouse=True)
def on_cpu(engine):
    with devices.default_engine("sized:0", engine):
        yield


def mlp_step():
    ht.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5))
    opt = optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        loss = functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


def mlp_batch(rng, b):
    return rng.standard_normal((b, 12)).astype(np.float32), rng.integers(0, 5, b)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        parts = self.qkv(self.norm(x)).split(c, 2)
        q, k, v = (p.reshape(b, t, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(b, t, c))


def gpt_step():
    ht.manual_seed(0)
    embed, place = nn.Embedding(11, 16), nn.Embedding(300, 16)
    block, head = Block(16, 2), nn.Linear(16, 11)
    opt = optim.SGD([p for m in (embed, place, block, head) for p in m.parameters()], lr=0.1)

    def step(x, y):
        b, t = x.shape
        logits = head(block(embed(x) + place(ht.arange(t))))
        loss = functional.cross_entropy(logits.reshape(b * t, 11), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


def gpt_batch(rng, size):
    return rng.integers(0, 11, (3, size)), rng.integers(0, 11, (3, size))


MODELS = {
    "mlp": (mlp_step, mlp_batch, (7, 32, 2, 3, 16, 17, 64, 65, 130)),
    "gpt": (gpt_step, gpt_batch, (7, 20, 2, 3, 17, 33)),
}


@pytest.mark.slow
@pytest.mark.turns
def test_a_training_step_of_any_size_is_compiled_twice(engine):
    """Beside one that is compiled for each size; of one model and two sizes, as that takes long."""
    seed = draw.stream("dynamic").randrange(1 << 32)
    name = random.Random(seed).choice(list(MODELS))
    sys.stdout.write(f"{name}, seed {seed}\n")
    make, batch, sizes = MODELS[name]
    step, own = ht.jit(make()), ht.jit(make(), dynamic=False)
    sizes = (*sizes, random.Random(seed).randint(18, 200))
    rng = np.random.default_rng(seed)
    for number, size in enumerate(sizes):
        given = batch(rng, size)
        if number == 3:
            compiled, programs = engine.families.compiled.copy(), engine.programs.count
        loss = step(*given).item()
        if number < 2:
            np.testing.assert_allclose(loss, own(*given).item(), rtol=1e-4)
        assert np.isfinite(loss)
    assert step.traced == 2, step.explain()
    assert engine.families.compiled == compiled
    assert engine.programs.count == programs


def test_no_learning_rate_is_traced_or_compiled_after_the_second(engine):
    weights = ht.ones(8)

    @ht.jit
    def step(gradient, lr):
        with ht.no_grad():
            weights.sub_(gradient * lr)
        return weights * 1

    rng = np.random.default_rng(0)
    wanted = np.ones(8, np.float32)
    for number in range(300):
        gradient, lr = rng.standard_normal(8).astype(np.float32), 0.5 ** (number % 60) + number
        wanted = wanted - gradient * np.float32(lr)
        np.testing.assert_array_equal(step(gradient, lr).numpy(), wanted)
        if number == 2:
            compiled = engine.families.compiled.copy()
    assert step.traced == 2
    assert engine.families.compiled == compiled


def test_numbers_are_computed_as_python_does():
    @ht.jit
    def f(x, a, n):
        return x * (1 - a**n) / (a + 1 / n) + n

    x = np.linspace(-2, 2, 9, dtype=np.float32)
    for a, n in ((0.9, 2), (0.99, 3), (0.5, 7), (0.3, 7), (1e-3, 100)):
        want = x * np.float32(1 - a**n) / np.float32(a + 1 / n) + np.float32(n)
        np.testing.assert_array_equal(f(x, a, n).numpy(), want)
    assert f.traced == 2


def test_no_offset_is_traced_or_compiled_after_the_second(engine):
    data = np.arange(4000, dtype=np.float32).reshape(2000, 2)

    @ht.jit
    def batch(x, i):
        return x[i : i + 16] * 2

    x = ht.tensor(data)
    for number, i in enumerate((5, 700, 2, 1984, 3, 64, *range(100, 300, 7))):
        np.testing.assert_array_equal(batch(x, i).numpy(), data[i : i + 16] * 2)
        np.testing.assert_array_equal((x[i : i + 16] * 2).numpy(), data[i : i + 16] * 2)
        if number == 2:
            compiled = engine.families.compiled.copy()
    assert batch.traced == 2
    assert engine.families.compiled == compiled


def attend(q, keys):
    return functional.softmax(q @ keys.transpose(0, 1), -1) @ keys


def attended(q, keys):
    scores = q @ keys.T
    power = np.exp(scores - scores.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True) @ keys


@pytest.mark.parametrize("jitted", [True, False])
def test_a_growing_cache_compiles_nothing_after_three_tokens(engine, jitted):
    def token(q, cache):
        grown = ht.cat([cache, q])
        return attend(q, grown), grown

    step = ht.jit(token) if jitted else token
    rng = np.random.default_rng(3)
    known = rng.standard_normal((2, 8)).astype(np.float32)
    cache = ht.tensor(known)
    for number in range(40):
        q = rng.standard_normal((1, 8)).astype(np.float32)
        known = np.concatenate([known, q])
        out, cache = step(ht.tensor(q), cache)
        np.testing.assert_allclose(out.numpy(), attended(q, known), rtol=1e-4, atol=1e-5)
        if number == 2:
            compiled = engine.families.compiled.copy()
    assert engine.families.compiled == compiled
    np.testing.assert_array_equal(cache.numpy(), known)


def test_a_preallocated_cache_compiles_nothing_after_three_tokens(engine):
    cache = ht.zeros(64, 8)

    @ht.jit
    def token(q, at):
        cache[at : at + 1] = q
        return attend(q, cache[: at + 1])

    rng = np.random.default_rng(4)
    known = np.zeros((0, 8), np.float32)
    for number in range(40):
        q = rng.standard_normal((1, 8)).astype(np.float32)
        known = np.concatenate([known, q])
        out = token(q, number).numpy()
        np.testing.assert_allclose(out, attended(q, known), rtol=1e-4, atol=1e-5)
        if number == 4:  # 0 and 1 are kinds of their own
            compiled = engine.families.compiled.copy()
    assert engine.families.compiled == compiled
    np.testing.assert_array_equal(cache.numpy()[:40], known)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_by_an_index_of_any_size(axis, dtype):
    """Updates are computed some at a time, and those that are left over one by one."""

    @ht.jit
    def summed(x, i, u):
        return x.scatter_add(axis, i, u * 2)

    rng = np.random.default_rng(7)
    for shape, count in (((3, 40), 40), ((2, 7), 19), ((70, 65), 9), ((9, 130), 66)):
        sizes = (count, shape[1]) if axis == 0 else (shape[0], count)
        x, u = (rng.integers(-4, 5, s).astype(np.float32) for s in (shape, sizes))
        index = rng.integers(0, shape[axis], sizes)
        given = [ht.tensor(a).to(getattr(ht, dtype)) for a in (x, u)]
        found = summed(given[0], ht.tensor(index), given[1]).to(ht.float32).numpy()
        own = np.indices(sizes)
        np.add.at(x, (index, own[1]) if axis == 0 else (own[0], index), u * 2)
        np.testing.assert_array_equal(found, x)


def test_what_python_asks_of_a_size_is_a_condition():
    @ht.jit
    def f(x):
        n = x.shape[0]
        return x.sum() if n > 10 else x.sum() * n

    x = np.ones(40, np.float32)
    for n in (3, 4, 9, 10, 11, 12, 40, 2):
        assert f(x[:n]).item() == (n if n > 10 else n * n)
    assert f.traced == 3
    assert "s0 > 10" in f.explain() or "10" in f.explain()


def test_a_function_that_needs_the_number_is_traced_for_each():
    @ht.jit
    def f(x):
        total = x[0]
        for i in range(1, x.shape[0]):
            total = total + x[i]
        return total

    for n in (3, 4, 5, 6):
        assert f(np.ones(n, np.float32)).item() == n
    assert "== 0) is True" in f.explain()


def test_a_function_that_does_not_take_symbols_is_traced_for_each_and_says_so():
    def strict(x):
        if type(x.shape[0]) is not int:
            raise TypeError("not for me")
        return x * 2

    f = ht.jit(strict)
    for n in (3, 4, 5):
        assert f(np.ones(n, np.float32)).tolist() == [2] * n
    assert f.traced == 3
    assert "not for me" in f.explain()


def test_dynamic_from_the_first_call_and_never():
    always, never = (ht.jit(lambda x: x + 1, dynamic=d) for d in (True, False))
    for n in (4, 5, 6):
        for f in (always, never):
            assert f(np.ones(n, np.float32)).tolist() == [2] * n
    assert (always.traced, never.traced) == (1, 3)


def test_a_function_of_many_conditions_is_traced_for_each_in_the_end():
    @ht.jit
    def f(x):
        return x * (x.shape[0] % 6)

    for n in range(2, 26):
        assert f(np.ones(n, np.float32)).tolist() == [n % 6] * n
    asked = ht.jit(lambda x: x * 2 if x.shape[0] % 6 == 1 else x + x.shape[0] % 6)
    for n in range(2, 26):
        wanted = 2 if n % 6 == 1 else 1 + n % 6
        assert asked(np.ones(n, np.float32)).tolist() == [wanted] * n
    split = ht.jit(lambda x: x + sum(range(x.shape[0] % 6)))
    for n in range(2, 20):
        assert split(np.ones(n, np.float32)).tolist() == [1 + sum(range(n % 6))] * n
    assert (f.traced, asked.traced) == (2, 3)
    assert split.traced > 4
    assert "leave others out" in split.explain()


def test_tokens_without_their_last_one_pick_rows_at_every_length():
    """The view of a part is split at a size that is a sum."""
    table = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    rows = ht.tensor(table)

    @ht.jit
    def step(tokens):
        return ht.functional.embedding(tokens[:, :-1], rows).sum(1)

    for length in (4, 5, 6, 2, 3, 17):
        tokens = np.arange(2 * length).reshape(2, length) % 5
        want = table[tokens[:, :-1]].sum(1)
        np.testing.assert_allclose(step(tokens).numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.turns
def test_programs_that_come_again_with_other_sizes_and_numbers_agree_with_pytorch():
    attention_of_any_width = 9226  # which kernels had taken for one of a known width
    for seed in (attention_of_any_width, *draw.sample("sized programs", range(10_000), 1)):
        sized_programs.check(seed)


def decoded(lib, cache, tokens):
    """What a small attention writes with a cache of keys, a token at a time."""
    lib.manual_seed(0)
    weight = lib.tensor(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32))
    x = lib.ones(1, 8)
    held = lib.zeros(3 if cache == "grown" else tokens + 4, 8)
    found = []
    for at in range(3, tokens + 3):
        key = lib.tanh(x @ weight + 1 / at)
        if cache == "grown":
            held = seen = lib.cat([held, key])
        else:
            held[at : at + 1] = key
            seen = held[: at + 1]
        x = lib.softmax(x @ seen.t(), -1) @ seen
        found.append(x.numpy().copy())
        yield np.stack(found)


@pytest.mark.parametrize("cache", ["grown", "preallocated"])
def test_decoding_compiles_nothing_after_three_tokens(engine, cache):
    families = engine.families
    ours, theirs = decoded(ht, cache, 40), decoded(torch, cache, 40)
    for token, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if token == 2:
            compiled = families.compiled.copy()
        np.testing.assert_allclose(mine, other, 1e-5, 1e-5)
    assert families.compiled == compiled, families.notes[-1]


def test_products_by_groups_are_compiled_twice_for_all_rows_and_groups(engine):
    """Also where rows become fewer than groups."""
    rng = np.random.default_rng(draw.stream("grouped").randrange(1 << 32))
    for number, (rows, groups) in enumerate([(40, 8), (12, 5), (3, 9), (300, 6), (7, 7), (2, 4)]):
        if number == 2:
            compiled = engine.families.compiled.copy()
        x, w = (rng.standard_normal(shape) for shape in ((rows, 16), (groups, 16, 8)))
        group = rng.integers(0, groups, rows)
        weights = ht.tensor(w, requires_grad=True)
        y = functional.grouped_matmul(ht.tensor(x), weights, ht.tensor(group))
        y.sum().backward()
        np.testing.assert_allclose(y.numpy(), np.einsum("nk,nkm->nm", x, w[group]), 1e-9, 1e-9)
        want = np.zeros((groups, 16))
        np.add.at(want, group, x)
        np.testing.assert_allclose(weights.grad.sum(-1).numpy(), 8 * want, 1e-9, 1e-9)
    assert engine.families.compiled == compiled, engine.families.notes[-1]


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_few_and_of_many_rows_are_compiled_twice(engine, turned):
    """Few are computed without packing, of which the kernel finds when it runs that they are."""
    rng = np.random.default_rng(draw.stream("few rows").randrange(1 << 32))
    depth, columns = int(rng.integers(128, 400)), int(rng.integers(1, 300))
    w = rng.standard_normal((columns, depth) if turned else (depth, columns))
    product = ht.jit(lambda x, w: x @ (w.T if turned else w))
    rows = [8, 3, *rng.permutation([2, 4, 5, 15, 16, 17, 100])]
    for number, m in enumerate(rows):
        if number == 2:
            compiled = engine.families.compiled.copy()
        x = rng.standard_normal((m, depth))
        found = product(ht.tensor(x), ht.tensor(w)).numpy()
        np.testing.assert_allclose(found, x @ (w.T if turned else w), 1e-12, 1e-12)
    assert engine.families.compiled == compiled, engine.families.notes[-1]


def test_sizes_that_are_alike_by_chance_are_compiled_for_themselves():
    """Batches are one less than an axis, and the gradient's views would be told by that."""
    for batch, *size in ((2, 9, 3, 4), (8, 7, 9, 3), (5, 7, 9, 4)):
        rng = np.random.default_rng(batch)
        x, w = rng.standard_normal((batch, 2, *size)), rng.standard_normal((32, 1, 3, 1, 1))
        found = []
        for lib, device in ((ht, "cpu:0"), (torch, "cpu")):
            image = lib.tensor(x, requires_grad=True, device=device)
            weights = lib.tensor(w, requires_grad=True, device=device)
            named = {"stride": 3, "padding": (2, 1, 1), "dilation": (2, 1, 1), "groups": 2}
            y = lib.nn.functional.conv3d(image, weights, **named)
            values = y.detach().numpy().copy()
            y.backward(y.detach())
            found.append((values, image.grad.numpy(), weights.grad.numpy()))
        for mine, other in zip(*found, strict=True):
            np.testing.assert_allclose(mine, other, 1e-10, 1e-10)


def test_types_of_results_are_known_for_each_element_type_apart():
    for dtype in (ht.float32, ht.float16, ht.int32):
        for n in (3, 4, 5, 6):
            x = ht.tensor(np.ones(n), dtype=dtype)
            doubled = x + x
            assert doubled.dtype is dtype
            np.testing.assert_array_equal(doubled.numpy(), np.full(n, 2))
            np.testing.assert_array_equal((doubled[1:] * x[1:]).numpy(), np.full(n - 1, 2))


def test_attention_has_its_kernels_at_any_length():
    @ht.jit
    def step(x):
        x = (x * 1).requires_grad_()
        y = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        (y * y).sum().backward()
        return y, x.grad

    launches = []
    for n in (40, 70, 33, 130):
        data = np.random.default_rng(n).standard_normal((2, n, 16)).astype(np.float32)
        before = step.launches
        mine = step(data)
        launches.append(step.launches - before)
        other = torch.tensor(data, requires_grad=True)
        found = torch.nn.functional.scaled_dot_product_attention(
            other, other, other, is_causal=True
        )
        (found * found).sum().backward()
        for a, b in zip(mine, (found.detach(), other.grad), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-4, 1e-5)
    assert step.traced == 2
    assert launches == launches[:1] * 4, "products and a softmax would be more"


def image_step(lib, size_of):
    """Strides, pools and their opposites, with their gradients."""
    functional = lib.nn.functional

    def step(x, w, up):
        x, w = (1 * x).detach().requires_grad_(), (1 * w).detach().requires_grad_()
        seen = functional.conv2d(x, w, stride=2, padding=1)
        seen = functional.max_pool2d(functional.relu(seen), 3, 2, 1)
        wide = functional.conv_transpose2d(seen, up, stride=2)
        wide = functional.interpolate(wide, size_of(x), mode="bilinear")
        near = functional.interpolate(functional.avg_pool2d(x, 2), scale_factor=2)
        both = lib.cat([wide, near], 1)
        means = functional.adaptive_avg_pool2d(both, 2)
        ((both * both).mean() + (means * means).sum()).backward()
        return means.detach(), x.grad, w.grad

    return step


@pytest.mark.slow
def test_images_of_like_multiples_have_one_trace_and_all_agree_with_pytorch(engine):
    rng = np.random.default_rng(draw.stream("images").randrange(1 << 32))
    mine = ht.jit(image_step(ht, lambda x: x.shape[2:]))
    other = image_step(torch, lambda x: x.shape[2:])
    for number, size in enumerate((16, 24, 40, 32, 20, 18, 30)):
        if number == 2:
            compiled = engine.families.compiled.copy()
        if number == 4:
            assert mine.traced == 2, mine.explain()
            assert engine.families.compiled == compiled
            assert "of sizes" in mine.explain()
        shapes = (2, 3, size, size), (4, 3, 3, 3), (4, 2, 2, 2)
        given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        found = mine(*given)
        wanted = other(*(torch.from_numpy(x).double() for x in given))
        for a, b in zip(found, wanted, strict=True):  # sums in which terms as large may cancel
            assert np.abs(a.numpy() - b.numpy()).max() < 1e-6 * np.abs(b.numpy()).max()
    assert mine.traced <= 4


def test_what_is_put_in_order_may_fill_its_runs():
    """A size that is a power of two after others that are none."""
    ordered = ht.jit(lambda x: x.sort(-1)[0])
    for n in (100, 300, 77, 1024, 512, 64):
        x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
        np.testing.assert_array_equal(ordered(x).numpy(), np.sort(x, -1))
