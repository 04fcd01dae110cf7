"""Packed sequences and parametrized weights against PyTorch's."""

import numpy as np
import pytest
import torch
from torch.nn.utils import rnn as peer_rnn

import stack.framework as ht
from stack.framework import nn
from stack.framework.nn.utils import rnn
from tests.framework.conftest import close


def shared(ours, theirs):
    """Both with the state of theirs."""
    ours.load_state_dict({k: ht.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    return ours, theirs


def same_gradients(ours, theirs):
    found = dict(ours.named_parameters())
    for name, p in theirs.named_parameters():
        close(found[name].grad.numpy(), p.grad.numpy(), 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_take_packed_sequences(kind, draw_floats):
    """Of lengths in any order, in both directions, from given states."""
    torch.manual_seed(1)
    ours, theirs = shared(
        getattr(nn, kind)(3, 4, 2, bidirectional=True),
        getattr(torch.nn, kind)(3, 4, 2, bidirectional=True),
    )
    x, h, c = draw_floats((5, 3, 3), (4, 3, 4), (4, 3, 4))
    lengths = [2, 5, 3]
    results = []
    for space, module, packing in ((torch, theirs, peer_rnn), (ht, ours, rnn)):
        given = space.tensor(x, requires_grad=True)
        packed = packing.pack_padded_sequence(given, space.tensor(lengths), enforce_sorted=False)
        states = tuple(space.tensor(s) for s in ((h, c) if kind == "LSTM" else (h,)))
        y, end = module(packed, states if kind == "LSTM" else states[0])
        padded, sizes = packing.pad_packed_sequence(y, True, -1.0, total_length=6)
        ends = end if kind == "LSTM" else (end,)
        ((padded * padded).sum() + sum((s * s).sum() for s in ends)).backward()
        assert sizes.tolist() == lengths
        found = [padded, y.data, y.batch_sizes, y.sorted_indices, y.unsorted_indices, *ends]
        results.append([t.detach().numpy() for t in (*found, given.grad)])
    for expected, mine in zip(*results, strict=True):
        close(mine, expected, 1e-4, 1e-5)
    same_gradients(ours, theirs)


def test_sequences_are_padded_and_packed_and_come_back(draw_floats):
    arrays = draw_floats((2, 3), (4, 3), (1, 3))
    mine, peers = [ht.tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]
    for side in ("left", "right"):
        how = {"batch_first": True, "padding_value": 7.0, "padding_side": side}
        found, expected = rnn.pad_sequence(mine, **how), peer_rnn.pad_sequence(peers, **how)
        close(found.numpy(), expected.numpy(), 0, 0)
    packed = rnn.pack_sequence(mine, enforce_sorted=False)
    for back, a in zip(rnn.unpack_sequence(packed), arrays, strict=True):
        close(back.numpy(), a, 0, 0)
    close(rnn.unpad_sequence(rnn.pad_sequence(mine), [2, 4, 1])[1].numpy(), arrays[1], 0, 0)
    with pytest.raises(ht.TensorError, match="enforce_sorted=False"):
        rnn.pack_sequence(mine)
    with pytest.raises(ht.TensorError, match="are not 1 to 4"):
        rnn.pack_padded_sequence(rnn.pad_sequence(mine), [4, 5, 0])


@pytest.mark.filterwarnings("ignore:.*deprecated in favor of:FutureWarning")
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_normed_weights_learn_as_pytorchs_do(norm, before, draw_floats):
    torch.manual_seed(2)
    x, w = draw_floats((4, 3), (5, 3))
    modules = []
    for module, space, utils in (
        (nn.Linear(3, 5), ht, nn.utils),
        (torch.nn.Linear(3, 5), torch, torch.nn.utils),
    ):
        with space.no_grad():
            module.weight.copy_(space.tensor(w))
        modules.append(getattr(utils if before else utils.parametrizations, norm)(module, "weight"))
    ours, theirs = shared(*modules)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    for _ in range(3):
        for module, space in ((ours, ht), (theirs, torch)):
            module.zero_grad()
            (module(space.tensor(x)) ** 2).sum().backward()
            with space.no_grad():
                for p in module.parameters():
                    p.sub_(p.grad * 0.01)
        same_gradients(ours, theirs)
    for module in (ours, theirs):
        module.eval()
    expected = theirs(torch.tensor(x)).detach().numpy()
    close(ours(ht.tensor(x)).numpy(), expected, 1e-4, 1e-5)
    if before:
        ours = getattr(nn.utils, f"remove_{norm}")(ours)
    else:
        nn.utils.parametrize.remove_parametrizations(ours, "weight")
    assert {n for n, _ in ours.named_parameters()} == {"weight", "bias"}
    close(ours(ht.tensor(x)).numpy(), expected, 1e-4, 1e-5)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()

    def right_inverse(self, x):
        return x.triu()


class Doubled(nn.Module):
    calls = 0

    def forward(self, x):
        Doubled.calls += 1
        return x * 2

    def right_inverse(self, x):
        return x / 2


class Longer(nn.Module):
    def forward(self, x):
        return x[:, :1]


def test_parametrizations_are_chained_set_cached_and_removed(draw_floats):
    parametrize, layer = nn.utils.parametrize, nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", Doubled())
    (w,) = draw_floats((3, 3))
    layer.weight = ht.tensor(w + w.T)
    close(layer.weight.numpy(), w + w.T, 1e-6, 1e-6)
    assert parametrize.is_parametrized(layer, "weight")
    assert not parametrize.is_parametrized(layer, "bias")
    assert {n for n, _ in layer.named_parameters()} == {"bias", "parametrizations.weight.original"}
    before = Doubled.calls
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert Doubled.calls == before + 1
    with pytest.raises(ValueError, match="unsafe=True"):
        parametrize.register_parametrization(nn.Linear(3, 3), "weight", Longer())
    with pytest.raises(ValueError, match="no parameter or buffer 'wait'"):
        parametrize.register_parametrization(layer, "wait", Longer())
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert type(layer) is nn.Linear
    np.testing.assert_allclose(layer.weight.numpy(), np.triu(w + w.T) / 2, rtol=1e-6)


@pytest.mark.parametrize("trivial", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 4)])
@pytest.mark.parametrize("kind", [None, "matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_learn_as_pytorchs_do(kind, shape, trivial, draw_floats):
    # In float64: a product of many, and its gradient, lose more than a tolerance of float32 allows
    x, w = (values.astype(np.float64) for values in draw_floats((3, shape[1]), shape))
    modules = []
    for space in (ht, torch):
        module = space.nn.Linear(shape[1], shape[0], bias=False, dtype=space.float64)
        with space.no_grad():
            module.weight.copy_(space.tensor(w))
        make = space.nn.utils.parametrizations.orthogonal
        modules.append(make(module, orthogonal_map=kind, use_trivialization=trivial))
    ours, theirs = modules
    if kind not in ("matrix_exp", "cayley") and shape[0] == shape[1]:  # others draw or cannot
        close(ours.weight.detach().numpy(), theirs.weight.detach().numpy(), 1e-4, 1e-5)
    ours, theirs = shared(ours, theirs)
    for _ in range(2):
        for module, space in ((ours, ht), (theirs, torch)):
            module.zero_grad()
            ((module(space.tensor(x)) - 1) ** 2).sum().backward()
            with space.no_grad():
                for p in module.parameters():
                    p.sub_(p.grad * 0.05)
        same_gradients(ours, theirs)
    found = ours.weight.detach().numpy()
    close(found, theirs.weight.detach().numpy(), 1e-4, 1e-5)
    small = found.T @ found if shape[0] >= shape[1] else found @ found.T
    close(small, np.eye(min(shape)), 1e-5, 1e-5)
    if not trivial and kind in ("matrix_exp", "cayley"):
        with pytest.raises(NotImplementedError, match="cannot be given a value"):
            ours.weight = ht.tensor(w)
