"""Our own C under sanitizers: chosen tests run once more in a process of their own, one of the
choices each time.

`make sanitize` runs all tests of the engine, the CPU plugin and the emulator so.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.draw import sample, stream
from tests.sanitizers.build import ROOT, Sanitizer, gcc
from tests.sanitizers.run import obstacle, run, start

CPU, EMULATOR = "plugins/cpu/tests", "plugins/sunway_emu/tests"
ENGINE = "tests/comm/engine"
SUITE = ["--pyargs", "hal_conformance", "--hal-device", "cpu:0", "--hal-no-timed"]
NUMBER = stream("sanitized cases").randrange(3)
"""Which of the suite's cases that differ by a number this run takes."""
ONE_OF_ALL = f"random-everything-{NUMBER}"
RUNS = {
    "the CPU plugin's memory": (
        Sanitizer.ADDRESS,
        [f"{CPU}/test_{name}.py" for name in ("memory", "graphs", "launch", "groups")],
    ),
    "the CPU plugin's memory, by the suite": (
        Sanitizer.ADDRESS,
        [
            *SUITE,
            "-k",
            f"{ONE_OF_ALL} or random-kernels-{NUMBER} or random-calls-0 or "
            f"only-after-orders-{NUMBER} or size-classes-across",
        ],
    ),
    "the engine's memory": (
        Sanitizer.ADDRESS,
        [f"{ENGINE}/test_{name}.py" for name in ("messages", "operations")],
    ),
    "the engine's memory, by forged frames": (Sanitizer.ADDRESS, [f"{ENGINE}/test_forged.py"]),
    "the engine's threads": (Sanitizer.THREAD, [f"{ENGINE}/test_messages.py"]),
    "the engine's threads, by forged frames": (Sanitizer.THREAD, [f"{ENGINE}/test_forged.py"]),
    "the emulator's memory": (
        Sanitizer.ADDRESS,
        [f"{EMULATOR}/test_programs.py", f"{EMULATOR}/test_trouble.py"],
    ),
    "the CPU plugin's threads": (
        Sanitizer.THREAD,
        [*SUITE, "-k", f"{ONE_OF_ALL} or random-calls-0 or F.threads or waiters"],
    ),
}
DEADLINE_S = 240.0

PLANTED = {
    Sanitizer.ADDRESS: """
        #include <stdlib.h>
        int fault(void) { volatile int *p = malloc(4); free((void *)p); return *p; }
    """,
    Sanitizer.THREAD: """
        #include <pthread.h>
        static int n;
        static void *count(void *p) { for (int i = 0; i < 1000; i++) n++; return p; }
        int fault(void) {
            pthread_t a, b;
            pthread_create(&a, 0, count, 0), pthread_create(&b, 0, count, 0);
            pthread_join(a, 0), pthread_join(b, 0);
            return n;
        }
    """,
}


NATIVE = ROOT / "plugins/cpu/src/hal_plugin_cpu/native"
STRESS = Path(__file__).with_name("stress.c")


def skip_where_it_cannot_run(sanitizer):
    if reason := obstacle(sanitizer):
        pytest.skip(f"{sanitizer.value}: {reason}")


DRAWN = sample("sanitizers", RUNS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.turns("sanitized")
def test_nothing_is_found(name):
    sanitizer, files = RUNS[name]
    skip_where_it_cannot_run(sanitizer)
    pytest_ = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    outcome = run(sanitizer, [*pytest_, *files], DEADLINE_S)
    assert not outcome.findings, outcome.findings
    assert outcome.returncode == 0, outcome.output


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", PLANTED, ids=lambda sanitizer: sanitizer.name.lower())
def test_a_planted_fault_is_found_in_a_grandchild(sanitizer, tmp_path):
    skip_where_it_cannot_run(sanitizer)
    source, library = tmp_path / "fault.c", tmp_path / "fault.so"
    source.write_text(PLANTED[sanitizer])
    compile_ = [str(gcc()), *sanitizer.flags, "-fPIC", "-shared", "-o", str(library), str(source)]
    subprocess.run(compile_, timeout=60, check=True)
    load = f"import ctypes; ctypes.CDLL({str(library)!r}).fault()"
    again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {load!r}], timeout=60)"
    # Our own modules take GCC long, and are not asked for
    found = run(sanitizer, ["-c", again], DEADLINE_S, modules=tmp_path).findings
    assert "in fault" in found or " fault " in found, found


@pytest.mark.slow
def test_a_run_that_hangs_is_ended(tmp_path):
    sanitizer = Sanitizer.ADDRESS
    skip_where_it_cannot_run(sanitizer)
    with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 0\.5 s"):
        run(sanitizer, ["-c", "import time; time.sleep(600)"], 0.5, modules=tmp_path)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    "sanitizer", sample("stress", Sanitizer, 1), ids=lambda sanitizer: sanitizer.name.lower()
)
def test_the_cpu_plugin_stands_many_threads(sanitizer, tmp_path):
    skip_where_it_cannot_run(sanitizer)
    program = tmp_path / "stress"
    sources = [STRESS, *sorted(NATIVE.glob("*.c"))]
    how = ["-O0", "-std=gnu11", "-pthread", *sanitizer.flags, f"-I{NATIVE}"]
    subprocess.run([str(gcc()), *how, "-o", program, *sources], timeout=DEADLINE_S, check=True)
    command = [*start(sanitizer), program, "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@pytest.mark.slow
@pytest.mark.turns("sanitized")
def test_the_modules_are_the_instrumented_ones():
    """Of the run above, whose modules GCC compiles just once."""
    sanitizer, _ = RUNS[DRAWN[0]]
    skip_where_it_cannot_run(sanitizer)
    names = ["stack.comm.engine._native", "hal_plugin_cpu._native"]
    show = f"import importlib as i; [print(i.import_module(name).__file__) for name in {names}]"
    lines = run(sanitizer, ["-c", show], DEADLINE_S).output.splitlines()
    assert len(lines) == 2
    assert all(f"/build/sanitizers/{sanitizer.name.lower()}-" in line for line in lines), lines
