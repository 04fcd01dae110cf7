"""Convolutions are windows and products: their meaning, and one kernel for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.tile.kernel import Alloc
from hal.tile.node import Node, toposort
from hal.tile.verify import verify
from stack.compiler.graph import contract
from stack.compiler.kernels import TileProgram
from stack.compiler.program import GraphRequest
from stack.ir.interpret import interpret
from tests.compiler.lowered import SIMD, lowered, run_lowered
from tests.compiler.mesh.machine import meshed
from tests.compiler.test_random_graphs import shared
from tests.draw import sample, stream
from tests.ops.convolutions import (
    Convolution,
    arrays_of,
    assert_agrees,
    on_device,
    random_convolution,
    with_gradients,
)

TARGETS = {"simd": SIMD, "simt": shared(64), "mesh": meshed(2, 2), "scratchpad": meshed(1, 1)}
COUNTS = {"cpu:0": 4, "opencl:0": 1, "sunway:0": 1}
"""How many convolutions each device is given, drawn in each run."""
PLAIN = Convolution(2, 1, 3, 5, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1), last=True)
FIRST = Convolution(2, 1, 3, 5, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1), last=False)

ONE_KERNEL = {
    "channels last": PLAIN,
    "channels first": FIRST,
    "strided": replace(PLAIN, strides=(2, 3), sizes=(8, 8)),
    "strided, channels first": replace(FIRST, strides=(2, 2), sizes=(7, 8)),
    "dilated": replace(FIRST, dilations=(2, 1), sizes=(7, 5)),
    "in groups": replace(PLAIN, groups=3),
    "transposed": replace(PLAIN, strides=(2, 1), edges=(0, 0), transposed=True),
    "of f16": replace(PLAIN, strides=(2, 1), dtype=DType.F16),
}
MANY = list(product(("strided", "strided, channels first", "transposed"), TARGETS))


def torch_convolution(c: Convolution, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """By torch, whose channels come first and whose weights are (outer, inner, taps)."""
    d, groups = len(c.sizes), c.groups
    images = torch.from_numpy(x).double()
    if c.last:
        images = images.movedim(-1, 1)
    weights = torch.from_numpy(w).double()
    named = {"stride": c.strides, "dilation": c.dilations, "groups": groups}
    if c.transposed:
        weights = weights.reshape(groups, c.inner, *c.taps, c.outer).movedim(-1, 2)
        weights = weights.reshape(groups * c.inner, c.outer, *c.taps)
        spread = getattr(torch.nn.functional, f"conv_transpose{d}d")
        return spread(images, weights, **named).movedim(1, -1).numpy()
    if c.last:
        weights = weights.reshape(groups, *c.taps, c.inner, c.outer).movedim((-1, -2), (1, 2))
    weights = weights.reshape(groups * c.outer, c.inner, *c.taps)
    result = getattr(torch.nn.functional, f"conv{d}d")(images, weights, padding=c.edges, **named)
    return (result.movedim(1, -1) if c.last else result).numpy()


@pytest.mark.parametrize("seed", range(30))
def test_windows_and_products_are_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c = random_convolution(rng)
    (y, *_), inputs = with_gradients(c)
    arrays = arrays_of(inputs[:2], rng)
    (found,) = interpret([y], arrays)
    np.testing.assert_allclose(found, torch_convolution(c, *arrays.values()), 1e-5, 1e-5)


@pytest.mark.parametrize(("target", "seed"), sample("windows", list(product(TARGETS, range(4))), 6))
def test_kernels_agree_with_the_interpreter(target: str, seed: int) -> None:
    rng, info = np.random.default_rng(seed), TARGETS[target]

    def run(outputs: Sequence[Node], arrays: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
        return run_lowered(outputs, list(arrays), list(arrays.values()), (), info)[0]

    assert_agrees(random_convolution(rng, 2), run, rng)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", COUNTS)
def test_devices_agree_with_the_interpreter(name: str) -> None:
    rng = np.random.default_rng(stream(f"convolutions on {name}").randrange(1 << 30))
    for evaluate in on_device(name):
        for _ in range(COUNTS[name]):
            assert_agrees(random_convolution(rng, 5), evaluate, rng)


def lowered_of(c: Convolution, number: int, info: DeviceInfo) -> TileProgram:
    """The kernels of the convolution (0) or of a derivative, each of which is checked."""
    outputs, inputs = with_gradients(c)
    program = lowered(GraphRequest((outputs[number],), tuple(inputs)), info)
    for call in program.calls:
        verify(call.kernel)
    return program


@pytest.mark.parametrize("number", range(3), ids=["forward", "by the images", "by the weights"])
@pytest.mark.parametrize("info", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("c", ONE_KERNEL.values(), ids=ONE_KERNEL)
def test_a_convolution_is_one_kernel(c: Convolution, info: DeviceInfo, number: int) -> None:
    program = lowered_of(c, number, info)
    assert len(program.calls) == 1 + edges_of(program, info)
    assert len(program.temps) == edges_of(program, info)


def edges_of(program: TileProgram, info: DeviceInfo) -> bool:
    """Whether a kernel lays in memory what windows see, so that the last one, which is the product,
    reads it in place."""
    *_, product = program.calls
    rooms = {s.memory.name for s in product.kernel.body if isinstance(s, Alloc)}
    copies = [c for c in program.calls[:-1] if c.kernel.name.startswith("contiguous")]
    return info is TARGETS["simd"] and "packed_a" not in rooms and len(copies) > 0


@pytest.mark.parametrize("info", TARGETS.values(), ids=TARGETS)
def test_strides_with_dilations_store_only_the_spread_weights(info: DeviceInfo) -> None:
    c = replace(PLAIN, strides=(2, 3), dilations=(2, 2))
    program = lowered_of(c, 1, info)
    (nbytes,) = program.temps
    assert len(program.calls) == 2
    assert nbytes <= c.w().type.size * prod(c.dilations) * 4


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("name", "target"), sample("many weights", MANY, 4))
def test_many_weights_are_laid_out_once(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "MANY", 1)
    c, info = ONE_KERNEL[name], TARGETS[target]
    program = lowered_of(c, 0 if c.transposed else 1, info)
    nbytes, *edges = sorted(program.temps)
    assert len(program.calls) == 2 + len(edges)
    assert len(edges) <= edges_of(program, info)
    assert nbytes < c.w().type.size * prod(c.strides) * 4

    def run(outputs: Sequence[Node], arrays: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
        return run_lowered(outputs, list(arrays), list(arrays.values()), (), info)[0]

    assert_agrees(c, run, np.random.default_rng(stream(name).randrange(1 << 30)))


PHASES = {
    "channels last": replace(PLAIN, strides=(2, 2), sizes=(8, 6)),
    "channels first": replace(FIRST, strides=(2, 2), sizes=(8, 6)),
    "along one axis": replace(FIRST, strides=(3, 1), taps=(4, 2), sizes=(9, 5)),
    "in groups": replace(PLAIN, groups=2, strides=(2, 2), edges=(0, 1), sizes=(7, 8)),
    "of odd sizes": replace(FIRST, strides=(2, 3), taps=(5, 4), sizes=(9, 8)),
    "transposed": replace(PLAIN, strides=(2, 2), edges=(0, 0), transposed=True),
}


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("name", "target"), sample("phases", list(product(PHASES, TARGETS)), 6))
def test_phases_of_strides_are_products_of_their_own(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "MANY", 1)
    monkeypatch.setattr(contract, "COPIED", 0)
    c, info = PHASES[name], TARGETS[target]
    program = lowered_of(c, 0 if c.transposed else 1, info)
    # The weights are laid out, each phase is computed, and they are put together; of a result that
    # strides do not divide, a part of that is taken.
    sizes = c.sizes
    if c.transposed:
        sizes = tuple((n - 1) * s + k for n, s, k in zip(sizes, c.strides, c.taps, strict=True))
    odd = any(size % s for size, s in zip(sizes, c.strides, strict=True))
    assert len(program.calls) == 2 + prod(c.strides) + odd

    def run(outputs: Sequence[Node], arrays: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
        return run_lowered(outputs, list(arrays), list(arrays.values()), (), info)[0]

    assert_agrees(c, run, np.random.default_rng(stream(name).randrange(1 << 30)))


@pytest.mark.parametrize("taps", [(3, 3), (2, 5)])
def test_phases_multiply_no_zeros(taps: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of even sizes, each element of the images' gradient is of as many products as windows see
    it; as one product, each phase has as many as the one that most see."""
    c = replace(FIRST, strides=(2, 2), taps=taps, edges=(1, 1), sizes=(8, 8), dtype=DType.F32)
    outputs, _ = with_gradients(c)

    def multiplied() -> int:
        folded = contract.fold_sums((outputs[1],))
        products = [n for n in toposort(folded) if n.op == "matmul"]
        return sum(n.type.size * n.srcs[0].shape[-1] for n in products)

    whole = multiplied()
    monkeypatch.setattr(contract, "MANY", 1)
    monkeypatch.setattr(contract, "COPIED", 0)
    wanted = c.batch * c.inner * c.outer * 8 * 8 * prod(taps) // 4
    assert (multiplied(), whole > wanted) == (wanted, True)


def test_edges_along_all_axes_are_asked_for_once() -> None:
    outputs, _ = with_gradients(FIRST)
    (folded,) = contract.fold_sums((outputs[1],))
    assert [n.op for n in toposort((folded,))].count("pad") == 1


@pytest.mark.parametrize(
    ("c", "kernels"), [(replace(FIRST, sizes=(16, 17)), 2), (PLAIN, 1), (FIRST, 1)]
)
def test_weights_that_lie_apart_are_laid_out_for_many_rows(
    c: Convolution, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where channels are last, they lie next to each other."""
    monkeypatch.setattr(contract, "MANY", 1)
    c = replace(c, inner=8, outer=8)
    program = lowered_of(c, 1, SIMD)
    assert len(program.calls) == kernels

    def run(outputs: Sequence[Node], arrays: Mapping[Node, np.ndarray]) -> list[np.ndarray]:
        return run_lowered(outputs, list(arrays), list(arrays.values()), (), SIMD)[0]

    assert_agrees(c, run, np.random.default_rng(0))


def test_sums_of_narrow_products_are_rounded_once() -> None:
    """Whole numbers, which f16 has: their sums are exact."""
    outputs, inputs = with_gradients(ONE_KERNEL["of f16"])
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(-2, 3, n.shape).astype(np.float16) for n in inputs}
    for expected, found in zip(
        interpret(outputs, arrays),
        run_lowered(outputs, inputs, list(arrays.values()))[0],
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
