import subprocess
from pathlib import Path

import hal_plugin_cpu
import pytest

NATIVE = Path(hal_plugin_cpu.__file__).parent / "native"
STRESS = Path(__file__).with_name("stress.c")


def build(sanitizers, program):
    command = ["gcc", "-g", "-O1", "-std=gnu11", "-pthread", f"-fsanitize={sanitizers}"]
    sources = [STRESS, *sorted(NATIVE.glob("*.c"))]
    arguments = [*command, f"-I{NATIVE}", "-o", program, *sources]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
    if "cannot find" in done.stderr:
        pytest.skip(f"this compiler has no {sanitizers} sanitizer")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_the_native_runtime_passes_the_sanitizers(tmp_path, sanitizers):
    program = tmp_path / "stress"
    build(sanitizers, program)
    done = subprocess.run([program, "15"], capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
