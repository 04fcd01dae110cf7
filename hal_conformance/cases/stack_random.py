"""Random numbers: one stream on every device, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import stack.framework as ht
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import engine_on, seat

stack_random = Cases("J", Level.RESILIENT)

U32, U64, I64 = DType.U32, DType.U64, DType.I64
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
KNOWN = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""The published answer of Philox4x32-10 for counter 0 under key 0."""
SEEDS = (0, 1, 2**32 + 5, 2**64 - 1)


def philox(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Words `first` to `first + count - 1` of a seed's stream; `first` is a multiple of 4."""
    blocks = np.arange(first // 4, -(-(first + count) // 4), dtype=np.uint64)
    c = [blocks & LOW, blocks >> HALF, np.zeros_like(blocks), np.zeros_like(blocks)]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        one, two = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(two >> HALF) ^ c[1] ^ key[0], two & LOW, (one >> HALF) ^ c[3] ^ key[1], one & LOW]
        weyl = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
        key = [(k + step) & LOW for k, step in zip(key, weyl, strict=True)]
    return np.stack(c, axis=1).ravel()[:count]


def draws(rig: Rig, seed: int, device: Device | None = None) -> list[NDArray[Any]]:
    """What several calls draw from a seed."""
    need(rig, U32, U64, I64, DType.F32)
    with seat(engine_on(rig, device)):
        ht.default_generator().set_state(seed, 0)
        kinds = [ht.randint(0, 2**32, (11,)), ht.rand(3, 5), ht.randn(4)]
        return [kind.numpy() for kind in kinds]


@stack_random.case("random-known-answer", "launch.exact")
def _(rig: Rig) -> None:
    words = draws(rig, 0)[0][:4]
    expect.equal(tuple(words.tolist()), KNOWN, "the first words of seed 0")


@stack_random.case("random-words", "launch.exact", seed=SEEDS)
def _(rig: Rig, seed: int) -> None:
    """Whole words, and their high 24 bits as fractions; each draw begins a new block."""
    words, fractions, _ = draws(rig, seed)
    expect.same(words, philox(seed, 0, 11).astype(np.int64), f"the words of seed {seed}")
    wanted = (philox(seed, 12, 15) >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    expect.same(fractions.ravel(), wanted, f"the fractions of seed {seed}")


@stack_random.case("random-narrow", "launch.exact", dtype=(DType.F16, DType.BF16, DType.F64))
def _(rig: Rig, dtype: DType) -> None:
    need(rig, dtype, U32, U64)
    with seat(engine_on(rig)):
        ht.default_generator().set_state(5, 0)
        got = ht.rand(6, dtype=dtype).numpy()
    words = philox(5, 0, 12)
    bits = {DType.F16: 11, DType.BF16: 8, DType.F64: 53}[dtype]
    if dtype is DType.F64:
        whole = ((words[0::2] >> np.uint64(5)) << np.uint64(26)) + (words[1::2] >> np.uint64(6))
    else:
        whole = words[:6] >> np.uint64(32 - bits)
    wanted = (whole.astype(np.float64) * 2.0**-bits).astype(NUMPY[dtype])
    expect.same(got, wanted, f"fractions of {dtype.short}")


@stack_random.case("random-on-two-devices", "launch.exact", devices=2)
def _(rig: Rig) -> None:
    """One seed, two devices of the plugin: equal bits, and normal numbers that are near."""
    here, there = draws(rig, 9), draws(rig, 9, rig.devices(2)[1])
    for a, b in zip(here[:2], there[:2], strict=True):
        expect.same_bytes(b.tobytes(), a.tobytes(), "what the second device drew")
    expect.near(there[2], here[2], np.full(4, 1e-5), "normal numbers")
