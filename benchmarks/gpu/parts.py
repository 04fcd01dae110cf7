"""The parts: each yields rows, which go out as lines of JSON.

`python -m benchmarks.gpu.parts PART DEVICE SECONDS [--quick]`. The peer is PyTorch on the same GPU,
or on the processor where the device is another one, which shows no more than that a part runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import hal
import stack.framework as ht
from benchmarks import gpt, peer_gpt
from benchmarks.machine import ROOT
from benchmarks.row import Bar, Row
from benchmarks.timer import interleaved
from hal.core.dtypes import DType
from hal.core.errors import HalError
from hal.core.values import (
    CUDA_C,
    AllocOptions,
    Collective,
    CollectiveKind,
    GroupSpec,
    HealthState,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Program,
    Region,
    Slot,
    Timeline,
)
from hal.tile.node import Node, Type
from hal.tile.numeric import NUMPY
from hal_conformance.collectives import expected, source_count
from stack import ops as build
from stack.compiler.program import GraphRequest
from stack.framework import optim
from stack.runtime import Array, Engine, engine_for
from stack.runtime.opening import engine_of

sys.path.insert(0, str(ROOT / "examples"))

from gpt import GPT, GPTConfig, decay_groups

PART, DEVICE, LIMIT_S = *sys.argv[1:3], float(sys.argv[3])
ENDS_S = time.monotonic() + LIMIT_S - 5
"""When this part is to have said what it knows."""
QUICK = "--quick" in sys.argv
PEER = "cuda" if DEVICE.startswith("cuda") else "cpu"
ROUNDS = 3 if QUICK else 9
_DRAWN = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
Curve = NDArray[np.float64]
TYPES = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}


def synchronised(run: Callable[[], object]) -> Callable[[], None]:
    """A peer's function, to its end."""

    def done() -> None:
        run()
        if PEER == "cuda":
            torch.cuda.synchronize()

    done()
    return done


def planned(
    engine: Engine, outputs: list[Node], inputs: list[Node], arrays: list[Array]
) -> Callable[[], None]:
    """A graph through the contract, to its end; compiled."""
    plan = engine.plan(GraphRequest(tuple(outputs), tuple(inputs)))

    def run() -> None:
        plan.run(arrays)
        engine.sync()

    run()
    return run


def source(slot: int, shape: tuple[int, ...], dtype: DType) -> Node:
    return build.input(slot, Type(shape, dtype))


# launches


def launch() -> Iterator[Row]:
    """The hook against the driver's own call, on the same kernel: host time of either alone."""
    text = 'extern "C" __global__ void nothing(char *x, unsigned long offset) {}'
    param = Param("x", ParamKind.BUFFER, DType.U8)
    with hal.open(DEVICE, wrappers=()) as device:
        program = device.load(KernelSource(CUDA_C, text, "nothing", (param,)))
        bound = device.bind(program, [device.alloc(64, AllocOptions())])
        line = device.create_timeline(False)
        native: Any = bound.native.native
        context, stream = native.loaded.context, line.native.stream
        driver = context.driver
        call, null = driver.library.cuLaunchKernel, driver.ffi.NULL

        def raw() -> None:
            call(native.function, 1, 1, 1, 1, 1, 1, 0, stream.native, native.cells, null)

        def hook() -> None:
            device.launch(bound, (1, 1, 1), line, ())

        def settled(run: Callable[[], None]) -> Callable[[], float]:
            def timed() -> float:
                start = time.perf_counter()
                for _ in range(100):
                    run()
                seconds = (time.perf_counter() - start) / 100
                device.wait([device.fill(region, b"\0", line, ())], 10.0, True)
                return seconds

            return timed

        region = device.alloc(64, AllocOptions()).region()
        times: tuple[list[float], list[float]] = ([], [])
        with context:
            for _ in range(200 if not QUICK else 5):
                for found, run in zip(times, (settled(hook), settled(raw)), strict=True):
                    found.append(run())
        graphs = [settled(replay) for replay in _replays(device, program, line)]
        kept, changed = ([run() for _ in range(5 if QUICK else 50)] for run in graphs)
    ours, peer = (1e6 * median(t) for t in times)
    yield Row("launch through the contract", "us", ours, peer, "cuLaunchKernel")
    yield Row("what the contract adds to a launch", "us", ours - peer, bar=Bar(limit=1.5))
    claim = f"host time of a captured graph of {NODES} launches"
    yield Row(claim, "us", 1e6 * median(kept), bar=Bar(limit=30))
    yield Row(f"{claim}, {SLOTTED} with a changed argument", "us", 1e6 * median(changed))


NODES, SLOTTED = 200, 8
"""Launches of a graph, as many as a training step of a small GPT has, and those with slots."""


def _replays(device: hal.Device, program: Program, line: Timeline) -> list[Callable[[], None]]:
    """Two ways to replay a captured graph: with the arguments that it had, and with others."""
    regions = [device.alloc(64, AllocOptions()).region() for _ in range(2)]
    fixed, slotted = (device.bind(program, [x]) for x in (regions[0], Slot(0)))
    launchables = [slotted] * SLOTTED + [fixed] * (NODES - SLOTTED)
    graph = device.record([LaunchCommand(each, (1, 1, 1)) for each in launchables])
    turns = cycle(regions)

    def same() -> None:
        device.replay(graph, [regions[0]], line, ())

    def other() -> None:
        device.replay(graph, [next(turns)], line, ())

    return [same, other]


# what goes wrong


FAULT = 'extern "C" __global__ void fault(char *x, unsigned long o) { *(volatile int *)8 = 1; }'
HANG = (
    'extern "C" __global__ void hang(char *x, unsigned long o)'
    " { while (((volatile char *)x)[o] == 0) {} }"
)


def failures() -> Iterator[Row]:
    """Memory that is not there, a kernel that hangs, and one that faults, after which the driver
    may work in no context of the process: the contract's failure, the device works after `reset`,
    and another process's work goes on."""
    param = Param("x", ParamKind.BUFFER, DType.U8)
    child = [sys.executable, "-c", _OTHER.format(device=DEVICE)]
    other = subprocess.Popen(child, stdout=subprocess.PIPE, text=True)
    with hal.open(DEVICE, wrappers=()) as device:
        try:
            device.alloc(device.info.limits.alloc_nbytes + 1, AllocOptions())
            good = False
        except MemoryError:
            good = _works(device)
        yield Row(
            "memory that is not there is refused", "yes", float(good), 1.0, "all", Bar(ratio=1.0)
        )
    for name, text in (("hang", HANG), ("fault", FAULT)):
        settings = hal.OpenOptions(settings={"progress_s": "2"})
        device = hal.open(DEVICE, (), settings)
        bound = device.bind(
            device.load(KernelSource(CUDA_C, text, name, (param,))),
            [device.alloc(64, AllocOptions(zero=True))],
        )
        line, start = device.create_timeline(False), time.monotonic()
        point = device.launch(bound, (1, 1, 1), line, ())
        try:
            device.wait([point], 30.0, True)
            said = "nothing"
        except HalError as error:
            said = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        state, works = device.health().state, False
        try:
            device.reset()
            works = _works(device)
        except HalError as error:
            said = f"{said}; then {type(error).__name__}: {error}"
        good = said != "nothing" and state is not HealthState.OK and works
        yield Row(
            f"a kernel that {name}s", "s", seconds, bar=Bar(limit=8.0 if good else -1), note=said
        )
        device.close()
    said, _ = other.communicate(timeout=30)
    unnoticed = float(said.strip() == "good")
    yield Row("another process did not notice", "yes", unnoticed, 1.0, "all", Bar(ratio=1.0))


_OTHER = """
import time
import numpy as np
import stack.framework as ht
ht.set_default_device("{device}")
until = time.monotonic() + 12
x = ht.tensor(np.arange(1000.0, dtype=np.float32))
good = True
while time.monotonic() < until:
    good = good and float((x + 1).sum().item()) == 500500.0
print("good" if good else "wrong")
"""


def _works(device: hal.Device) -> bool:
    """Whether bytes go to the device and back."""
    buffer, line = device.alloc(1 << 20, AllocOptions()), device.create_timeline(False)
    there = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    back = np.zeros_like(there)
    device.copy(buffer.region(), there.data, line, ())
    device.wait([device.copy(back.data, buffer.region(), line, ())], 10.0, True)
    return bool((there == back).all())


# groups


def groups() -> Iterator[Row]:
    """Collectives of the plugin's own groups, of this device alone and, where there are two, of
    both: what they give, and how fast, which through the host would be some times as long."""
    plugin, _, index = DEVICE.partition(":")
    other = f"{plugin}:{0 if int(index) else 1}"
    yield from _group((DEVICE,))
    if other in {row.name for row in hal.devices()}:
        yield from _group((DEVICE, other))


def _group(names: tuple[str, ...]) -> Iterator[Row]:
    """One group of these devices."""
    devices, size = [hal.open(name, wrappers=()) for name in names], len(names)
    lines = [device.create_timeline(False) for device in devices]
    with ThreadPoolExecutor(size) as pool:
        specs = [GroupSpec(f"benchmark {names}", rank, names, 60.0) for rank in range(size)]
        made = list(pool.map(lambda d, s: d.create_group(s), devices, specs))

    def done(call: Collective, dst: list[Region], src: list[Region]) -> None:
        given = zip(devices, made, dst, src, lines, strict=True)
        points = [d.collective(g, call, to, of, line, ()) for d, g, to, of, line in given]
        for device, point in zip(devices, points, strict=True):
            device.wait([point], 60.0, True)

    def put(device: hal.Device, line: Timeline, values: Curve) -> Region:
        region = device.alloc(values.nbytes, AllocOptions()).region()
        device.wait([device.copy(region, values.view(np.uint8).data, line, ())], 60.0, True)
        return region

    wrong = []
    for kind, dtype in product(CollectiveKind, DTYPES_OF_GROUPS):
        if kind is CollectiveKind.ALL_TO_ALL_V:
            rows = tuple(tuple(3 + i + 2 * j for j in range(size)) for i in range(size))
            call = Collective(kind, dtype, 0, counts=rows)
        else:
            call = Collective(kind, dtype, 0 if kind is CollectiveKind.BARRIER else 1001)
        sources = [
            (np.arange(source_count(call, rank, size)) % 100 + rank).astype(NUMPY[dtype])
            for rank in range(size)
        ]
        wanted = expected(call, sources)
        src, dst = (
            [put(d, line, x) for d, line, x in zip(devices, lines, arrays, strict=True)]
            for arrays in (sources, [np.zeros_like(w) for w in wanted])
        )
        done(call, dst, src)
        for device, line, region, want in zip(devices, lines, dst, wanted, strict=True):
            found = np.empty_like(want)
            device.wait([device.copy(found.view(np.uint8).data, region, line, ())], 60.0, True)
            if found.tobytes() != want.tobytes():
                wrong.append(f"{kind.value} of {dtype.short} on {device.name}")
    claim, note = f"collectives of {size} that give what they should", "; ".join(wrong)
    yield Row(claim, "yes", float(not wrong), 1.0, "all", Bar(ratio=1.0), note=note)

    count = 1 << (18 if QUICK else 26)
    call = Collective(CollectiveKind.ALL_REDUCE, DType.F32, count)
    src, dst = (
        [d.alloc(4 * count, AllocOptions(zero=True)).region() for d in devices] for _ in "sd"
    )
    times = []
    for _ in range(2 + ROUNDS):
        start = time.perf_counter()
        done(call, dst, src)
        times.append(time.perf_counter() - start)
    claim = f"all-reduce of {4 * count >> 20} MiB among {size}"
    yield Row(claim, "ms", 1e3 * median(times[2:]), bar=Bar(limit=50.0 * size))
    for device, group in zip(devices, made, strict=True):
        device.free(group)
        device.close()


DTYPES_OF_GROUPS = (DType.F32, DType.I32, DType.I16, DType.BF16)
"""I16 goes through the host, the others by the library."""


# kernels


def products() -> Iterator[Row]:
    n = 256 if QUICK else 8192
    with engine_of(hal.open(DEVICE, wrappers=())) as engine:
        for dtype, kind in TYPES.items():
            inputs = [source(i, (n, n), dtype) for i in range(2)]
            arrays = [engine.put(np.resize(_DRAWN, n.shape), n.dtype) for n in inputs]
            ours = planned(engine, [build.matmul(*inputs)], inputs, arrays)
            a, b = (torch.randn(n, n, device=PEER).to(kind) for _ in range(2))
            times = interleaved([ours, synchronised(lambda a=a, b=b: a @ b)], ROUNDS, 1)
            rates = [2e-12 * n**3 / s for s in times]
            claim = f"product of {n} x {n}, {dtype.short}"
            yield Row(claim, "TFLOP/s", *rates, f"torch on {PEER}", Bar(ratio=0.7), True)


def bandwidth() -> Iterator[Row]:
    """Bytes that must move, against a copy of as many by the peer."""
    columns = 1024 if QUICK else 2048
    with engine_of(hal.open(DEVICE, wrappers=())) as engine:
        for dtype, kind in TYPES.items():
            rows = (1 << (18 if QUICK else 30)) // columns // dtype.nbytes
            x, y = (source(i, (rows, columns), dtype) for i in range(2))
            from_torch = torch.randn(rows, columns, device=PEER).to(kind)
            copied = torch.empty_like(from_torch)
            copy = synchronised(lambda a=copied, b=from_torch: a.copy_(b))
            values = np.resize(_DRAWN.astype(NUMPY[dtype]), (rows, columns))
            arrays = [engine.put(values, dtype) for _ in range(2)]
            for name, outputs, inputs in (
                ("add", [build.add(x, y)], [x, y]),
                ("gelu", [_gelu(x)], [x]),
                ("softmax", [_softmax(x)], [x]),
                ("layer norm", [_layer_norm(x)], [x]),
            ):
                one = rows * columns * dtype.nbytes
                run = planned(engine, outputs, inputs, arrays[: len(inputs)])
                times = interleaved([run, copy], ROUNDS, 1)
                rates = [(len(inputs) + 1) * one / times[0] / 1e9, 2 * one / times[1] / 1e9]
                claim = f"{name} of {one >> 20} MiB, {dtype.short}"
                yield Row(claim, "GB/s", *rates, "torch's copy", Bar(ratio=0.85), True)


def _wide(x: Node) -> Node:
    return build.cast(x, DType.F32)


def _over(x: Node, kind: str) -> Node:
    return build.expand(build.reduce(kind, x, (1,)), x.shape)


def _softmax(x: Node) -> Node:
    e = build.exp(build.sub(_wide(x), _over(_wide(x), "max")))
    return build.cast(build.div(e, _over(e, "sum")), x.dtype)


def _layer_norm(x: Node) -> Node:
    width = 1 / x.shape[1]
    wide = _wide(x)
    centred = build.sub(wide, build.mul(_over(wide, "sum"), build.full_like(wide, width)))
    variance = build.mul(_over(build.mul(centred, centred), "sum"), build.full_like(wide, width))
    inverse = build.rsqrt(build.add(variance, build.full_like(wide, 1e-5)))
    return build.cast(build.mul(centred, inverse), x.dtype)


def _gelu(x: Node) -> Node:
    wide = _wide(x)

    def of(value: float) -> Node:
        return build.full_like(wide, value)

    inner = build.add(wide, build.mul(of(0.044715), build.mul(wide, build.mul(wide, wide))))
    half = build.mul(of(0.5), build.add(of(1), build.tanh(build.mul(of(0.79788456), inner))))
    return build.cast(build.mul(wide, half), x.dtype)


def attention() -> Iterator[Row]:
    """Causal, forward, 4096 positions of 64."""
    heads, length = (2, 128) if QUICK else (16, 4096)
    shape = (1, heads, length, 64)
    ht.set_default_device(DEVICE)
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(shape, np.float32) for _ in range(3)]
    ours = [ht.tensor(p).to(ht.bfloat16) for p in parts]
    theirs = [torch.from_numpy(p).to(PEER, torch.bfloat16) for p in parts]
    attend = ht.jit(lambda *x: ht.nn.functional.scaled_dot_product_attention(*x, is_causal=True))
    engine = engine_for(DEVICE)

    def run() -> Any:
        found = attend(*ours)
        engine.sync()
        return found

    def peer() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True)

    error = float(np.abs(run().float().numpy() - peer().float().cpu().numpy()).max())
    times = interleaved([run, synchronised(peer)], ROUNDS, 1)
    rates = [2 * 2e-12 * heads * length**2 * 64 / 2 / s for s in times]
    note = f"largest difference {error:.3g}"
    yield Row(f"causal attention, {heads} heads of {length} x 64, bf16", "TFLOP/s", *rates,
              "torch", Bar(ratio=0.5), True, note)  # fmt: skip


# training


def losses() -> Iterator[Row]:
    """examples/train_gpt.py on the device, on cpu:0, and on two ranks of which each has one of
    them: the losses."""
    steps, few = (3, 2) if QUICK else (100, 20)
    script = ["examples/train_gpt.py"]
    ours, truth = (_curve([*script, "--device", name], steps) for name in (DEVICE, "cpu:0"))
    yield _differs(f"losses of {DEVICE}", ours, truth)
    both = ["-c", _HAL, "run", "-n", "2", "--devices", f"{DEVICE},cpu:0"]
    yield _differs(f"losses of two ranks, {DEVICE} and cpu:0", _curve([*both, *script], few), truth)


def _curve(command: list[str], steps: int) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        given = ["--steps", str(steps), "--out", folder, "--json", str(log)]
        subprocess.run(
            [sys.executable, *command, *given],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=max(ENDS_S - time.monotonic(), 1),
        )
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return np.array([line["loss"] for line in lines if "loss" in line])


def _differs(of: str, ours: Curve, truth: Curve) -> Row:
    worst = float(np.abs(ours / truth[: len(ours)] - 1).max())
    claim = f"largest relative difference of {len(ours)} {of} from cpu:0's"
    return Row(claim, "", worst, bar=Bar(limit=1e-4))


def gpt2() -> Iterator[Row]:
    """A training step of GPT-2 124M, bf16 by autocast, against torch.compile."""
    sizes = (2, 32, 2, 64, 2, 128) if QUICK else (16, 1024, 12, 768, 12, 50257)
    names = ("BATCH", "CONTEXT", "LAYERS", "WIDTH", "HEADS", "VOCABULARY")
    for name, size in zip(names, sizes, strict=True):
        setattr(gpt, name, size)
    ht.set_default_device(DEVICE)
    ht.manual_seed(0)
    model = GPT(GPTConfig(gpt.LAYERS, gpt.WIDTH, gpt.HEADS, gpt.CONTEXT, gpt.VOCABULARY))
    optimizer = optim.AdamW(decay_groups(model, gpt.WEIGHT_DECAY), lr=gpt.RATE, betas=gpt.BETAS)

    def train(tokens: ht.Tensor, targets: ht.Tensor) -> ht.Tensor:
        optimizer.zero_grad()
        with ht.autocast(ht.bfloat16):
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, batch = ht.jit(train), gpt.batch()
    peer = _peer_step(batch)
    ours_losses, peer_losses, times = [], [], ([], [])
    for _ in range(3 + ROUNDS):
        for run, found, taken in zip(
            (lambda: step(*batch).item(), peer), (ours_losses, peer_losses), times, strict=True
        ):
            start = time.perf_counter()
            found.append(float(run()))
            taken.append(time.perf_counter() - start)
    host: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        loss = step(*batch)
        host.append(time.perf_counter() - start)
        loss.item()
    yield Row("host time of a captured GPT-2 step", "us", 1e6 * median(host))
    tokens = gpt.BATCH * gpt.CONTEXT
    rates = [tokens / median(t[3:]) for t in times]
    note = f"loss after {len(ours_losses)} steps: {ours_losses[-1]:.4f}, peer {peer_losses[-1]:.4f}"
    yield Row(f"GPT-2 step, {gpt.LAYERS} layers of {gpt.WIDTH}", "tokens/s", *rates,
              "torch.compile", Bar(ratio=0.5), True, note)  # fmt: skip


def _peer_step(batch: Any) -> Callable[[], float]:
    torch.manual_seed(0)
    model = peer_gpt.GPT().to(PEER)
    tokens, targets = (torch.from_numpy(part).to(PEER) for part in batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.RATE, fused=True)
    loss_of = model if QUICK else torch.compile(model)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(PEER, torch.bfloat16):
            loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


_HAL = "from hal_tools.cli import main; main()"


def conformance() -> Iterator[Row]:
    """The suite at its highest level, with cpu:0 in its groups, twice: the second time all programs
    are in the cache."""
    level = "L0" if QUICK else "L4"
    given = ["conform", DEVICE, "--level", level, "--with", "cpu:0"]
    for time_of in ("the first time", "the second time"):
        claim, bar = f"conformance at {level}, {time_of}", Bar(limit=0)
        try:
            done = subprocess.run(
                [sys.executable, "-c", _HAL, *given],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=max(ENDS_S - time.monotonic(), 1),
                check=False,
            )
        except subprocess.TimeoutExpired:
            note = f"not over when the time was; alone: hal {' '.join(given)}"
            yield Row(claim, "exit status", None, bar=bar, note=note)
            return
        tail = " ".join(done.stdout.split()[-40:] or done.stderr.split()[-40:])
        yield Row(claim, "exit status", float(done.returncode), bar=bar, note=tail)


RUN = {f.__name__: f for f in (
    launch, failures, groups, losses, products, bandwidth, attention, gpt2, conformance,
)}  # fmt: skip

if __name__ == "__main__":
    for row in RUN[PART]():
        print(json.dumps(row.as_json()), flush=True)
    if PART == "failures":
        os._exit(0)  # the driver need not wait for what hangs
