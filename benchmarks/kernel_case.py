"""Worker: one kernel again and again. `python -m benchmarks.kernel_case LIBRARY CASE`; a step is
`CASES[CASE].calls` calls. LIBRARY is ours, torch, compiled (torch.compile), numpy, or copy or
read, which copy or read past the caches what a call of the case must move."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.machine import units
from benchmarks.serving import serve


@dataclass(frozen=True, slots=True)
class Case:
    """A function of tensors, alike in both libraries; with `library` set it gets the library
    first."""

    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Any]
    calls: int
    nbytes: int
    """What must move in a call."""
    flops: int = 0
    dtype: str = "float32"
    library: bool = False
    indices: tuple[tuple[tuple[int, ...], int], ...] = ()
    """Further tensors of indices: the shape of each, and what they are below."""

    @property
    def unit(self) -> str:
        return "GB/s" if self.nbytes else "GFLOP/s" if self.flops else "us"


def _attended(lib: Any, q: Any, k: Any, v: Any) -> Any:
    return lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attended_and_back(lib: Any, q: Any, k: Any, v: Any) -> Any:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    loss = _attended(lib, *leaves).sum()
    by_q, by_k, by_v = lib.autograd.grad(loss, leaves)
    return by_q + by_k + by_v


def _bytes(lib: Any, x: Any, y: Any) -> Any:
    """Sums of 32 bits, which PyTorch has an operator for."""
    narrow = getattr(lib, "_int_mm", None)
    return narrow(x, y) if narrow else x.to(lib.int32) @ y.to(lib.int32)


def _products() -> Iterator[tuple[str, Case]]:
    """Squares, and those of a GPT of width 384 on 2048 positions; operands lie either way."""
    of_gpt = [(2048, 384, 1536), (2048, 1536, 384), (384, 2048, 1536)]
    # PyTorch multiplies bfloat16 at 1 GFLOP/s where no instruction does.
    slow = not any(name.endswith("bf16") for name in units())
    sides = {"float32": (256, 512, 1024, 2048, 4096), "bfloat16": (256, 512, 1024)}
    if not slow:
        sides["bfloat16"] = sides["float32"]
    for dtype, squares in sides.items():
        for m, k, n in [*((n, n, n) for n in squares), *of_gpt]:
            # Enough that what a step takes beside its products does not count: a tenth of a second.
            narrow = 33 if dtype == "float32" else 34
            most = 1 << (28 if slow and dtype == "bfloat16" else narrow)
            calls = max(1, most // (m * k * n))
            for left, right in ("", ""), ("T", ""), ("", "T"), ("T", "T"):
                shapes = (k, m) if left else (m, k), (n, k) if right else (k, n)

                def run(x: Any, y: Any, left: str = left, right: str = right) -> Any:
                    return (x.T if left else x) @ (y.T if right else y)

                case = Case(shapes, run, calls, 0, 2 * m * k * n, dtype)
                layouts = f"{left or 'N'}{right or 'N'}"
                yield f"{dtype} product of {m} by {k} by {n} {layouts}", case
    by_bytes = ((1024, 1024), (1024, 1024))
    case = Case(by_bytes, _bytes, 16, 0, 2 * 1024**3, "int8", library=True)
    yield "int8 product of 1024 by 1024 by 1024 NN", case


def _by_a_vector() -> Iterator[tuple[str, Case]]:
    """Products of few rows, which read a matrix."""
    matrix, calls = (4096, 4096), 32
    for rows in 1, 8:
        shapes, size = ((rows, 4096), matrix), (1 << 26, 2 * rows * 4096**2)
        yield f"product of {rows} by 4096 by 4096", Case(shapes, lambda x, y: x @ y, calls, *size)
        case = Case(shapes, lambda x, y: x @ y.T, calls, *size)
        yield f"product of {rows} by 4096 by 4096, matrix transposed", case


def _attentions() -> Iterator[tuple[str, Case]]:
    """Causal ones of heads of 64, forward and with gradients; flops are those of the products that
    the mask leaves, of which gradients take two and a half times those of the result."""
    for heads, length in ((48, 256), (6, 1024), (1, 4096)):
        shapes = ((1, heads, length, 64),) * 3
        flops = 2 * heads * length**2 * 64
        for dtype in ("float32", "bfloat16"):
            name = f"attention of {heads} heads of {length}, {dtype}"
            yield name, Case(shapes, _attended, 4, 0, flops, dtype, library=True)
            back = Case(shapes, _attended_and_back, 2, 0, flops * 7 // 2, dtype, library=True)
            yield f"{name}, with gradients", back


def _entropy(lib: Any, x: Any, i: Any) -> Any:
    """The gradient of a mean cross-entropy, which needs the loss's sums."""
    leaf = x.detach().requires_grad_()
    return lib.autograd.grad(lib.nn.functional.cross_entropy(leaf, i), leaf)[0]


def _memory_bound() -> Iterator[tuple[str, Case]]:
    """Kernels of 1 to 256 MB that a machine's memory limits, where they do what must be done at its
    pace; bytes are those of operands and results, each once."""
    for megabytes, calls in ((1, 256), (16, 16), (256, 4)):
        shape = (megabytes << 8, 1024)
        nbytes = megabytes << 20

        def listed(
            name: str,
            run: Callable[..., Any],
            times: float,
            more: tuple[tuple[int, ...], ...] = (),
            *,
            calls: int = calls,
            shape: tuple[int, ...] = shape,
            nbytes: int = nbytes,
        ) -> tuple[str, Case]:
            case = Case((shape, *more), run, calls, int(nbytes * times), library=True)
            return f"{name}, {nbytes >> 20} MB", case

        yield listed("sum of two", lambda t, x, y: x + y, 3, (shape,))
        yield listed("GELU", lambda t, x: t.nn.functional.gelu(x), 2)
        yield listed("softmax of rows", lambda t, x: t.softmax(x, -1), 2)
        weights = ((1024,), (1024,))
        yield listed(
            *("layer norm", lambda t, x, w, b: t.nn.functional.layer_norm(x, (1024,), w, b), 2),
            weights,
        )
        yield listed(
            *("RMS norm", lambda t, x, w: t.nn.functional.rms_norm(x, (1024,), w), 2), weights[:1]
        )
        yield listed("sum of all", lambda t, x: x.sum(), 1)
        yield listed("sums of rows", lambda t, x: x.sum(1), 1)
        yield listed("sums of columns", lambda t, x: x.sum(0), 1)
        yield listed("transposed copy", lambda t, x: x.T.contiguous(), 2)
        yield listed("running sums of rows", lambda t, x: x.cumsum(1), 2)
        yield listed("dropout", lambda t, x: t.nn.functional.dropout(x, 0.1, True), 2)
    for rows, classes in ((16384, 256), (512, 50000)):
        case = Case(
            *(((rows, classes),), _entropy, 4, 8 * rows * classes),
            library=True,
            indices=(((rows,), classes),),
        )
        yield f"cross-entropy of {classes} classes, with gradient", case


def _by_index() -> Iterator[tuple[str, Case]]:
    """Kernels that read or write where an index says."""
    wide = (4096, 1024)
    yield (
        "rows of 4 KB by an index",
        Case((wide,), lambda x, i: x[i], 8, 1 << 25, indices=(((4096,), 4096),)),
    )
    yield (
        "rows of 256 bytes by an index",
        Case(((50000, 64),), lambda x, i: x[i], 16, 1 << 23, indices=(((16384,), 50000),)),
    )
    for name, run, calls, nbytes, index in (
        ("columns by an index", lambda t, x, i: t.index_select(x, 1, i), 8, 2, ((1024,), 1024)),
        ("elements by an index, along rows", lambda t, x, i: t.gather(x, 1, i), 8, 4, (wide, 1024)),
        (
            *("sums by an index, along rows", lambda t, x, i: t.scatter_add(x, 1, i, x)),
            *(4, 5, (wide, 1024)),
        ),
        (
            *("sums by an index, along columns", lambda t, x, i: t.scatter_add(x, 0, i, x)),
            *(1, 5, (wide, 4096)),
        ),
    ):
        case = Case((wide,), run, calls, nbytes << 24, library=True, indices=(index,))
        yield name, case


PRODUCTS = dict(_products())
VECTORS = dict(_by_a_vector())
ATTENTIONS = dict(_attentions())
MEMORY_BOUND = {**dict(_memory_bound()), **dict(_by_index())}
OTHERS = {
    "copy of 16 MB": Case(((4096, 1024),), lambda x: x + 1.0, 8, 1 << 25),
    "copy of 256 MB": Case(((1 << 26,),), lambda x: x + 1.0, 1, 1 << 29),
    "transposed copy of 4096 by 1024": Case(
        ((4096, 1024),), lambda x: x.T.contiguous(), 8, 1 << 25
    ),
    "transposed copy of 1000 by 3007": Case(
        ((1000, 3007),), lambda x: x.T.contiguous(), 8, 8 * 1000 * 3007
    ),
    "sum with the transpose, 1024": Case(((1024, 1024),), lambda x: x + x.T, 16, 12 << 20),
    "running sums of 4 M numbers": Case(((1 << 22,),), lambda x: x.cumsum(0), 8, 1 << 25),
    "running sums along columns": Case(((4096, 1024),), lambda x: x.cumsum(0), 2, 1 << 25),
    "1 M numbers in order": Case(((1 << 20,),), lambda x: x.sort(0)[0], 2, 1 << 23),
    "rows of 1024 in order": Case(((1024, 1024),), lambda x: x.sort(1)[0], 2, 1 << 23),
    "greatest 10 of 1 M": Case(((1 << 20,),), lambda x: x.topk(10)[0], 16, 1 << 22),
    "greatest 50 of rows of 32000": Case(((64, 32000),), lambda x: x.topk(50)[0], 8, 8192000),
    "call with 16 floats": Case(((16,),), lambda x: x + x, 1000, 0),
}
CASES = {**PRODUCTS, **VECTORS, **ATTENTIONS, **MEMORY_BOUND, **OTHERS}


def prepare() -> Callable[[], float]:
    library, name = sys.argv[1:]
    case = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in case.shapes]
    if library in LIMITS:
        return LIMITS[library](case)
    if library == "numpy":
        return _with_numpy(case, arrays)
    lib: Any
    theirs = library != "ours"
    if theirs:
        import torch  # noqa: PLC0415 - the other contender runs without it

        lib, tensors = torch, [torch.from_numpy(a) for a in arrays]
    else:
        import stack.framework as ht  # noqa: PLC0415 - the other contender runs without it

        lib, tensors = ht, [ht.tensor(a) for a in arrays]
    tensors = [x.to(getattr(lib, case.dtype)) for x in tensors]
    given = [rng.integers(0, below, shape) for shape, below in case.indices]
    tensors += [lib.from_numpy(i) if theirs else lib.tensor(i) for i in given]

    def run(*tensors: Any) -> Any:
        return case.run(lib, *tensors) if case.library else case.run(*tensors)

    ways = {"ours": "jit", "torch": "", "compiled": "compile"}
    function = getattr(lib, ways[library])(run) if ways[library] else run

    def step() -> float:
        for _ in range(case.calls):
            result = function(*tensors)
        result.reshape(-1)[:1].float().numpy()
        return 0.0

    return step


def _with_numpy(case: Case, arrays: list[Any]) -> Callable[[], float]:
    def step() -> float:
        for _ in range(case.calls):
            result = case.run(*arrays)
        return float(result.flat[0])

    return step


PAST_CACHES = 1 << 27
"""Bytes that no cache keeps."""


def _copies(case: Case) -> Callable[[], float]:
    """Copies of memory that move as much as a step of the case, of arrays that no cache keeps."""
    nbytes = case.nbytes // 2
    source = np.ones(max(PAST_CACHES, nbytes), np.uint8)
    target = np.zeros_like(source)
    rest = itertools.cycle(range(0, source.size, nbytes)[: source.size // nbytes])

    def step() -> float:
        for begin in itertools.islice(rest, case.calls):
            np.copyto(target[begin : begin + nbytes], source[begin : begin + nbytes])
        return 0.0

    return step


def _reads(case: Case) -> Callable[[], float]:
    """Sums of squares (BLAS's) of as much as the case reads, of the same array each time, as the
    case does: a cache may keep a part of it."""
    source = np.ones(case.nbytes // 4, np.float32)
    return lambda: float(sum(np.dot(source, source) for _ in range(case.calls)))


LIMITS = {"copy": _copies, "read": _reads}


if __name__ == "__main__":
    serve(prepare)
