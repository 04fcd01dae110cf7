"""Wrong programs end with an error that names the CPE and the source line; nothing hangs."""

import pytest

from hal.core.dtypes import DType
from hal.core.errors import CompileError, FailureKind, InvalidCall, OperationFailed
from hal.core.values import ATHREAD_C, AllocOptions, KernelSource, OpenOptions, Param, ParamKind

HEAD = """#include <slave.h>
const char f_params[] = "buffer f64";
struct args { long grid[3]; double *out; };
__thread_local double x[4096] __attribute__((aligned(64))), y[4096];
__thread_local athread_rply_t r, s;
void f(void *v) {
struct args *p = v;
"""
PARAMS = (Param("out", ParamKind.BUFFER, DType.F64, writes=True),)
LINE = HEAD.count("\n") + 1

LAUNCH, ADDRESS, HANG = "launch-fault", "illegal-address", "hang"
WRONG = {
    "oversized DMA": ("athread_dma_get(x, p->out, 262144);", LAUNCH, "262143"),
    "misaligned DMA": ("athread_dma_get(x, (char *)p->out + 2, 64);", LAUNCH, "misaligned"),
    "ragged blocks": ("athread_dma_get_stride(x, p->out, 64, 24, 8);", LAUNCH, "blocks of 24"),
    "DMA past a buffer": ("athread_dma_put(p->out + 4090, x, 64);", ADDRESS, "leaves"),
    "DMA past the LDM": ("athread_dma_get(x + 4090, p->out, 260000);", ADDRESS, "LDM"),
    "places in the wrong order": ("athread_dma_get(p->out, x, 64);", ADDRESS, "right order"),
    "RMA out of the core group": ("athread_rma_put(x, 8, 64, y, &r);", LAUNCH, "core group"),
    "RMA with main memory": ("athread_rma_put(x, 8, 1, p->out, &r);", ADDRESS, "LDM"),
    "no wait for a get": ("athread_dma_iget(x, p->out, 64, &r);", LAUNCH, "never waited for"),
    "no wait for a message": ("athread_rma_iput(x, &s, 8, 1, y, &r);", LAUNCH, "rma_wait"),
    "a reply that does not come": ("athread_dma_wait_value(&r, 1);", HANG, "waits for a reply"),
    "a CPE that stays away": ("if (_PEN) athread_ssync_array();", HANG, "synchronisation"),
    "too much LDM": ("for (;;) ldm_malloc(40000);", "out-of-memory", "ldm_malloc in line"),
    "a block freed twice": ("ldm_free(ldm_malloc(8), 8); ldm_free(x, 8);", LAUNCH, "free"),
    "a null pointer": ("*(volatile int *)0 = 1;", ADDRESS, "Segmentation fault"),
    "a division by zero": ("volatile int zero = 0; r = 100 / zero;", LAUNCH, "loating point"),
    "a loop on a reply word": (
        "athread_dma_iget(x, p->out, 64, &r); while (r != 1) continue;",
        HANG,
        "call athread_dma_wait_value",
    ),
    "an endless loop": ("for (volatile int go = 1; go;) continue;", HANG, "no call of the"),
}
RACES = {
    "writing where a get will": (
        "athread_dma_iget(x, p->out, 512, &r); x[3] = 1; athread_dma_wait_value(&r, 1);"
    ),
    "writing what a put reads": (
        "athread_dma_iput(p->out, x, 512, &r); x[3] += 1; athread_dma_wait_value(&r, 1);"
    ),
    "putting what a get brings": (
        "athread_dma_iget(x, p->out, 512, &r); athread_dma_put(p->out, x, 512);"
    ),
    "sending what a get brings": (
        "athread_dma_iget(x, p->out, 512, &r); athread_rma_put(x, 64, 1, y, &s);"
    ),
    "a message into what a get brings": (
        "if (_PEN == 1) athread_rma_put(y, 64, 0, x, &s);"
        "if (_PEN == 0) { athread_dma_iget(x, p->out, 8192, &r); athread_dma_wait_value(&r, 1); }"
    ),
}


@pytest.fixture(scope="module")
def device(plugin):
    registry, _ = plugin
    settings = {"progress_s": "0.4", "memory_nbytes": str(64 << 20)}
    with registry.open("sunway:0", options=OpenOptions(settings=settings)) as device:
        yield device


def failure(device, body):
    buffer = device.alloc(4096 * 8, AllocOptions())
    program = device.load(KernelSource(ATHREAD_C, f"{HEAD}{body}\n}}", "f", PARAMS))
    timeline = device.create_timeline(host_driven=False)
    point = device.launch(device.bind(program, [buffer]), (1, 1, 1), timeline, [])
    try:
        device.wait([point], 20, True)
    except OperationFailed as error:
        return error.failure
    finally:
        device.free(timeline)
        device.free(buffer)
    return None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_fails_with_cause_and_line(device, name):
    body, kind, words = WRONG[name]
    found = failure(device, body)
    assert found.kind is FailureKind(kind), found
    assert words in found.message
    assert f"line {LINE}" in found.message
    assert "CPE " in found.message


@pytest.mark.parametrize("name", RACES)
def test_a_race_with_a_transfer_is_found(device, name):
    found = failure(device, RACES[name])
    assert found.kind is FailureKind.LAUNCH_FAULT
    assert "race: " in found.message
    assert f"line {LINE}" in found.message


def test_a_core_group_works_again_after_an_exception_and_keeps_its_memory(device):
    assert failure(device, "*(volatile int *)0 = 1;") is not None
    assert failure(device, "athread_dma_put(p->out, x, 64);") is None


def test_variables_that_do_not_fit_are_refused_with_a_map(device):
    text = "#include <slave.h>\n__thread_local double large[32768], small[3];\nvoid f(void *v) {}"
    with pytest.raises(CompileError) as error:
        device.load(KernelSource(ATHREAD_C, text, "f", PARAMS))
    assert "262176 bytes of LDM; a CPE has 262144" in str(error.value)
    assert "262144 bytes at" in error.value.log
    assert "large" in error.value.log
    assert "small" in error.value.log


def test_an_entry_that_is_no_name_is_refused(device):
    for name in ("", "f g", "f\ng", "1f", "é"):
        with pytest.raises(CompileError, match="no name of a function"):
            device.load(KernelSource(ATHREAD_C, "void f(void *v) {}", name, PARAMS))


def test_parameters_that_the_program_does_not_have_are_refused(device):
    text = f"{HEAD}}}"
    scalar = Param("out", ParamKind.SCALAR, DType.F64)
    other = Param("out", ParamKind.BUFFER, DType.F32)
    for params in ((), (*PARAMS, *PARAMS), (scalar,), (other,)):
        with pytest.raises(InvalidCall, match="has the parameters"):
            device.load(KernelSource(ATHREAD_C, text, "f", params))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("void f(void *v) { x = 1; }", "f:1"),
        ("void f(void *v) { missing_function(); }", "missing_function"),
        ("void g(void *v) {}", "no function 'f'"),
        ("void f(void *v) {}", "f_params"),
        ('const char f_params[] = "buffer f63"; void f(void *v) {}', "no list of parameters"),
        ("\0", "zero byte"),
        ("\x7fELF nonsense \ud800", "f"),
    ],
)
def test_text_that_is_no_program_is_refused(device, text, words):
    with pytest.raises(CompileError, match=words):
        device.load(KernelSource(ATHREAD_C, text, "f", PARAMS))
