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


def surrounded(library, folder, **surroundings):
    """The environment in which the driver is among those that are found."""
    (folder / "driver.icd").write_text(f"{library}\n")
    return {
        **os.environ,
        **surroundings,
        "OCL_ICD_VENDORS": str(folder),
        "LD_LIBRARY_PATH": str(library.parent),
    }


def row_of(platform, environment):
    """What `hal devices` says of the one device whose description or cause names the platform."""
    run = subprocess.run(
        [HAL, "devices", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    found = [row for row in json.loads(run.stdout) if platform in f"{row}"]
    assert len(found) == 1, run.stdout
    return found[0]


def conformed(device, environment, *cases):
    return subprocess.run(
        [HAL, "conform", device, *(word for case in cases for word in ("--case", case))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("cases", [("span-", "rounds-beyond"), ("step-kernels", "step-sized")])
def test_intels_driver_keeps_the_contract(cases, tmp_path):
    library = intel()
    if library is None:
        pytest.skip("Intel's driver is not installed")
    environment = surrounded(library, tmp_path)
    run = conformed(row_of("Intel(R) OpenCL", environment)["name"], environment, *cases)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_mesas_driver_for_processors_is_refused_or_right(tmp_path):
    """Its compiler left loops after 65,535 rounds, so that the first loss of a small GPT was 0.7 %
    off."""
    library = rusticl()
    if library is None:
        pytest.skip("Mesa's driver is not installed")
    environment = surrounded(library, tmp_path, RUSTICL_ENABLE="llvmpipe")
    row = row_of("rusticl", environment)
    run = conformed(row["name"], environment, "rounds-beyond")
    if row["status"] == "broken":
        assert "leaves loops before their end" in row["cause"]
        assert "leaves loops before their end" in " ".join(run.stdout.split())
        assert run.returncode == 1
    else:
        assert run.returncode == 0, run.stdout + run.stderr
