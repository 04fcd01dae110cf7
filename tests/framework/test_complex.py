"""Complex numbers and transforms are PyTorch's, with gradients; `python -m tests.ops.opinfo` asks
more."""

import numpy as np
import pytest
import torch

import stack.framework as ht
from tests.draw import stream

LENGTHS = {1: "one", 60: "one product", 67: "a prime", 257: "a great prime", 192: "two factors"}
"""One for each way in which a length is taken apart."""


def drawn(*shape):
    rng = np.random.default_rng(4)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)


def close(mine, theirs, atol=2e-5):
    a, b = mine.detach().numpy(), theirs.detach().resolve_conj().numpy()
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("n", LENGTHS, ids=str)
def test_transforms_and_their_gradients(n):
    x = drawn(2, n)
    a, b = ht.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    for t, leaf in ((ht, a), (torch, b)):
        y = t.fft.fft(leaf, norm="ortho")
        (y * y).abs().sum().backward()
    close(ht.fft.fft(a, norm="ortho"), torch.fft.fft(b, norm="ortho"))
    close(a.grad, b.grad, 5e-4)
    real = x.real.copy()
    row = torch.fft.rfft(torch.tensor(real))
    close(ht.fft.rfft(ht.tensor(real)), row, 2e-4)
    close(ht.fft.irfft(ht.fft.rfft(ht.tensor(real)), n), torch.fft.irfft(row, n))


PROGRAMS = {
    "arithmetic": lambda t, z: (2 - z) / (z + 1j * 0.5) * z - 1 / z,
    "powers": lambda t, z: z**3 + (z + 3) ** 0.5 + (z * 0.3) ** (z * 0.2),
    "functions": lambda t, z: t.exp(z) + t.log(z) * t.sqrt(z) + t.sin(z) * t.tanh(z) - t.cosh(z),
    "parts": lambda t, z: t.complex(z.abs(), z.angle()) + t.polar(z.real, z.imag),
    "matrices": lambda t, z: z @ z.mH + z.T.conj().mT @ z.mT,
    "moved": lambda t, z: t.cat([z.reshape(-1), z[0], z.flip(0).sum(1)]),
    "rotated": lambda t, z: t.view_as_real(t.view_as_complex(t.view_as_real(z) + 1) * z).flatten(1),
    "shifted": lambda t, z: t.fft.fftshift(t.fft.fft2(z)) + t.fft.fftfreq(4, 0.5),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_pytorchs_gives(name):
    x = drawn(3, 4)
    close(PROGRAMS[name](ht, ht.tensor(x)), PROGRAMS[name](torch, torch.tensor(x)), 1e-4)


def test_short_transforms_come_back():
    x = np.random.default_rng(0).normal(size=(2, 300)).astype(np.float32)
    window = np.hanning(64).astype(np.float32) + 0.1
    mine = ht.stft(ht.tensor(x), 64, 16, window=ht.tensor(window), return_complex=True)
    theirs = torch.stft(torch.tensor(x), 64, 16, window=torch.tensor(window), return_complex=True)
    close(mine, theirs, 1e-4)
    back = ht.istft(mine, 64, 16, window=ht.tensor(window), length=300)
    np.testing.assert_allclose(back.numpy()[:, :280], x[:, :280], atol=1e-5)


DEVICE = stream("transforms").choice(["cpu:0", "opencl:0", "sunway:0"])


@pytest.mark.parametrize("device", [pytest.param(DEVICE, marks=pytest.mark.device(DEVICE))])
@pytest.mark.slow
def test_transforms_on_a_device(device):
    x = drawn(2, 40)
    found = ht.fft.fft(ht.tensor(x, device=device)).numpy()
    np.testing.assert_allclose(found, np.fft.fft(x), rtol=1e-4, atol=1e-4)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ht.TensorError, match="parts of complex numbers are of one shape"):
        ht.ComplexTensor(ht.ones(2), ht.ones(3))
    with pytest.raises(AttributeError, match=r"ComplexTensor\.sortt is not here"):
        _ = ht.tensor([1j]).sortt
