"""CUDA C text without a GPU: what it computes where warps are fibers of the host, and that NVRTC
takes it for every chip. Fibers take shuffles and fragments of matrix units as PTX defines them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import hal_plugin_cuda
import numpy as np
import pytest
from hal_plugin_cuda.cubin import parameters
from hal_plugin_cuda.nvrtc import compiler
from hal_plugin_cuda.programs import _ptx, chip, sizes

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.errors import CompileError, InvalidCall
from hal.core.values import PTX, KernelSource, Param, ParamKind
from hal.tile.build import Builder, binary, broadcast, const, reduce, transpose
from hal.tile.interpret import interpret
from hal.tile.node import Type
from hal.tile.numeric import NUMPY
from stack import ops as g
from stack.compiler.lower.simt import render_cuda
from stack.compiler.program import GraphRequest
from stack.compiler.templates.emit import TileCall
from tests.compiler.c.host import Kernels, compiled
from tests.compiler.lowered import lowered
from tests.compiler.mesh.attention import attention, attention_of
from tests.compiler.simt.machine import groups_of
from tests.cuda.chips import ARCHS, CHIP, WIDE
from tests.cuda.kernels import TEMPLATES, Text, of_operators, of_template
from tests.cuda.usage import Usage, usage
from tests.draw import sample
from tests.ops.cases import EVERY
from tests.ops.test_c_text import case_of

LANES = (64, 256)
KINDS = ("sum", "prod", "min", "max")
SHAPE = (13, 70)
needs_nvrtc = pytest.mark.skipif(
    find_spec("nvidia") is None or find_spec("nvidia.cuda_nvrtc") is None,
    reason="NVRTC is not installed; `make cuda-text` installs it",
)


def reductions(dtype: DType) -> Builder:
    b = Builder("along")
    x = b.load(b.buffer("x", dtype), 0, SHAPE, (SHAPE[1], 1))
    out = b.buffer("out", dtype, writes=True)
    for i, (kind, axis) in enumerate((k, a) for k in KINDS for a in (0, 1)):
        b.store(out, 128 * i, reduce(kind, x, axis), (1,))
    return b


def moved(dtype: DType) -> Builder:
    """Blocks of rows and of columns that begin and end anywhere."""
    b = Builder("moved")
    x, out = b.buffer("x", dtype), b.buffer("out", dtype, writes=True)
    for i, (rows, columns) in enumerate(((24, 40), (40, 32), (13, 64))):
        tile = b.load(x, 3 * i, (rows, columns), (73, 1), (rows - i, columns - 3), const(1, dtype))
        line = b.load(x, i, (1, columns), (73, 1))
        b.store(out, 4096 * i + i, tile, (65, 1), (rows, columns - i))
        b.store(out, 4096 * i + 3000, transpose(tile, (1, 0)), (41, 1), (30, rows - 1))
        turned = b.load(x, 5 * i, (rows, columns), (1, 67), (rows - 1, columns - i))
        b.store(out, 4096 * (3 + i), turned, (1, 44 + i), (rows - 3, columns))
        both = binary("max", tile, broadcast(line, tile.shape))
        b.store(out, 4096 * (6 + i) + i, binary("max", both, turned), (64, 1))
    return b


def product(m: int, k: int, n: int, dtype: DType, turned: bool) -> TileCall:
    """`turned`: both operands are read by columns."""
    shapes = ((k, m), (n, k)) if turned else ((m, k), (k, n))
    inputs = a, b = [g.input(i, Type(shape, dtype)) for i, shape in enumerate(shapes)]
    if turned:
        a, b = (g.permute(x, (1, 0)) for x in inputs)
    (call,) = lowered(GraphRequest((g.matmul(a, b),), tuple(inputs)), CHIP).calls
    assert isinstance(call, TileCall)
    return call


REDUCED = (DType.F32, DType.U16, DType.BF16)
MOVED = (DType.I8, DType.BF16, DType.F32, DType.F64, DType.U32)
PRODUCTS = ((64, 64, 64), (130, 50, 70), (17, 33, 200), (16, 16, 8), (40, 300, 72))
UNITS = (DType.BF16, DType.F16)
KINDS_OF_PRODUCTS = [(s, d, t) for s in PRODUCTS for d in UNITS for t in (False, True)]


@pytest.fixture(scope="module")
def on_fibers(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """All kernels of this module: first the reductions, then the products."""
    sources = [
        render_cuda(reductions(d).kernel(), groups_of(lanes)) for d in REDUCED for lanes in LANES
    ]
    sources += [render_cuda(product(*s, d, t).kernel, CHIP) for s, d, t in KINDS_OF_PRODUCTS]
    sources += [render_cuda(moved(d).kernel(), groups_of(lanes)) for d in MOVED for lanes in LANES]
    return compiled(sources, tmp_path_factory.mktemp("cuda"))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("lanes", LANES)
def test_reductions_by_shuffles_are_exact(on_fibers: Kernels, dtype: DType, lanes: int) -> None:
    """Small whole numbers, of which every sum is exact, and zeros of both signs, whose order shows
    in the least and the largest."""
    number = REDUCED.index(dtype) * len(LANES) + LANES.index(lanes)
    kernel = reductions(dtype).kernel()
    assert "__shfl_xor_sync" in on_fibers.sources[number].text
    given = np.random.default_rng(lanes).integers(0, 3, SHAPE).astype(NUMPY[dtype])
    if dtype.is_float:
        given *= np.where(np.arange(70) % 2, 1, -1).astype(NUMPY[dtype])
    wanted = {"x": given.ravel(), "out": np.zeros(1024, NUMPY[dtype])}
    found = {name: a.copy() for name, a in wanted.items()}
    interpret(kernel, (1,), wanted, {})
    for backward in (False, True):
        found["out"][:] = 0
        on_fibers.run(number, (1, 1, 1), list(found.values()), backward)
        np.testing.assert_array_equal(found["out"].astype("f8"), wanted["out"].astype("f8"))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("kind", KINDS_OF_PRODUCTS, ids=str)
def test_products_on_matrix_units_are_exact(
    on_fibers: Kernels, kind: tuple[tuple[int, int, int], DType, bool]
) -> None:
    (m, k, n), dtype, turned = kind
    number = len(REDUCED) * len(LANES) + KINDS_OF_PRODUCTS.index(kind)
    assert "mma.sync" in on_fibers.sources[number].text
    assert "cp.async" in on_fibers.sources[number].text or k < 32
    assert "ldmatrix" in on_fibers.sources[number].text
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-3, 4, shape).astype(NUMPY[dtype]) for shape in ((m, k), (k, n)))
    truth = (a.astype("f4") @ b.astype("f4")).astype(NUMPY[dtype])
    if turned:
        a, b = (np.ascontiguousarray(x.T) for x in (a, b))
    call = product(m, k, n, dtype, turned)
    for backward in (False, True):
        memory = {("input", 0): a, ("input", 1): b, ("output", 0): np.zeros_like(truth)}
        parts = [memory[p.kind, p.index].reshape(-1) for p in call.buffers]
        on_fibers.run(number, call.grid, parts, backward)
        np.testing.assert_array_equal(memory["output", 0].astype("f4"), truth.astype("f4"))


WITHOUT = {"a wait": r"hal_async_wait\d\(\);", "nothing": "$"}


@pytest.mark.slow
@pytest.mark.turns
def test_products_wait_for_their_operands(tmp_path: Path) -> None:
    """In the fibers' model, as in PTX, a copy is there when its lane has waited: a text that leaves
    the wait out gives another product."""
    m, k, n = 40, 300, 72
    call = product(m, k, n, DType.BF16, False)
    source = render_cuda(call.kernel, CHIP)
    start = source.text.index("hal_async_wait", source.text.index("__global__"))
    head, body = source.text[:start], source.text[start:]
    texts = [head + re.sub(line, "", body, count=1) for line in WITHOUT.values()]
    kernels = compiled([replace(source, text=text) for text in texts], tmp_path)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(1, 4, shape).astype(NUMPY[DType.BF16]) for shape in ((m, k), (k, n)))
    truth = (a.astype("f4") @ b.astype("f4")).astype(NUMPY[DType.BF16])
    same = []
    for number in range(len(WITHOUT)):
        memory = {("input", 0): a, ("input", 1): b, ("output", 0): np.zeros_like(truth)}
        parts = [memory[p.kind, p.index].reshape(-1) for p in call.buffers]
        kernels.run(number, call.grid, parts, False)
        same.append(bool((memory["output", 0] == truth).all()))
    assert dict(zip(WITHOUT, same, strict=True)) == {x: x == "nothing" for x in WITHOUT}


BIG: DeviceInfo = replace(WIDE, limits=replace(WIDE.limits, instances=1))
"""One on which small products have large blocks."""


@pytest.mark.slow
@pytest.mark.turns
def test_products_by_units_of_four_warps_are_exact(tmp_path: Path) -> None:
    """Which read their operands themselves, in blocks: whichever way these lie, and beyond ends."""
    kinds = [(70, 200, dtype, a, b) for dtype, a, b in (
        (DType.BF16, False, False), (DType.F16, True, False), (DType.BF16, False, True),
        (DType.BF16, True, True),
    )]  # fmt: skip
    calls = []
    for k, n, dtype, left, right in kinds:
        shapes = ((k, 130) if left else (130, k)), ((n, k) if right else (k, n))
        inputs = [g.input(i, Type(shape, dtype)) for i, shape in enumerate(shapes)]
        a, b = (
            g.permute(x, (1, 0)) if turned else x
            for x, turned in zip(inputs, (left, right), strict=True)
        )
        calls += lowered(GraphRequest((g.matmul(a, b),), tuple(inputs)), BIG).calls
    kernels = compiled([render_cuda(call.kernel, BIG) for call in calls], tmp_path)
    for number, (k, n, dtype, left, right) in enumerate(kinds):
        text = kernels.sources[number].text
        assert "wgmma.mma_async.sync.aligned.m64n128k16" in text
        staged, barrier = (text.rindex(x) for x in ("hal_wide_staged();", "__syncthreads();"))
        assert staged < barrier
        rng = np.random.default_rng(number)
        a, b = (rng.integers(-3, 4, s).astype(NUMPY[dtype]) for s in ((130, k), (k, n)))
        truth = (a.astype("f4") @ b.astype("f4")).astype(NUMPY[dtype])
        given = [np.ascontiguousarray(x.T) if t else x for x, t in ((a, left), (b, right))]
        for backward in (False, True):
            memory = {("output", 0): np.zeros_like(truth)}
            memory |= {("input", i): x for i, x in enumerate(given)}
            parts = [memory[p.kind, p.index].reshape(-1) for p in calls[number].buffers]
            kernels.run(number, calls[number].grid, parts, backward)
            np.testing.assert_array_equal(memory["output", 0].astype("f4"), truth.astype("f4"))


ATTENTIONS = (((70, 64), 100, True), ((2, 17, 24), 33, False))


@pytest.mark.slow
@pytest.mark.turns
def test_attention_keeps_scores_in_registers(tmp_path: Path) -> None:
    """In one kernel, whose keys and values are copied into stages, with one barrier in a step."""
    calls = []
    for shape, keys, causal in ATTENTIONS:
        out, inputs = attention(shape, keys, causal, DType.BF16)
        calls += lowered(GraphRequest((out,), tuple(inputs)), CHIP).calls
    assert [isinstance(call, TileCall) for call in calls] == [True] * len(ATTENTIONS)
    kernels = compiled([render_cuda(call.kernel, CHIP) for call in calls], tmp_path)
    assert [s.text.count("__syncthreads") for s in kernels.sources] == [1] * len(ATTENTIONS)
    assert all(re.search(r"hal_async_ushort\d\(&", s.text) for s in kernels.sources)
    assert int(dict(kernels.sources[0].options)["scratch"]) > 48 << 10
    for number, (shape, keys, causal) in enumerate(ATTENTIONS):
        rng = np.random.default_rng(number)
        sizes = (shape, *[(*shape[:-2], keys, shape[-1])] * 2)
        arrays = [rng.standard_normal(size).astype(NUMPY[DType.BF16]) for size in sizes]
        truth = attention_of(*(x.astype("f4") for x in arrays), causal)
        for backward in (False, True):
            found = np.zeros(shape, NUMPY[DType.BF16])
            memory = {("output", 0): found} | {("input", i): x for i, x in enumerate(arrays)}
            parts = [memory[p.kind, p.index].reshape(-1) for p in calls[number].buffers]
            kernels.run(number, calls[number].grid, parts, backward)
            # Weights and results are rounded to 8 bits each.
            largest = np.abs(arrays[2].astype("f4")).max()
            np.testing.assert_allclose(found.astype("f4"), truth, atol=2 * 2**-9 * largest)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize("lanes", LANES)
def test_vectors_are_moved_up_to_limits_and_from_any_address(
    on_fibers: Kernels, dtype: DType, lanes: int
) -> None:
    number = len(on_fibers.sources) - len(MOVED) * len(LANES)
    number += MOVED.index(dtype) * len(LANES) + LANES.index(lanes)
    assert {"load", "store"} <= set(re.findall(r"hal_(\w+)_\w+\(&", on_fibers.sources[number].text))
    rng = np.random.default_rng(lanes)
    wanted = {
        "x": rng.integers(0, 100, 6000).astype(NUMPY[dtype]),
        "out": np.full(10 * 4096, 101, NUMPY[dtype]),
    }
    given = {name: a.copy() for name, a in wanted.items()}
    interpret(moved(dtype).kernel(), (1,), wanted, {})
    for backward in (False, True):
        found = {name: a.copy() for name, a in given.items()}
        on_fibers.run(number, (1, 1, 1), list(found.values()), backward)
        np.testing.assert_array_equal(found["out"].astype("f8"), wanted["out"].astype("f8"))


def test_nothing_is_read_behind_a_staged_tile() -> None:
    """Lanes hold positions behind a tile's end: to read these from shared memory is a fault."""
    text = render_cuda(moved(DType.U32).kernel(), groups_of(256)).text
    reads = re.findall(r"= (.*\bs\d+\[i85 \* 32 \+ i83\].*);", text)
    assert reads == [re.sub("X", "i85 * 32 + i83", "(X < 1280 ? s86[X] : 0)")]


# by the compiler itself


def built(texts: Iterator[Text]) -> Iterator[tuple[KernelSource, int]]:
    """Compile texts for every chip; assert that none spills."""
    for text in texts:
        for arch, source in zip(ARCHS, text.sources, strict=True):
            found = usage(compiler().build(source.text, source.entry, arch).log)
            assert 0 < found.registers <= 255
            assert not found.spill_store_nbytes + found.spill_load_nbytes, (text.of, arch, found)
            yield source, arch


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("name", "dtype"), sample("templates", TEMPLATES, 6), ids=lambda x: str(x).replace(" ", "")
)
def test_templates_compile_and_do_not_spill(name: str, dtype: DType) -> None:
    assert list(built(of_template(name, dtype)))


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(("dtype", "spills"), [(DType.F32, False), (DType.BF16, True)])
def test_a_kernel_has_room_for_two_groups_unless_it_spills_so(dtype: DType, spills: bool) -> None:
    (text,) = of_template("product 8192 x 8192 x 8192", dtype)
    source, arch = text.sources[0], ARCHS[0]
    assert "#define GROUPS 2" in source.text
    tight = source.text.replace("256, GROUPS", "256, 2")  # whoever compiles it
    assert "GROUPS" in tight
    found = {t: usage(compiler().build(t, source.entry, arch).log) for t in (source.text, tight)}
    assert bool(found[tight].spill_store_nbytes) is spills
    assert not found[source.text].spill_store_nbytes
    assert (found[source.text].registers > 128) is spills


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.turns
def test_operators_compile() -> None:
    for text in of_operators(sample("CUDA texts", EVERY, 12), case_of):
        for arch, source in zip(ARCHS, text.sources, strict=True):
            assert compiler().build(source.text, source.entry, arch).cubin


@needs_nvrtc
def test_arguments_are_checked_in_the_machine_code() -> None:
    source = render_cuda(reductions(DType.I8).kernel(), CHIP)
    for arch in ARCHS:
        cubin = compiler().build(source.text, source.entry, arch).cubin
        assert parameters(cubin, source.entry) == sizes(source.params) == (8, 8, 8, 8)
        assert parameters(cubin, "another") is None
    text = 'extern "C" __global__ void f(char *x, short y, unsigned char z, double w) {}'
    assert parameters(compiler().build(text, "f", ARCHS[0]).cubin, "f") == (8, 2, 1, 8)


@needs_nvrtc
def test_what_does_not_compile_names_its_line() -> None:

    with pytest.raises(CompileError, match="f does not build") as error:
        compiler().build('extern "C" __global__ void f() {\n  int x = y;\n}', "f", ARCHS[0])
    assert error.value.line == 2
    with pytest.raises(CompileError, match=r"compiles for .*, and not for 20"):
        compiler().build("", "f", 20)


def test_reports_of_the_compiler_are_read() -> None:
    log = (
        "ptxas info    : Function properties for f\n"
        "ptxas         .     16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, "
        "256 bytes smem\n"
    )
    assert usage(log) == Usage(40, 16, 12, 8, 256)


def test_parameters_of_ptx_are_read() -> None:
    """As compilers write them: pointers with and without their alignment, arrays for structures."""
    text = """.visible .entry f(
        .param .u64 .ptr .global .align 1 f_param_0, .param .u64 f_param_1, .param .f32 f_param_2,
        .param .align 8 .b8 f_param_3[16], .param .u64 .ptr .align 1 f_param_4
    ) { ret; }"""
    params = (Param("x", ParamKind.BUFFER, DType.F32), Param("y", ParamKind.SCALAR, DType.F32))
    with pytest.raises(InvalidCall, match=r"have \(8, 8, 4, 16, 8\) bytes.* \(8, 8, 4\)"):
        _ptx(KernelSource(PTX, text, "f", params))
    right = text.replace(", .param .f32 f_param_2,", ", .param .f32 f_param_2").partition(
        "\n        .param .align"
    )
    assert _ptx(KernelSource(PTX, f"{right[0]}) {{ ret; }}", "f", params))


def test_a_chip_takes_code_of_its_own_generation() -> None:

    assert [chip(cc, (80, 86, 90)) for cc in (80, 86, 89, 90)] == [80, 86, 86, 90]
    with pytest.raises(CompileError, match="this chip is 100; install a newer one"):
        chip(100, (80, 86, 90))


def test_the_plugin_imports_the_contract_alone() -> None:
    """It is not installed where the linters run: a plugin that finds no driver is shown as broken
    in every list of devices."""
    allowed = ("hal.core", "hal.cache", "hal.hosted", "hal.tile", "hal_plugin_cuda")
    for path in Path(str(hal_plugin_cuda.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("hal", "stack", "tests")
            ):
                assert str(node.module).startswith(allowed), (path.name, node.module)
