"""Drivers that other people wrote, where they are installed: Intel's runtime for processors
(`pip install intel-opencl-rt`) and Mesa's rusticl (Debian's `mesa-opencl-icd`).

`OCL_ICD_VENDORS=FOLDER hal conform opencl:N` runs the whole suite on one, where `hal devices` says
which N it has (PoCL's wheel registers itself beside whatever the folder names); here it is what
each of them was wrong in, or what no case but a model met.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_S = 900.0
HAL = str(Path(sys.executable).with_name("hal"))


def intel():
    """The library of Intel's runtime in this environment, if it is there."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "libintelocl.so"]
    return found[0] if found else None


def rusticl():
    """Mesa's library, if it is there."""
    return next(Path("/usr/lib").glob("*/libRusticlOpenCL.so.1"), None)


def device_of(platform, environment):
    """The name of the one device whose description names the driver's platform."""
    run = subprocess.run(
        [HAL, "devices", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    found = [row for row in json.loads(run.stdout) if platform in row["description"]]
    assert len(found) == 1, run.stdout
    return found[0]["name"]


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["span", "step-kernels"])
@pytest.mark.parametrize(
    ("driver", "platform", "surroundings"),
    [(intel, "Intel(R) OpenCL", {}), (rusticl, "rusticl", {"RUSTICL_ENABLE": "llvmpipe"})],
)
def test_another_driver_keeps_the_contract(driver, platform, surroundings, cases, tmp_path):
    library = driver()
    if library is None:
        pytest.skip(f"the driver {driver.__name__} is not installed")
    (tmp_path / "driver.icd").write_text(f"{library}\n")
    environment = {
        **os.environ,
        **surroundings,
        "OCL_ICD_VENDORS": str(tmp_path),
        "LD_LIBRARY_PATH": str(library.parent),
    }
    device = device_of(platform, environment)
    run = subprocess.run(
        [HAL, "conform", device, "--case", cases, "--no-timed"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
