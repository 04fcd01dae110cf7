"""Groups whose data MPI moves give what other groups give, and fail in words."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from hal.core.errors import InvalidCall
from hal_tools.cli import main
from stack.comm.engine.choice import ENGINE_VARIABLE, joined

LAUNCHER = shutil.which(
    "mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
HAL = (sys.executable, "-c", "from hal_tools.cli import main; main(prog_name='hal')")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MORE = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
CASES = (
    "reductions",
    "movements",
    "background",
    "tags",
    "smaller",
    "differ",
    "differ_in_messages",
    "meet",
    "meet_alone",
    "meet_alone_in_a_mesh",
    "late",
    "aborted",
    "aborted_meanwhile",
    "interrupted",
)
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or LAUNCHER is None,
    reason="the tests of the MPI engine need mpi4py and mpirun: pip install 'hal-accel[mpi]'",
)


def run(*words):
    """Three ranks that MPI starts."""
    job = (LAUNCHER, "-n", "3", *HAL, "run", "--mpi", "--devices", "cpu:0")
    environment = {**os.environ, **ROOT, **MORE, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [*job, "-m", "tests.comm.mpi.ranks", *words],
        capture_output=True, text=True, timeout=200, env=environment, check=False,
    )  # fmt: skip


@needs_mpi
@pytest.mark.slow
@pytest.mark.turns
def test_all_operations_and_failures():
    done = run(*CASES, "end")
    assert done.returncode == 0, done.stderr


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_fails_ends_the_job():
    done = run("the loss is not finite")
    assert done.returncode
    assert "ValueError: the loss is not finite" in done.stderr


def test_without_mpi_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    (tmp_path / "script.py").write_text("raise AssertionError('it ran')")
    done = CliRunner().invoke(
        main, ["run", "--mpi", "--devices", "cpu:0", str(tmp_path / "script.py")]
    )
    assert done.exit_code == 1
    assert "pip install 'hal-accel[mpi]'" in done.stderr


def test_engines_have_names(monkeypatch):
    monkeypatch.setenv(ENGINE_VARIABLE, "nccl")
    with pytest.raises(InvalidCall, match="HAL_COMM_ENGINE is 'nccl'; it is 'native' or 'mpi'"):
        joined(None, 0, 1, 1.0)
