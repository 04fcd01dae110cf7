"""Hosts with little room, and programs and settings that are beyond all bounds."""

import os
import shutil
import subprocess
import sys

import pytest
from hal_plugin_sunway.chip import changed, published

from hal.core.errors import InvalidCall

CODE = """
import resource, sys
import hal
from hal.core.errors import HalError
from hal.core.values import ATHREAD_C, KernelSource
{limit}
text = '#include <slave.h>\\nconst char f_params[] = "";\\nvoid f(void *v) {{}}\\n// '
text += "x" * {comment}
try:
    hal.open("sunway:0").load(KernelSource(ATHREAD_C, text, "f", ()))
except HalError as error:
    print(type(error).__name__, error)
"""


def said(limit, *start, comment=200_000, **environment):
    """What a process says that loads a program under a limit."""
    command = [*start, sys.executable, "-c", CODE.format(limit=limit, comment=comment)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment or None
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("count", [10, 13])
def test_too_few_descriptors_are_told_in_words(count):
    text = said(f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count}))")
    assert text.startswith("PluginError"), text
    assert "Too many open files" in text
    assert "ulimit -n" in text


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="a sanitizer needs addresses of its own")
def test_too_little_address_space_is_told_in_words():
    text = said("resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))")
    assert text.startswith("PluginError the host gives no main memory of 17179869184 bytes"), text
    assert "HAL_SUNWAY_MEMORY" in text


@pytest.mark.slow
@pytest.mark.turns
def test_a_full_folder_for_temporary_files_is_told_in_words(tmp_path):
    unshare = shutil.which("unshare")
    mount = f'mount -t tmpfs -o size=16k tmpfs {tmp_path} && TMPDIR={tmp_path} exec "$@"'
    start = (str(unshare), "--mount", "--map-root-user", "sh", "-c", mount, "sh")
    if not unshare or subprocess.run([*start, "true"], timeout=60, check=False).returncode:
        pytest.skip("this user may mount nothing in a namespace of its own")
    text = said("", *start)
    assert text.startswith("PluginError load of f: the host has no room"), text
    assert "set TMPDIR" in text


WITH_FILES = """
hal.open("sunway:0").close()  # the emulator itself is built
resource.setrlimit(resource.RLIMIT_FSIZE, ({nbytes}, {nbytes}))
"""


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("nbytes", [1000, 10_000])
def test_files_that_are_too_small_for_the_compiler_are_no_fault_of_the_program(nbytes):
    small = {**os.environ, "HAL_SUNWAY_MEMORY": "500"}
    text = said(WITH_FILES.format(nbytes=nbytes), comment=1, **small)
    assert text.startswith("PluginError"), text
    assert "File too large" in text
    assert "`-f`" in text


@pytest.mark.parametrize(
    "text", ["ldm_nbytes=2000000", "banks=0", "banks=2000", "line_nbytes=0", "cpe_hz=nan",
             "rma_cycles=-1", "lost_share=1", "row_nbytes=inf"],
)  # fmt: skip
def test_figures_that_no_chip_has_are_refused(text):
    name = text.partition("=")[0]
    with pytest.raises(InvalidCall, match=f"chip: {name} must be .* to .*, is "):
        changed(published(), text)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("nbytes", ["0x7fffffffffffffff", "-1", "262145"])
def test_more_scratchpad_than_there_is_is_refused(run, nbytes):
    from hal_plugin_sunway.coregroup import CoreGroupFailure  # noqa: PLC0415

    with pytest.raises(CoreGroupFailure, match="does not fit into the LDM") as caught:
        run(f"void f(void **p) {{ ldm_malloc({nbytes}); }}")
    assert caught.value.kind == "ldm"


@pytest.mark.slow
@pytest.mark.turns
def test_strides_that_wrap_around_are_refused(run):
    from hal_plugin_sunway.coregroup import CoreGroupFailure  # noqa: PLC0415

    text = """void f(void **p) {
        double x[16];
        athread_rply_t reply = 0;
        athread_dma_iget_stride(x, p[3], 72, 8, 1L << 61, &reply);
    }"""
    with pytest.raises(CoreGroupFailure, match="leads out of the address space"):
        run(text)
