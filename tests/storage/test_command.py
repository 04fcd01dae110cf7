"""`hal checkpoint`, and DCP folders in and out."""

import json
import os
import pickle
import re
from importlib import import_module

import pytest
from click.testing import CliRunner

from hal_tools.cli import main
from stack.storage import Checkpoints, StorageError
from tests.storage.states import differs, state

torch = pytest.importorskip("torch", reason="torch is not installed")

STATE = state()
STEP = "step-000000000004"


@pytest.fixture(scope="module")
def dcp():
    """Asked for where it is used: it takes two seconds to import, of each process that collects
    tests."""
    return pytest.importorskip("torch.distributed.checkpoint")


@pytest.fixture
def where(tmp_path):
    with Checkpoints(tmp_path / "run", parity=1) as c:
        for step in (3, 4):
            c.save(step, STATE, {"step": step})
    return tmp_path / "run"


def hal(*words, status=0):
    done = CliRunner().invoke(main, ["checkpoint", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def test_list_and_show_say_what_is_there(where):
    rows = json.loads(hal("list", where, "--json"))
    assert [row["step"] for row in rows] == [4, 3]
    assert f"{STEP}: step 4: {rows[0]['tensors']} tensors" in hal("list", where)
    shown = json.loads(hal("show", where, "--json"))
    assert shown["state"] == {"step": 4}
    assert {(t["group"], t["name"]) for t in shown["tensors"]} == {
        (group, name) for group, members in STATE.items() for name in members
    }
    assert "model/wide: F32[7, 33] in model.safetensors" in hal("show", where, "--step", 3)


def test_verify_repair_and_prune(where):
    assert hal("verify", where).count("every byte is as it was written") == 2
    file = where / STEP / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    assert f"{STEP}/model.safetensors: bytes 0 to" in hal("verify", where, status=1)
    assert "repaired" in hal("repair", where, "--step", 4)
    hal("verify", where)
    (where / STEP / "parity-0.bin").unlink()
    file.write_bytes(data)
    assert "LOST" in hal("repair", where, status=1)
    assert f"removed {'file:'}{where}/step-000000000003" in hal("prune", where, "--keep", 1)
    assert [row["step"] for row in json.loads(hal("list", where, "--json"))] == [4]


def test_a_wrong_place_is_an_error_with_the_next_step(where):
    assert "steps there: 4, 3" in hal("verify", where, "--step", 9, status=1)
    assert "what to do: look with `hal checkpoint list`" in hal("show", where / "no", status=1)
    assert "is no place for checkpoints" in hal("list", "ftp://x", status=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dcp_folders_go_out_and_in_bit_equal(where, tmp_path, dcp):
    hal("export", where, tmp_path / "dcp")
    wanted = {
        group: {
            name: torch.zeros(array.shape, dtype=torch.float32)
            for name, array in members.items()
            if array.dtype == "f4"
        }
        for group, members in STATE.items()
    }
    dcp.load(wanted, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    for group, members in wanted.items():
        for name, tensor in members.items():
            assert tensor.numpy().tobytes() == STATE[group][name].tobytes(), name
    hal("import", tmp_path / "dcp", tmp_path / "again", "--step", 7)
    with Checkpoints(tmp_path / "again") as c:
        loaded = c.load()
    assert not differs(loaded.tensors, STATE)
    assert loaded.state == {"step": 4}
    assert loaded.step == 7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dcp_folder_of_torchs_own_making_comes_in(tmp_path, dcp):
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3).to(torch.bfloat16))
    dcp.save(
        {"model": model.state_dict(), "lr": 0.5}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True
    )
    hal("import", tmp_path / "dcp", tmp_path / "run", "--step", 1)
    with Checkpoints(tmp_path / "run") as c:
        loaded = c.load()
    assert loaded.state == {"lr": 0.5}
    assert set(loaded.tensors["model"]) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        got = loaded.tensors["model"][name]
        assert got.tobytes() == tensor.view(-1).view(torch.uint8).numpy().tobytes(), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["metadata", "class", "path"])
def test_a_hostile_dcp_folder_is_refused_and_runs_nothing(tmp_path, how, capfd, dcp):
    class Evil:
        def __reduce__(self):
            return (os.system, ("echo it ran",)) if how == "metadata" else (eval, ("1",))

    dcp.save({"x": torch.ones(3)}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    file = tmp_path / "dcp" / ".metadata"
    found = pickle.loads(file.read_bytes())
    if how == "path":
        [index] = found.storage_data
        found.storage_data[index].relative_path = "../secret"
    else:
        found.planner_data = {"x": Evil()}
    file.write_bytes(pickle.dumps(found))
    with pytest.raises(StorageError, match=r"is no DCP folder: .*is no (part|file) of"):
        import_module("stack.storage.dcp").read(tmp_path / "dcp")
    assert "it ran" not in capfd.readouterr().out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("home", ["pathlib", "pathlib._local"])
def test_a_dcp_folder_of_any_python_comes_in(tmp_path, home, dcp):
    """Python 3.13 says another home of the paths that DCP's metadata has."""
    dcp.save({"x": torch.arange(6.0)}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    metadata = tmp_path / "dcp" / ".metadata"
    written = pickle.dumps(pickle.loads(metadata.read_bytes()), protocol=2)
    moved, count = re.subn(rb"cpathlib[._a-z]*\n", f"c{home}\n".encode(), written)
    assert count
    metadata.write_bytes(moved)
    tensors, _ = import_module("stack.storage.dcp").read(tmp_path / "dcp")
    assert tensors["model"]["x"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore")
def test_what_would_run_when_it_is_unpickled_does_not_come_in(tmp_path, dcp):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    dcp.save({"x": Evil()}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    with pytest.raises(StorageError, match="x is no plain data"):
        import_module("stack.storage.dcp").read(tmp_path / "dcp")
