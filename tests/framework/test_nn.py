"""Layers compute what torch's do, from torch's weights, with torch's gradients."""

import numpy as np
import pytest
import torch

import stack.framework as ht
import stack.framework.functional as F
from stack.framework import nn

peer = torch.nn


def give(source, target):
    """Copy a torch module's state into one of ours."""
    target.load_state_dict({k: ht.tensor(v.numpy()) for k, v in source.state_dict().items()})


def same(ours, theirs, x, rtol=2e-5, atol=2e-6):
    """Output, input gradient and parameter gradients agree for these weights."""
    give(theirs, ours)
    a, b = ht.tensor(x), torch.tensor(x)
    if x.dtype.kind == "f":
        a.requires_grad_(), b.requires_grad_()
    y, z = ours(a), theirs(b)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=rtol, atol=atol)
    weights = np.random.default_rng(3).normal(size=y.shape).astype(np.float32)
    (y * ht.tensor(weights)).sum().backward()
    (z * torch.tensor(weights)).sum().backward()
    pairs = [(a, b)] if x.dtype.kind == "f" else []
    pairs += list(zip(ours.parameters(), theirs.parameters(), strict=True))
    for p, q in pairs:
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=rtol, atol=10 * atol)


@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (nn.Linear, peer.Linear, (4, 3)),
        (lambda *a: nn.Linear(*a, bias=False), lambda *a: peer.Linear(*a, bias=False), (4, 3)),
    ],
)
def test_linear(ours, theirs, shape, draw_floats):
    same(ours(3, 5), theirs(3, 5), *draw_floats(shape))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias, draw_floats):
    ours, theirs = nn.LayerNorm((3, 4), bias=bias), peer.LayerNorm((3, 4), bias=bias)
    with torch.no_grad():
        theirs.weight.normal_()
    same(ours, theirs, *draw_floats((5, 3, 4)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps, draw_floats):
    same(nn.RMSNorm(4, eps=eps), peer.RMSNorm(4, eps=eps), *draw_floats((5, 4)), rtol=1e-4)


def test_embedding_adds_the_gradients_of_equal_rows():
    same(nn.Embedding(5, 3), peer.Embedding(5, 3), np.array([[1, 1, 4], [0, 1, 2]]))


def test_sequential_with_activations(draw_floats):
    ours = nn.Sequential(
        nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 4), nn.SiLU(), nn.Tanh(), nn.ReLU()
    )
    theirs = peer.Sequential(
        peer.Linear(3, 4), peer.GELU(), peer.Linear(4, 4), peer.SiLU(), peer.Tanh(), peer.ReLU()
    )
    same(ours, theirs, *draw_floats((6, 3)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 4, 8)])
def test_attention(causal, shape, agree, draw_floats):
    agree(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        lambda q, k, v: peer.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
        *draw_floats(shape, shape, shape),
        atol=5e-6,
    )


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_with_a_mask(kind, agree, draw_floats):
    mask = np.array([[True, False, True], [True, True, False]])
    mask = mask if kind == "bool" else np.where(mask, 0.5, -2.0).astype(np.float32)
    agree(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ht.tensor(mask), scale=0.3),
        lambda q, k, v: peer.functional.scaled_dot_product_attention(
            q, k, v, torch.tensor(mask), scale=0.3
        ),
        *draw_floats((2, 4), (3, 4), (3, 4)),
        atol=5e-6,
    )


def test_heads_that_share_keys_drop_weights_as_their_own_ones_do(draw_floats):
    """A row whose keys are all masked gives 0, with dropout, too."""
    query, *rest = (ht.tensor(x) for x in draw_floats((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)))
    mask = ht.tensor(np.arange(5) > 0).unsqueeze(1).expand(5, 5)
    found = []
    for gqa in (True, False):
        own = [x.clone().requires_grad_() for x in rest]
        k, v = own if gqa else (x.repeat_interleave(2, 1) for x in own)
        ht.manual_seed(7)
        out = F.scaled_dot_product_attention(query, k, v, mask, dropout_p=0.4, enable_gqa=gqa)
        assert not out[:, :, 0].numpy().any()
        out.square().sum().backward()
        found.append([out.detach().numpy(), *(x.grad.numpy() for x in own)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_causal_self_attention_is_torchs_multihead_attention(draw_floats):
    (x,) = draw_floats((2, 5, 8))
    ours, theirs = nn.CausalSelfAttention(8, 2), peer.MultiheadAttention(8, 2, batch_first=True)
    names = {"in_proj_": "qkv.", "out_proj.": "proj."}
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = ht.tensor(value.numpy())
    ours.load_state_dict(state)
    mask = peer.Transformer.generate_square_subsequent_mask(5)
    t = torch.tensor(x)
    expected, _ = theirs(t, t, t, attn_mask=mask, is_causal=True, need_weights=False)
    np.testing.assert_allclose(
        ours(ht.tensor(x)).numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(smoothing, reduction, agree, draw_floats):
    target = np.array([0, 2, -100, 1])
    settings = {"label_smoothing": smoothing, "reduction": reduction}
    agree(
        lambda x, t: F.cross_entropy(x * 5, t, **settings),
        lambda x, t: peer.functional.cross_entropy(x * 5, t, **settings),
        *draw_floats((4, 3)),
        target,
    )


def test_cross_entropy_with_more_axes_and_with_one_row(agree, draw_floats):
    theirs = peer.functional.cross_entropy
    agree(F.cross_entropy, theirs, *draw_floats((2, 3, 4)), np.array([[0, 1, 2, 0], [1, 1, 2, 0]]))
    agree(F.cross_entropy, theirs, *draw_floats((3,)), np.array(2))


def test_cross_entropy_of_extreme_scores(agree):
    x = np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32)
    agree(F.cross_entropy, peer.functional.cross_entropy, x, np.array([0, 0]))


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_distances(name, reduction, agree, draw_floats):
    agree(
        lambda x, y: getattr(F, name)(x, y, reduction=reduction),
        lambda x, y: getattr(peer.functional, name)(x, y, reduction=reduction),
        *draw_floats((3, 2), (3, 2)),
    )


def test_binary_cross_entropy(agree, draw_floats):
    target = np.array([0.0, 1.0, 0.3], np.float32)
    agree(
        lambda x: F.binary_cross_entropy_with_logits(x * 9, ht.tensor(target)),
        lambda x: peer.functional.binary_cross_entropy_with_logits(x * 9, torch.tensor(target)),
        *draw_floats((3,)),
    )


def test_halves_keep_their_type_without_autocast(draw_floats):
    x = ht.tensor(draw_floats((2, 4))[0]).bfloat16()
    assert F.layer_norm(x, (4,)).dtype is ht.bfloat16
    assert F.rms_norm(x, (4,)).dtype is ht.bfloat16
    assert F.gelu(x).dtype is ht.bfloat16
    q = x.reshape(1, 2, 4)
    assert F.scaled_dot_product_attention(q, q, q).dtype is ht.bfloat16


# the tree


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("scale", ht.ones(1))
        self.register_buffer("scratch", ht.zeros(1), persistent=False)

    def forward(self, x):
        return self.head(self.wte(x)) * self.scale


def test_names_shared_parameters_and_buffers():
    model = Tied()
    assert [n for n, _ in model.named_parameters()] == ["wte.weight"]
    assert [n for n, _ in model.named_buffers()] == ["scale", "scratch"]
    assert set(model.state_dict()) == {"wte.weight", "head.weight", "scale"}
    assert [n for n, _ in model.named_modules()] == ["", "wte", "head"]


def test_shared_parameters_stay_shared_and_gather_both_gradients():
    model = Tied()
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    assert model.head.weight is model.wte.weight
    model(ht.tensor([1])).sum().backward()
    row = model.wte.weight.numpy()
    expected = np.tile(row[1], (4, 1)) * 2
    expected[1] += row.sum(0) * 2
    np.testing.assert_allclose(model.wte.weight.grad.numpy(), expected, rtol=1e-5)


def test_a_state_that_does_not_fit_is_listed_and_changes_nothing():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    before = model.state_dict()
    state = {**before, "0.weight": ht.zeros(4, 2), "2.bias": ht.zeros(1)}
    del state["1.bias"]
    with pytest.raises(ht.CheckpointError) as caught:
        model.load_state_dict(state)
    assert str(caught.value).splitlines() == [
        "the state does not fit Sequential:",
        "  missing: 1.bias",
        "  unexpected: 2.bias",
        "  0.weight: the model has float32[3, 2], the state float32[4, 2]",
    ]
    with pytest.raises(ht.CheckpointError, match=r"1\.bias: the model has .*, the state a ndarray"):
        model.load_state_dict({**before, "0.weight": ht.ones(3, 2), "1.bias": np.ones(3)})
    with pytest.raises(ht.CheckpointError, match="a dict of tensors by name, not a list"):
        model.load_state_dict([1])
    np.testing.assert_array_equal(model[0].weight.numpy(), before["0.weight"].numpy())
    model.load_state_dict({"1.bias": ht.ones(3)}, strict=False)
    assert model[1].bias.tolist() == [1, 1, 1]


def test_training_mode_reaches_everywhere():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    x = ht.ones(50)
    assert model.eval()(x).tolist() == [1] * 50
    assert not model[1][0].training
    assert model.train()(x).tolist() != [1] * 50


def test_conversion_keeps_identity_and_integers():
    model = nn.Linear(2, 2)
    weight = model.weight
    model.register_buffer("count", ht.tensor([1]))
    assert model.to(ht.bfloat16).weight is weight
    assert (weight.dtype, model.count.dtype) == (ht.bfloat16, ht.int64)
    model(ht.ones(1, 2).bfloat16()).sum().backward()
    assert weight.grad.dtype is ht.bfloat16


def test_apply_visits_inner_modules_first():
    seen = []
    nn.Sequential(nn.Linear(1, 1), nn.GELU()).apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "GELU", "Sequential"]


def test_freezing_and_clearing():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    model(ht.ones(1, 2)).sum().backward()
    assert model[0].weight.grad is None
    assert model[1].weight.grad is not None
    model.zero_grad(set_to_none=False)
    assert model[1].bias.grad.tolist() == [0]
    model.zero_grad()
    assert model[1].bias.grad is None


def test_repr_shows_the_tree():
    text = repr(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.GELU("tanh"))))
    assert text == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): GELU(approximate='tanh')\n"
        "  )\n"
        ")"
    )


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="3 heads do not divide embed_dim 8"):
        nn.CausalSelfAttention(8, 3)


@pytest.mark.parametrize(
    "name", ["xavier_uniform_", "kaiming_uniform_", "xavier_normal_", "kaiming_normal_"]
)
def test_initial_values_have_torchs_spread(name):
    ht.manual_seed(0)
    torch.manual_seed(0)
    mine, theirs = ht.zeros(60, 90), torch.zeros(60, 90)
    getattr(nn.init, name)(mine)
    getattr(peer.init, name)(theirs)
    assert abs(mine.mean().item()) < 4 * theirs.std().item() / np.sqrt(5400)
    np.testing.assert_allclose(mine.std().item(), theirs.std().item(), rtol=0.05)
    np.testing.assert_allclose(abs(mine.numpy()).max(), abs(theirs.numpy()).max(), rtol=0.2)


def test_lazy_layers_become_what_the_first_input_asks_for(draw_floats):
    def made(nn):
        return nn.Sequential(
            nn.LazyConv2d(4, 3, stride=2, bias=False),
            nn.LazyBatchNorm2d(momentum=0.3),
            nn.LazyConvTranspose2d(2, kernel_size=2),
            nn.LazyInstanceNorm2d(affine=True),
            nn.Flatten(),
            nn.LazyLinear(5),
        )

    ours, theirs = made(nn), made(peer)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert ours[5].has_uninitialized_params()
    assert isinstance(ours[5].weight, nn.UninitializedParameter)
    with pytest.raises(ht.TensorError, match="neither shape nor values before the first forward"):
        ht.optim.SGD(ours.parameters())
    (x,) = draw_floats((2, 3, 7, 6))
    ours.double().eval()(ht.tensor(x).double()), theirs(torch.tensor(x))
    assert ours[0].weight.dtype is ht.float64
    assert not ours[1].training
    ours.float().train()
    assert [type(m).__name__ for m in ours] == [type(m).__name__ for m in theirs]
    theirs[1].reset_running_stats(), theirs[3].reset_running_stats()
    same(ours, theirs, x, rtol=1e-4, atol=1e-4)
